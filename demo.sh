#!/bin/bash
# sudo ./demo.sh [--keep | --clean] [--no-serve] [--in FOLDER] [--help]
#
# A tour of btrkeep on its own btrfs in sparse files, mounted below a folder in /var/tmp or another place with free space. It reads
# /etc and /usr/share/doc of this machine, and changes only its own files. Every step is a function named step_NAME, listed in TOUR;
# every command is printed as it is run.
#
# All that outlives a process is in that folder, points into it (mount, loop device) or names it (processes). So the kernel's tables
# lead to it, even after a kill. The file `state` marks the folder as a demonstration's.
set -euo pipefail
TOP=$(dirname "$(readlink -f "$0")")
cd "$TOP"
# shellcheck source=scripts/ground.sh
. scripts/ground.sh

TOUR=(pool sources ssh_server configuration check first_night change second_night list sharing first_night_again restore till
    weeks strip expiry what_is_left trends second_copy takeover damage old_history doctor fragments balance rehearse pictures dashboard)
NAME=btrkeep-demo
HEADER="btrkeep demo, format 1"
PLACES=(/var/tmp /srv /home /root /dev/shm)
HERE=(/etc /usr/share/doc)
MIB=1048576

usage() {
    cat <<END
usage: sudo ./demo.sh [--keep | --clean] [--no-serve] [--in FOLDER]

Shows two nights of backups on a temporary btrfs, restores an earlier version
of a file, and backs up a database that is being written; weeks of backups in
a second pool, of which most expire; a third pool that replicates the second
and takes over when it is lost; an import of a month of rsnapshot; score,
balance and pictures of free space; a test of two settings on a temporary
pool; and the dashboard, for a browser on this machine. At the end it removes
everything except two pictures.
Takes about a minute; the first time some minutes, to install missing Debian
packages and a virtual environment in .venv.

  --keep       keep the pool; --clean or the next run removes it
  --clean      only remove the remains of an earlier run
  --no-serve   check the dashboard and end, without waiting for Ctrl-C
  --in FOLDER  work below FOLDER; default: /var/tmp, or another with free space
  --help       this text
END
}

# --- output ---------------------------------------------------------------------------------------------------------------------

BOLD='' CYAN='' RED='' PLAIN=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
    BOLD=$'\e[1m' CYAN=$'\e[36m' RED=$'\e[31m' PLAIN=$'\e[0m'
fi

tell() { printf '\n%s%s%s\n' "$BOLD" "$(fold -s -w 78 <<<"$*" | sed 's/ $//')" "$PLAIN"; }
note() { printf '%s\n' "$*"; }
typed() { printf '%s$ %s%s\n' "$CYAN" "$1" "$PLAIN"; }

# fail WORDS: the reason, and the end.
fail() {
    printf '\n%sdemo.sh: %s%s\n' "$RED" "$*" "$PLAIN" >&2
    exit 1
}

# attempt LINE: prints the line and runs it; returns its exit status.
# It runs in its own session: demo.sh passes on the first Ctrl-C, once, and can end all of it.
CHILD=''
attempt() {
    local status=0
    typed "$1"
    setsid env --default-signal=INT,QUIT bash -o pipefail -c "$1" </dev/null &
    CHILD=$!
    wait "$CHILD" || status=$?
    CHILD=''
    return "$status"
}

# try LINE: the same, but it must succeed.
try() {
    local status=0
    attempt "$1" || status=$?
    [ "$status" -eq 0 ] || fail "this failed with exit status $status: $1"
}

# try_quietly LINE: for verbose programs; their output is shown when they fail.
try_quietly() {
    typed "$1"
    quietly bash -o pipefail -c "$1"
}

# quietly WORDS: not printed. Its output is shown when it fails.
quietly() {
    local output
    output=$("$@" 2>&1 </dev/null) || fail "this failed: $*"$'\n'"$output"
}

# --- cleaning up ----------------------------------------------------------------------------------------------------------------

start_time_of() { sed -E 's/^.*\) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

# Whether the folder $1 is a demonstration's: root's, no link, and with the state file, or with nothing at all yet.
is_ours() {
    [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return 1
    [ "$(head -n 1 "$1/state" 2>/dev/null)" = "$HEADER" ] || [ -z "$(find "$1" -mindepth 1 ! -name state.new -print -quit)" ]
}

# The files that stay after a demonstration in $1.
pictures_of() { printf '%s\n' "$1-pictures/"{heatmap.png,timelapse.gif,by-btrkeep-demo}; }

# Removes these pictures, and their folder if it is empty; only with a demonstration's mark.
drop_pictures() {
    [ -O "$1-pictures/by-btrkeep-demo" ] && [ ! -L "$1-pictures" ] || return 0
    pictures_of "$1" | xargs -d '\n' rm -f --
    rmdir --ignore-fail-on-non-empty -- "$1-pictures"
}

# The process that made the folder $1 and still runs; empty if it has ended.
maker_of() {
    local pid started
    pid=$(sed -n 's/^pid //p' "$1/state" 2>/dev/null) && started=$(sed -n 's/^started //p' "$1/state")
    [ -n "$pid" ] && [ "$(start_time_of "$pid")" = "$started" ] && echo "$pid"
}

write_state() {
    printf '%s\n' "$HEADER" "$@" >"$DEMO/state.new"
    mv "$DEMO/state.new" "$DEMO/state"
}

# Processes that a demonstration in $1 started: marked in their environment, or a program of ours that works on its files.
processes_of() {
    local folder pid words
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        [ "$pid" != "$$" ] && [ "$pid" != "$BASHPID" ] || continue
        if grep -qzFx "BTRKEEP_DEMO=$1" "$folder/environ" 2>/dev/null; then
            echo "$pid"
            continue
        fi
        case $(cat "$folder/comm" 2>/dev/null) in
        rsync | ssh | sshd*)
            words=$({ tr '\0' ' ' <"$folder/cmdline"; } 2>/dev/null) || continue # it may have ended
            [[ $words == *"$1/"* ]] && echo "$pid"
            ;;
        esac
    done
    return 0
}

end_processes() {
    local signal round
    local -a pids
    for signal in TERM KILL; do
        for round in {1..100}; do
            mapfile -t pids < <(processes_of "$1")
            [ "${#pids[@]}" -gt 0 ] || return 0
            [ "$round" -gt 1 ] || kill -s "$signal" "${pids[@]}" 2>/dev/null || true
            sleep 0.1
        done
    done
    say "still running: ${pids[*]}"
    return 1
}

mounts_below() { findmnt -rno TARGET | awk -v top="$1/" 'index($0, top) == 1' | tac; }

unmount_below() {
    local round point said=''
    for round in {1..50}; do
        point=$(mounts_below "$1" | head -n 1)
        [ -n "$point" ] || return 0
        said=$(umount "$point" 2>&1) || sleep 0.1
    done
    say "$said"
    return 1
}

detach_loops() {
    local image device
    for image in "$1"/*.img; do
        losetup -j "$image" -O NAME -n 2>/dev/null | while read -r device; do losetup -d "$device"; done
    done
}

# Removes the demonstration in $1, and nothing else.
take_away() {
    [ -e "$1" ] || return 0
    end_processes "$1" && unmount_below "$1" && detach_loops "$1" && rm -rf --one-file-system -- "$1"
}

# Leftovers of earlier runs, in every place where one may be.
clear_leftovers() {
    local place folder pid
    for place in "${PLACES[@]}"; do
        folder=$place/$NAME
        drop_pictures "$folder"
        is_ours "$folder" || continue
        pid=$(maker_of "$folder") && fail "another demonstration is running in $folder (process $pid)"
        note "Removing the remains of an earlier demonstration: $folder"
        take_away "$folder" || fail "could not remove $folder: is a process using it?"
    done
}

stopped() {
    trap '' INT TERM HUP
    printf '\n' >&2
    say "stopped; cleaning up"
    KEEP=''
    if [ -n "$CHILD" ] && kill -TERM -- "-$CHILD" 2>/dev/null; then
        timeout 10 tail --pid="$CHILD" -f /dev/null || true # a run ends its transfers cleanly; other processes are killed later
    fi
    exit "$1"
}

DEMO=''
at_the_end() {
    local status=$?
    trap '' INT TERM HUP
    cd /
    stop_reading
    [ -n "$DEMO" ] && [ -d "$DEMO" ] || exit "$status"
    if [ -n "$KEEP" ]; then
        write_state kept
        say_how_to_look
        exit "$status"
    fi
    if ! take_away "$DEMO"; then
        say "demo.sh: could not remove $DEMO; ./demo.sh --clean tries again"
        [ "$status" -ne 0 ] || status=1
    fi
    exit "$status"
}

say_how_to_look() {
    tell "The pool was kept. To use it:"
    note "  sudo -i"
    note "  cd $DEMO"
    note "  PATH=$(printf %q "$VENV/bin"):\$PATH"
    note "  backupd --config demo.toml list --all"
    note "  ls pool/hosts/*"
    note "Its ssh server on 127.0.0.1 still runs, so you can run another night:"
    note "  backupd --config demo.toml run --all"
    note "To see which of the diary's backups another policy would delete:"
    note "  $COPY retention explain diary --policy daily=3 --now ${NEXT_EVENING/23:00/23:59}"
    if [ -n "$DASHBOARD" ] && answers "$DASHBOARD"; then
        note "The dashboard still runs: $DASHBOARD, user demo, password $PASSWORD"
    fi
    note "To remove everything:"
    note "  sudo $(printf %q "$TOP/demo.sh") --clean${CHOSEN:+ --in $CHOSEN}"
}

# --- the ground -----------------------------------------------------------------------------------------------------------------

kib_of_sources() { du -skxc "${HERE[@]}" 2>/dev/null | tail -n 1 | cut -f 1; }

# The first place with free space for the sources and our own files. Making the folder claims it: of two at once, one fails.
claim_place() {
    local place folder needed
    needed=$(($(kib_of_sources) + 400 * 1024))
    for place in "${PLACES[@]}"; do
        [ -d "$place" ] && [ "$(df --output=avail -k "$place" | tail -n 1)" -gt "$needed" ] || continue
        folder=$place/$NAME
        mkdir -m 0700 "$folder" 2>/dev/null || fail "$folder already exists and is not a demonstration's: remove it, or choose another place with --in"
        DEMO=$folder # only now: it is removed at the end
        write_state "pid $$" "started $(start_time_of $$)"
        return
    done
    fail "not enough free space: $((needed / 1024)) MiB are needed in one of ${PLACES[*]}; give another with --in FOLDER"
}

see_that_it_can_work() {
    [ "$(id -u)" -eq 0 ] || fail "mounting a btrfs needs root: sudo ./demo.sh"
    modprobe -q btrfs 2>/dev/null || true
    grep -qw btrfs /proc/filesystems || fail "this kernel has no btrfs"
}

# --- the tour -------------------------------------------------------------------------------------------------------------------

step_pool() {
    local mib=$(($(kib_of_sources) / 512 + 2048))
    tell "A pool needs a btrfs. Here it is a sparse file of $mib MiB; yours is a disk."
    try_quietly "truncate -s ${mib}M disk.img && mkfs.btrfs -q disk.img"
    try "mkdir pool && mount -o loop,noatime disk.img pool"
    remember
}

# remember: the state of the pool's filesystem, a frame of the timelapse.
FRAMES=0
remember() {
    mkdir -p states
    FRAMES=$((FRAMES + 1))
    quietly btrfs-heatmap -q --record-to "states/$FRAMES.heatmap" -o now.png pool
    [ ! -e demo.toml ] || note_for_dashboard
}

# The work of the timers of every five minutes and every day: a sample, alarms, a picture, the score of the free space.
note_for_dashboard() {
    quietly backupd --config demo.toml sample
    quietly backupd --config demo.toml notify
    quietly btrfs-heatmap nightly --config demo.toml
    quietly btrfs-balancer score --config demo.toml --record --top 1
}

step_sources() {
    tell "A small shop to back up: a database of 64 MB, photos, a price list with two names."
    try "mkdir -p shop/photos shop/www"
    try "head -c 64M /dev/urandom >shop/orders.db"
    try "for n in 1 2 3 4 5 6 7 8; do head -c 256K /dev/urandom >shop/photos/\$n.jpg; done"
    try "printf '%s\n' 'black tea  2.80' 'green tea  3.20' >shop/prices.txt"
    try "ln shop/prices.txt shop/www/prices.txt"
    (cd shop && find . -type f -exec sha256sum {} + >../first-night.sha256)
}

step_ssh_server() {
    tell "The shop is reached over ssh: a server on 127.0.0.1, and a key that may only read with rsync."
    mkdir -p ssh
    mkdir -p -m 0755 /run/sshd # where sshd separates its privileges; its package makes it too
    try "ssh-keygen -q -t ed25519 -N '' -C $NAME -f ssh/id_ed25519"
    quietly ssh-keygen -q -t ed25519 -N '' -C $NAME -f ssh/host_key
    authorize
    start_sshd
    printf '[127.0.0.1]:%s %s\n' "$PORT" "$(cut -d ' ' -f 1,2 ssh/host_key.pub)" >ssh/known_hosts
    try "cat ssh/authorized_keys"
}

# authorize [writing]: the key may read with rsync, and no more; or, for a restore, write too.
authorize() {
    local rrsync option restriction='restrict'
    option=$([ "${1:-}" = writing ] || echo '-ro ')
    if rrsync=$(command -v rrsync); then
        restriction="restrict,command=\"$rrsync $option/\""
    else
        note "rrsync is not installed: the key is not limited to reading with rsync"
    fi
    printf '%s %s\n' "$restriction" "$(cat ssh/id_ed25519.pub)" >ssh/authorized_keys
}

# sshd alone refuses an account whose password is locked with "!", as root's is where only sudo is used; PAM lets a key in.
needs_pam() { case $(getent shadow root | cut -d : -f 2) in '!'*) echo yes ;; *) echo no ;; esac; }

write_sshd_config() {
    cat >ssh/sshd_config <<END
ListenAddress 127.0.0.1
Port $PORT
HostKey $DEMO/ssh/host_key
AuthorizedKeysFile $DEMO/ssh/authorized_keys
PidFile $DEMO/ssh/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM $(needs_pam)
PrintMotd no
SetEnv BTRKEEP_DEMO=$DEMO HOME=$DEMO/ssh/home
END
}

start_sshd() {
    local round pid
    for round in {1..5}; do # a port may be taken between the choice and the bind
        PORT=$((20000 + RANDOM % 40000))
        write_sshd_config
        setsid /usr/sbin/sshd -D -f "$DEMO/ssh/sshd_config" -E "$DEMO/ssh/log" </dev/null >/dev/null 2>&1 &
        pid=$!
        for round in {1..100}; do
            # shellcheck disable=SC2188
            (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null && kill -0 "$pid" 2>/dev/null && return
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill "$pid" 2>/dev/null || true
    done
    fail "sshd did not start:"$'\n'"$(cat ssh/log)"
}

step_configuration() {
    mkdir -m 0750 state.d
    chgrp "$(id -g "$NOBODY")" state.d # the dashboard's group may read the catalogue
    tell "The configuration: two hosts, this machine and the shop."
    cat >demo.toml <<END
[pool]
path = "$DEMO/pool"
state = "$DEMO/state.d"

[ssh]
key = "$DEMO/ssh/id_ed25519"
known_hosts = "$DEMO/ssh/known_hosts"

[host.here]              # no address: this machine
paths = [$(printf '"%s", ' "${HERE[@]}" | sed 's/, $//')]

[host.shop]
address = "root@127.0.0.1"
port = $PORT
paths = ["$DEMO/shop"]
END
    try "cat demo.toml"
    tell "The filesystem becomes a pool."
    try "backupd --config demo.toml init pool"
}

step_check() {
    local status=0
    tell "Check everything. With --connect, every host too."
    attempt "backupd --config demo.toml check --connect" || status=$?
    case $status in
    0) ;;
    1) has_no_error || fail "check found an error" ;;
    *) fail "check ended with exit status $status" ;;
    esac
}

# Warnings are worth reading (Debian's rsync may be older than we like) and end no demonstration.
has_no_error() {
    backupd --config demo.toml check --connect --json | python -c '
import json, sys
sys.exit(any(finding["level"] == "error" for finding in json.load(sys.stdin)))'
}

step_first_night() {
    tell "The first night: both hosts are due."
    try "backupd --config demo.toml run"
    remember
}

step_change() {
    tell "A day in the shop: 1 MB in the middle of the database changes, a photo is renamed, one is deleted," \
        "and a new price breaks the hard link of the price list."
    try "dd if=/dev/urandom of=shop/orders.db bs=1M seek=32 count=1 conv=notrunc status=none"
    try "mv shop/photos/1.jpg shop/photos/teapot.jpg"
    try "rm shop/photos/2.jpg"
    try "sed -i 's/3.20/3.50/' shop/prices.txt"
}

step_second_night() {
    tell "The second night. No host is due again yet, so --all."
    try "backupd --config demo.toml run --all"
    remember
}

step_list() {
    tell "Every backup. NEW is the data that rsync wrote."
    try "backupd --config demo.toml list --all"
    tell "The state of every host, and rsync's messages."
    try "backupd --config demo.toml status"
    try "backupd --config demo.toml log"
}

step_sharing() {
    tell "btrfs itself reports how many bytes are exclusive to each backup."
    try "btrfs filesystem du -s --raw pool/hosts/*/2*Z"
    own_share_of shop
    own_share_of here
}

# Prints the exclusive part of a host's second backup, and fails unless it is below a tenth.
own_share_of() {
    local total exclusive share
    read -r total exclusive _ < <(btrfs filesystem du -s --raw pool/hosts/"$1"/2*Z | tail -n 1)
    share=$(awk -v own="$exclusive" -v all="$total" 'BEGIN { printf "%.1f", all ? 100 * own / all : 0 }')
    printf 'The second backup of %s has %s MiB, of which %s MiB are its own: %s %%\n' "$1" \
        "$(in_mib "$total")" "$(in_mib "$exclusive")" "$share"
    awk -v share="$share" 'BEGIN { exit share >= 10 }' || fail "the second backup of $1 shares too little with the first"
}

in_mib() { awk -v bytes="$1" -v mib=$MIB 'BEGIN { printf "%.1f", bytes / mib }'; }

step_first_night_again() {
    local first
    tell "Both nights are complete folders. The price of green tea, first night and second:"
    try "grep -h green pool/hosts/shop/2*Z/data$DEMO/shop/prices.txt"
    first=$(printf '%s\n' pool/hosts/shop/2*Z | head -n 1)
    tell "And every file of the first night is unchanged, by checksums recorded that evening."
    try "cd $first/data$DEMO/shop"
    cd "$first/data$DEMO/shop"
    try "sha256sum --check --quiet $DEMO/first-night.sha256 && echo identical"
    cd "$DEMO"
}

step_restore() {
    local first file=$DEMO/shop/prices.txt
    first=$(basename "$(printf '%s\n' pool/hosts/shop/2*Z | head -n 1)")
    tell "The shop needs its old prices again. The versions of the list:"
    try "backupd --config demo.toml versions shop $file"
    tell "Restore the version of the first night, to a new folder. Existing files are never overwritten without --overwrite."
    try "backupd --config demo.toml restore shop@$first $file --to prices-of-the-first-night"
    try "grep green prices-of-the-first-night/prices.txt"
    grep -q '3.20' prices-of-the-first-night/prices.txt || fail "that is not the first night's price"
    tell "Restore everything. Every file is read again and compared; the result shows the speed."
    try "backupd --config demo.toml restore shop@$first $DEMO/shop --to all-of-the-first-night"
    tell "Restore the deleted photo to the host itself. The key for the backups may only read, so here it may write for a moment."
    authorize writing
    try "backupd --config demo.toml restore shop@$first $DEMO/shop/photos/2.jpg --to-host"
    authorize
    (cd shop && grep ' ./photos/2.jpg$' ../first-night.sha256 | sha256sum --check --quiet) || fail "the photo has changed"
}

# A host whose files change all the time, and btrkeep-source on it. Its key's line stays: the program reads the shop too.
step_till() {
    local till
    tell "A till writes to its database all the time. Its host has a btrfs, so btrkeep-source there makes a snapshot for each backup." \
        "It is one file, and the only program that the key starts."
    try_quietly "truncate -s 512M till.img && mkfs.btrfs -q till.img"
    try "mkdir till && mount -o loop till.img till"
    write_till
    typed "python till.py sell till/sales.db &"
    setsid python till.py sell till/sales.db </dev/null >/dev/null 2>&1 &
    till=$!
    cp "$TOP/backupd/source/btrkeep_source.py" btrkeep-source
    printf 'restrict,command="%s" %s\n' "$DEMO/btrkeep-source --server demo --config $DEMO/source.conf --state $DEMO/source.d" \
        "$(cat ssh/id_ed25519.pub)" >ssh/authorized_keys
    try "cat ssh/authorized_keys"
    printf '\n[host.till]\naddress = "root@127.0.0.1"\nport = %s\npaths = ["%s"]\nsnapshots = "required"\n' "$PORT" "$DEMO/till" >>demo.toml
    try "tail -n 5 demo.toml"
    try "backupd --config demo.toml run till"
    try "backupd --config demo.toml browse till $DEMO/till"
    tell "The database in the backup is whole, and of that moment. The till has sold more since."
    try "cp -r pool/hosts/till/latest/data$DEMO/till till-in-the-backup && python till.py check till-in-the-backup/sales.db"
    try "python till.py check till/sales.db"
    kill "$till"
}

write_till() {
    cat >till.py <<'END'
import sqlite3, sys
what, file = sys.argv[1:]
till = sqlite3.connect(file, isolation_level=None, timeout=60)
if what == "sell":
    till.execute("CREATE TABLE booking (cents INTEGER, text TEXT)")
    while True:
        till.execute("BEGIN IMMEDIATE")
        till.execute("INSERT INTO booking VALUES (280, hex(randomblob(500)))")
        till.execute("INSERT INTO booking VALUES (-280, 'a black tea left the stock')")
        till.execute("COMMIT")
[[state]], [[bookings, total]] = till.execute("PRAGMA integrity_check"), till.execute("SELECT count(*), sum(cents) FROM booking")
print(f"integrity: {state}, {bookings // 2} sales, the books add up to {total} cents")
sys.exit(state != "ok" or total != 0)
END
}

# The rehearsal: 24 nights from a Monday on, with the clock set by --now.
WEEKS="backupd --config weeks.toml"
DAY_ONE=2026-10-12 NIGHTS=24
EVENING=2026-11-04T23:00:00Z NEXT_EVENING=2026-11-05T23:00:00Z

step_weeks() {
    tell "Weeks in seconds: a second pool, made with --rehearsal. On such a pool, --now sets the clock."
    try_quietly "truncate -s 1G weeks.img && mkfs.btrfs -q weeks.img"
    try "mkdir weeks diary && mount -o loop,noatime weeks.img weeks"
    cat >weeks.toml <<END
[pool]
path = "$DEMO/weeks"
state = "$DEMO/weeks-state.d"

[retention]
daily = 7
weekly = 3
monthly = 12

[host.diary]
paths = ["$DEMO/diary"]
END
    try "tail -n 7 weeks.toml"
    try "$WEEKS init --rehearsal weeks"
    tell "$NIGHTS nights, the first of them on Monday, $DAY_ONE. Each adds a page and a photo to a diary, and the state of the pool is recorded."
    try_quietly "for night in {0..$((NIGHTS - 1))}; do
    day=\$(date -u -d \"$DAY_ONE + \$night days\" +%F)
    echo \"\$day: all is well\" >>diary/pages.txt; head -c 3M /dev/urandom >diary/photo.jpg
    $WEEKS run --now \${day}T22:00:00Z && $WEEKS sample --now \${day}T22:05:00Z || exit
done"
    tell "The page of October 14th is worth keeping, whatever the rules say."
    try "$WEEKS hold diary \"\$(basename weeks/hosts/diary/2026-10-14T*)\" --why 'the day we moved' --now $EVENING"
}

step_strip() {
    tell "Which backups are kept, and why: a letter for each day, and the reasons for every backup."
    try "$WEEKS retention explain diary --now $EVENING"
}

step_expiry() {
    local status=0
    tell "Nothing has expired for weeks, so many backups would be deleted at once. That may be a mistake in the policy: a safety limit stops it."
    attempt "$WEEKS expire --dry-run --now $EVENING" || status=$?
    [ "$status" -eq 1 ] || fail "the safety limit should have ended this with exit status 1, not $status"
    tell "Here it is intended. Backups that no rule keeps are marked first, and can be restored for another day."
    try "$WEEKS expire --force diary --now $EVENING"
    tell "A day later they are deleted, with at most 100 subvolumes waiting for the kernel to drop them. A process still reads one of" \
        "them, so that one has to wait, as the monitor shows."
    quietly $WEEKS sample --now "${NEXT_EVENING/23:00/22:58}"
    read_on weeks/hosts/diary/2026-10-13T*/data"$DEMO"/diary/pages.txt
    try "$WEEKS expire --now $NEXT_EVENING"
    try "backupd progress --once --interval 0.2 weeks"
    typed "exec 9<&-"
    stop_reading
    try "btrfs filesystem sync weeks && backupd progress --once --interval 0.2 weeks"
}

# read_on FILE: keeps it open. Until stop_reading its filesystem cannot be unmounted.
read_on() {
    typed "exec 9<$1"
    exec 9<"$1"
}

stop_reading() { exec 9<&-; }

step_what_is_left() {
    tell "These backups are left: the last days, a few weeks, the first of the month, and the held one."
    try "$WEEKS retention explain diary --now $NEXT_EVENING | grep -m 2 '^2026-1.  '"
    try "btrfs subvolume list weeks | sed 's/.* path //'"
    try "tail -n 1 weeks/hosts/diary/2026-10-14T*/data$DEMO/diary/pages.txt"
}

step_trends() {
    local later=${NEXT_EVENING/23:00/23:03}
    tell "The trend of the pool over the weeks, from the sample of every night."
    quietly $WEEKS sample --now "$later"
    try "$WEEKS trend --days 30 --now $later"
    tell "And the last day: what the disk read and wrote, and which jobs ran."
    try "$WEEKS day --now $later"
}

# The second pool, which fetches from the one of the weeks and takes over from it.
COPY="backupd --config copy.toml"

step_second_copy() {
    tell "A fire destroys all backups of one server. So a second pool, on another disk or another server, fetches them."
    try_quietly "truncate -s 1G copy.img && mkfs.btrfs -q copy.img"
    try "mkdir copy && mount -o loop,noatime copy.img copy"
    cat >copy.toml <<END
[pool]
path = "$DEMO/copy"
state = "$DEMO/copy-state.d"

[replica.weeks]
from = "$DEMO/weeks"
END
    try "tail -n 2 copy.toml"
    try "$COPY init --rehearsal copy"
    try "$COPY replicate --now $NEXT_EVENING"
    tell "The copies equal the backups, by rsync's checksums; the hold was copied too."
    try "for backup in weeks/hosts/diary/2*Z; do rsync -naHAXc --itemize-changes --delete \$backup/data/ copy/hosts/diary/\$(basename \$backup)/data/; done | tee differences"
    [ ! -s differences ] || fail "a copy differs from its backup"
    try "$COPY list diary --now $NEXT_EVENING"
}

step_takeover() {
    local held newest
    tell "The first pool is lost, with its disk."
    try "umount weeks && rm weeks.img"
    ! grep -q hosts <(ls weeks) || fail "the first pool is still there"
    tell "The page of October 14th, from the second one:"
    held=$(basename "$(printf '%s\n' copy/hosts/diary/2026-10-14T*)")
    try "$COPY restore diary@$held $DEMO/diary/pages.txt --to page-from-the-copy"
    try "tail -n 1 page-from-the-copy/pages.txt"
    [ "$(tail -n 1 page-from-the-copy/pages.txt)" = "2026-10-14: all is well" ] || fail "that is not the page of October 14th"
    tell "And it takes over: the diary becomes its own host, and the next night transfers only the new page and photo."
    try "$COPY promote diary --yes --now $NEXT_EVENING"
    printf '\n[host.diary]\npaths = ["%s"]\n' "$DEMO/diary" >>copy.toml
    echo "${NEXT_EVENING%T*}: the first pool is gone" >>diary/pages.txt
    head -c 3M /dev/urandom >diary/photo.jpg
    try "$COPY run --now ${NEXT_EVENING/23:00/23:30}"
    newest=$(printf '%s\n' copy/hosts/diary/2*Z | tail -n 1)
    cmp -s diary/pages.txt "$newest/data$DEMO/diary/pages.txt" || fail "the second pool did not continue"
    try "$COPY list diary --now ${NEXT_EVENING/23:00/23:31} | tail -n 4"
}

step_damage() {
    local newest
    tell "Every file is read from the disk, and its checksum recorded. A timer does this each day."
    try "$COPY verify diary --now ${NEXT_EVENING/23:00/23:30}"
    tell "A disk may return wrong data. Here one byte of the photo changes on the disk; its size and times do not."
    try "umount copy"
    quietly python -c '
import mmap
with open("diary/photo.jpg", "rb") as photo, open("copy.img", "r+b") as disk, mmap.mmap(disk.fileno(), 0) as image:
    photo.seek(1 << 20)
    place = image.find(photo.read(4096))
    assert place > 0, "the photo is not on the disk"
    image[place] ^= 1'
    try "mount -o loop,noatime copy.img copy"
    tell "The next verification finds the photo, and names it with its backup."
    try "$COPY verify diary --now ${NEXT_EVENING/23:00/23:40} || [ \$? -eq 1 ]"
    newest=$(printf '%s\n' copy/hosts/diary/2*Z | tail -n 1)
    ! cat "$newest/data$DEMO/diary/photo.jpg" >/dev/null 2>&1 || fail "the photo can still be read"
    tell "rsync alone would keep it for ever. The next night fetches it again:"
    try "$COPY run diary --now ${NEXT_EVENING/23:00/23:50}"
    newest=$(printf '%s\n' copy/hosts/diary/2*Z | tail -n 1)
    try "$COPY verify diary@latest --now ${NEXT_EVENING/23:00/23:51}"
    cmp -s diary/photo.jpg "$newest/data$DEMO/diary/photo.jpg" || fail "the photo was not fetched again"
    tell "With that file the damaged backup is repaired too: in a copy beside it, because a backup never changes."
    try "$COPY repair diary --yes --now ${NEXT_EVENING/23:00/23:51}"
    for newest in copy/hosts/diary/2*Z; do
        ! grep -q '"repaired": {' "$newest/backup.json" || break
    done
    cmp -s diary/photo.jpg "$newest/data$DEMO/diary/photo.jpg" || fail "the photo was not repaired"
    tell "A drill, which a timer runs each week: a backup is restored, compared by rsync, and deleted."
    try "$COPY drill diary@latest --sample all --now ${NEXT_EVENING/23:00/23:52}"
}

step_old_history() {
    local day newest
    tell "btrkeep imports the history of rsnapshot. Here is a month of it, made of hard links as on any filesystem."
    mkdir -p attic/letters snapshots
    for day in {29..0}; do
        echo "a letter of the day $day before the last" >attic/letters/$day.txt
        head -c 100K /dev/urandom >attic/draft
        touch -d "$NEXT_EVENING - $((day + 1)) days" attic/draft attic/letters/$day.txt
        mkdir -p "snapshots/daily.$day/attic$DEMO"
        quietly rsync -a --link-dest="$DEMO/snapshots/daily.$((day + 1))/attic$DEMO/attic/" attic/ "snapshots/daily.$day/attic$DEMO/attic/"
        touch -d "$NEXT_EVENING - $((day + 1)) days" "snapshots/daily.$day"
    done 2>/dev/null
    try "du -sh snapshots/daily.{29,1,0}"
    try "$COPY import rsnapshot snapshots --now $NEXT_EVENING | tail -n 4"
    newest=$(printf '%s\n' copy/hosts/attic/2*Z | tail -n 1)
    [ -z "$(rsync -naHAXc -i --delete snapshots/daily.0/attic/ "$newest/data/")" ] || fail "the newest tree differs"
    [ "$(printf '%s\n' copy/hosts/attic/2*Z | wc -l)" -eq 30 ] || fail "not every day became a backup"
    try "$COPY versions attic $DEMO/attic/draft --now $NEXT_EVENING | tail -n 3"
}

step_doctor() {
    local status=0
    tell "The doctor reports problems of the pool, with the reason, the command and the risk."
    attempt "backupd --config demo.toml doctor" || status=$?
    [ "$status" -le 1 ] || fail "doctor ended with exit status $status"
}

step_fragments() {
    tell "Months of expiry leave holes everywhere. Here they are made in a moment: 3,200 files of 128 KiB, and every other one is deleted."
    try_quietly "mkdir pool/months && head -c 400M /dev/urandom | split -b 128K -a 4 -d - pool/months/ && btrfs filesystem sync pool"
    remember
    try_quietly "rm pool/months/*[13579] && btrfs filesystem sync pool"
    remember
    tell "The free space of every block group gets a score. For a block group of 1 GiB, a score above 250 is bad."
    try "btrfs-balancer score pool --top 3"
    before=$(score_of_pool)
}

score_of_pool() {
    btrfs-balancer score pool --json | python -c 'import json, sys; print(sum(one["score"] for one in json.load(sys.stdin)["block_groups"]))'
}

step_balance() {
    tell "Which block groups are worth balancing, and what would that cost?"
    try "btrfs-balancer plan pool --budget 512MiB"
    tell "One block group at a time is moved into larger free space; then the next one is chosen."
    try "btrfs-balancer run pool --config demo.toml --budget 512MiB"
    remember
    awk -v before="$before" -v after="$(score_of_pool)" 'BEGIN { exit after < before ? 0 : 1 }' || fail "the balance did not lower the score"
}

step_rehearse() {
    tell "Would another setting be better for this server? A temporary pool with similar hosts tests it."
    try "backupd --config demo.toml rehearse --variant configured --variant tight:compression=zstd:3,balance=usage:10% --days 2 --age 0 --seeds 1 --size 256MiB --on . --json >rehearsal.json"
    python - <<'END' || fail "the rehearsal did not compare the two settings"
import json
found = json.load(open("rehearsal.json"))
[judged] = found["judgements"]
for one in judged["measures"][:4]:
    print(f"{one['measure']:>10}: configured {one['first']:14,.0f}   tight {one['second']:14,.0f}")
print(*found["conclusion"], sep="\n")
assert len(found["runs"]) == 2
END
    note "With five seeds and more nights it reports which is better; --html FILE makes a page with charts."
}

step_pictures() {
    tell "The filesystem as a picture: each pixel is a piece of the disk, its colour the score."
    try "btrfs-heatmap --colour score --legend -o heatmap.png pool"
    tell "And how it developed: a state was recorded after every step."
    try "btrfs-heatmap timelapse states -o timelapse.gif --fps 2"
    leave_pictures
}

leave_pictures() {
    local folder=$DEMO-pictures
    if ! mkdir -m 0755 "$folder" 2>/dev/null; then
        note "$folder already exists and is not a demonstration's: the pictures are not kept there"
        return
    fi
    : >"$folder/by-btrkeep-demo"
    cp heatmap.png timelapse.gif "$folder/"
    note "Both pictures are kept in $folder"
}

# --- the dashboard

DASHBOARD='' DASHBOARD_PID='' PASSWORD='' NOBODY=nobody LOGINS=()

# The dashboard runs as an unprivileged user, like btrkeep on an installed server.
AS_NOBODY=(setpriv --reuid "$NOBODY" --regid "$(id -g "$NOBODY")" --clear-groups --no-new-privs)
CODE=(btrkeep backupd balancer heatmap web)
WEB=()

# web_runs CODE ENVIRONMENT: sets WEB, the words for btrkeep-web as that user; whether they work.
web_runs() {
    WEB=("${AS_NOBODY[@]}" env "PYTHONPATH=$1" "$2/bin/python" -m web)
    "${AS_NOBODY[@]}" test -w "$DEMO/web.d" 2>/dev/null && "${WEB[@]}" --version >/dev/null 2>&1
}

# Only the owner can read a checkout below a home of mode 0700, or made with a umask of 077: then the code is copied, and the
# environment mounted, for that user.
choose_web_user() {
    chown "$NOBODY" web.d
    web_runs "$TOP" "$VENV" && return
    note "$NOBODY cannot read $TOP, so that user gets a copy."
    mkdir -p -m 0755 code environment
    (cd "$TOP" && cp -r "${CODE[@]}" "$DEMO/code")
    chmod -R a+rX code
    mount --bind -o ro "$VENV" environment
    web_runs "$DEMO/code" "$DEMO/environment" && return
    note "$NOBODY cannot use $DEMO either, so the dashboard runs as root:"
    note "$("${WEB[@]}" --version 2>&1 | tail -n 1)"
    chown root web.d
    WEB=(env "PYTHONPATH=$TOP" "$VENV/bin/python" -m web)
}

step_dashboard() {
    local socket=$DEMO/serve.sock
    LOGINS=(--pool demo --users "$DEMO/users.d" --login "$DEMO/login.sock")
    tell "The dashboard. It runs as an unprivileged user and reads the catalogue; the root service does what needs root. A third process," \
        "the login service, has the users; the other two ask it."
    chmod 0711 . # that user passes through here
    mkdir -p -m 0700 web.d
    choose_web_user
    typed "btrkeep-web --pool demo --users users.d --login login.sock logins --allow $NOBODY &"
    mkdir -p -m 0700 users.d
    setsid btrkeep-web "${LOGINS[@]}" --state "$DEMO/state.d" logins --allow "$NOBODY" </dev/null >login.log 2>&1 &
    typed "backupd --config demo.toml serve --socket serve.sock --login login.sock --allow $NOBODY --no-systemd &"
    setsid backupd --config "$DEMO/demo.toml" serve --socket "$socket" --login "$DEMO/login.sock" --allow "$NOBODY" --no-systemd \
        </dev/null >serve.log 2>&1 &
    PASSWORD=$(od -An -N 9 -tx1 /dev/urandom | tr -d ' \n')
    typed "btrkeep-web user add demo --role operator"
    printf '%s\n%s\n' "$PASSWORD" "$PASSWORD" | btrkeep-web "${LOGINS[@]}" user add demo --role operator
    start_dashboard "$socket"
    look_at_pages
    note ""
    note "  address   $DASHBOARD"
    note "  name      demo"
    note "  password  $PASSWORD"
    note "  runs as   $(ps -o user= -p "$DASHBOARD_PID")"
}

# Until Ctrl-C, which ends the demonstration with exit status 0 here.
wait_for_reader() {
    [ -z "$NO_SERVE" ] && [ -z "$KEEP" ] && [ -t 0 ] || return 0
    tell "The dashboard runs until you press Ctrl-C here; from another machine: ssh -L 8765:${DASHBOARD#http://} this machine."
    trap 'exit 0' INT
    while answers "$DASHBOARD"; do sleep 1; done
    fail "the dashboard has ended:"$'\n'"$(tail -n 20 web.log)"
}

start_dashboard() {
    local round pid port
    for round in {1..5}; do # a port may be taken between the choice and the bind
        port=$([ "$round" -eq 1 ] && echo 8765 || echo $((20000 + RANDOM % 40000)))
        DASHBOARD=http://127.0.0.1:$port
        setsid "${WEB[@]}" --pool demo --state "$DEMO/state.d" --data "$DEMO/web.d" --socket "$1" --login "$DEMO/login.sock" \
            --listen "127.0.0.1:$port" \
            </dev/null >web.log 2>&1 &
        pid=$!
        for round in {1..150}; do
            kill -0 "$pid" 2>/dev/null || break
            grep -q 'the dashboard of' web.log && answers "$DASHBOARD" && DASHBOARD_PID=$pid && return # not another program's on that port
            sleep 0.1
        done
        kill "$pid" 2>/dev/null || true
    done
    fail "the dashboard did not start:"$'\n'"$(cat web.log)"
}

answers() { python -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/login", timeout=5)' "$1" 2>/dev/null; }

look_at_pages() {
    local newest top=${DEMO#/}
    newest=$(basename "$(readlink pool/hosts/shop/latest)")
    tell "Every page, with the data of this tour:"
    python "$TOP/scripts/look_at_pages.py" "$DASHBOARD" demo shop "/hosts=shop" "/hosts/shop=$newest" "/files/shop=${top%%/*}/" "/log=shop" \
        "/pool/balance=block group" "/jobs=balance" <<<"$PASSWORD" ||
        fail "the dashboard does not show what it should:"$'\n'"$(tail -n 20 web.log serve.log)"
}

# --- main -----------------------------------------------------------------------------------------------------------------------

KEEP='' CLEAN='' CHOSEN='' NO_SERVE=''
while [ "$#" -gt 0 ]; do
    case $1 in
    --keep) KEEP=yes ;;
    --clean) CLEAN=yes ;;
    --no-serve) NO_SERVE=yes ;;
    --in)
        [ -d "${2:-}" ] || fail "--in needs a folder that exists"
        CHOSEN=$(readlink -f "$2")
        shift
        ;;
    -h | --help)
        usage
        exit
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
    shift
done
if [ -n "$CHOSEN" ]; then
    [[ $CHOSEN =~ ^[A-Za-z0-9/._-]+$ ]] || fail "--in $CHOSEN: only letters, digits and / . _ - are allowed"
    PLACES=("${CHOSEN%/}")
fi

export LC_ALL=C.UTF-8
see_that_it_can_work
clear_leftovers
[ -z "$CLEAN" ] || exit 0
need_apt
need_venv
trap 'stopped 130' INT
trap 'stopped 143' TERM
trap 'stopped 129' HUP
trap at_the_end EXIT
SECONDS=0
claim_place
export BTRKEEP_DEMO=$DEMO
export PATH=$VENV/bin:$PATH
cd "$DEMO"

tell "Two nights of backups, then weeks of them. Everything happens below one folder:"
typed "cd $DEMO"
for step in "${TOUR[@]}"; do
    "step_$step"
done
tell "That was the tour: two nights and $NIGHTS more, a balance, its pictures and the dashboard, in $SECONDS s."
wait_for_reader
