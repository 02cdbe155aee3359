#!/bin/bash
# sudo ./install.sh [--enable POOL]... [--web POOL]... [--rebuild] [--no-packages] [--offline] [--wheels DIR] [--dry-run]
#      | --fetch-wheels DIR | --uninstall [--dry-run] | --help
#
# Installs btrkeep on this machine, or upgrades it. Every step is a function named step_NAME, listed in STEPS.
#
# /opt/btrkeep/current is a link to the running version in /opt/btrkeep/versions. A new version is built beside the old one, under its
# final name (a virtual environment cannot be moved), and tested; then one rename replaces the link. Until then the old version is
# unchanged. A running backup continues with the version that started it.
#
# All files elsewhere are listed in /opt/btrkeep/installed: an upgrade removes those that the new version no longer has, and
# --uninstall removes all of them and nothing else.
set -euo pipefail
TOP=$(dirname "$(readlink -f "$0")")
CALLED_IN=$PWD
cd "$TOP"
# shellcheck source=scripts/ground.sh
. scripts/ground.sh

STEPS=(packages version programs units manuals source documents completion swap system catalogues daemons old configuration timers)
PROGRAMS=(backupd btrfs-balancer btrfs-heatmap btrkeep-web)
SOURCES=(setup.py pyproject.toml btrkeep backupd heatmap balancer web docs)
HOME_FOLDER=/opt/btrkeep
VERSIONS=$HOME_FOLDER/versions
CURRENT=$HOME_FOLDER/current
LISTED=$HOME_FOLDER/installed
LOCK_FILE=$HOME_FOLDER/.lock
SHELLS=(bash zsh fish)
CONFIGURATIONS=/etc/btrkeep
BIN=/usr/local/sbin
LIB=/usr/local/lib
SHARE=/usr/local/share
DOCUMENTS=$SHARE/doc/btrkeep

usage() {
    cat <<END
usage: sudo ./install.sh [options]

Installs btrkeep: Debian packages, the programs in /opt/btrkeep with links in
/usr/local/sbin, systemd units, manual pages, the documentation, completion for
bash, zsh and fish, and an example of /etc/btrkeep/main.toml when there is no
configuration. Run it again to upgrade. Nothing runs automatically without --enable.

  --enable POOL   start the timers of the pool POOL, now and at every boot,
                  and listen for the dashboard
  --web POOL      start the dashboard of the pool POOL, now and at every boot
  --rebuild       build again even if this version is installed
  --no-packages   install no Debian packages (they are already installed, or this is
                  not Debian)
  --wheels DIR    take the Python packages from the folder DIR, not from the network
  --offline       use no network; missing packages are listed, and nothing is changed
  --fetch-wheels DIR
                  only fill the folder DIR for --wheels, on a machine with a network
                  and the same release of Python; needs no root
  --uninstall     remove all but backups, catalogues and configuration
  --dry-run       print the changes, and change nothing
  --help          this text
END
}

# --- messages and actions -------------------------------------------------------------------------------------------------------

note() { printf '%s\n' "$*"; }

# fail REASON [HINT]
fail() {
    say "install.sh: $1"
    [ -z "${2:-}" ] || say "hint: $2"
    exit 1
}

# wrong REASON: wrong usage.
wrong() {
    say "install.sh: $1"
    say "hint: ./install.sh --help"
    exit 2
}

# act WORDS...: runs the command, or prints it in a dry run.
act() {
    if [ -n "$DRY_RUN" ]; then
        printf 'would run: %s\n' "$*"
    else
        "$@"
    fi
}

# attention WORDS: a problem that stops nothing; the exit status is 1 then.
STATUS=0
attention() {
    say "attention: $*"
    STATUS=1
}

has_systemd() { [ -d /run/systemd/system ]; }

# --- installed files ------------------------------------------------------------------------------------------------------------

FROM=() PUT=() # files of this version and their destinations; a program has no file, it becomes a link

was_put() { grep -qxF "$1" "$LISTED" 2>/dev/null; }

# Refuses to overwrite a file that install.sh did not install.
see_ours() {
    [ ! -e "$1" ] && [ ! -L "$1" ] && return
    was_put "$1" || [[ $(readlink "$1") == "$HOME_FOLDER"/* ]] || fail "$1 already exists, and install.sh did not install it" "move it away, then run this again"
}

# put FILE TARGET: installs FILE as TARGET when the new version is activated.
put() {
    see_ours "$2"
    FROM+=("$1")
    PUT+=("$2")
}

# write_file FILE TARGET
write_file() {
    if cmp -s "$1" "$2"; then
        return
    fi
    if [ -n "$DRY_RUN" ]; then
        note "would write: $2"
        return
    fi
    mkdir -p "$(dirname "$2")"
    install -m "$([ -x "$1" ] && echo 0755 || echo 0644)" "$1" "$2.new"
    mv -T "$2.new" "$2"
}

write_files() {
    local number
    for number in "${!PUT[@]}"; do
        [ -z "${FROM[number]}" ] || write_file "${FROM[number]}" "${PUT[number]}"
    done
}

# link TARGET NAME: NAME becomes a symbolic link to TARGET, in one step.
link() {
    [ "$(readlink "$2")" != "$1" ] || return 0
    if [ -n "$DRY_RUN" ]; then
        note "would link: $2 -> $1"
        return
    fi
    mkdir -p "$(dirname "$2")"
    ln -sfT "$1" "$2.new"
    mv -T "$2.new" "$2"
}

write_list() {
    local list
    list=$(printf '%s\n' "${PUT[@]}" | sort -u)
    [ "$list" != "$(cat "$LISTED" 2>/dev/null)" ] || return 0
    printf '%s\n' "$list" >"$LISTED.new"
    mv -T "$LISTED.new" "$LISTED"
}

# Files of the previous version that this one no longer has.
remove_what_is_no_more() {
    local path
    [ -e "$LISTED" ] || return 0
    while read -r path; do
        [[ " ${PUT[*]} " == *" $path "* ]] || act rm -f "$path"
    done <"$LISTED"
}

# --- this machine ---------------------------------------------------------------------------------------------------------------

release() { (. /etc/os-release 2>/dev/null && printf '%s\n' "${!1:-}") || true; }

see_the_machine() {
    local debian
    debian=$(release ID)-$(release VERSION_ID)
    [ -n "$DRY_RUN" ] || [ "$(id -u)" -eq 0 ] || fail "install.sh must run as root" "sudo ./install.sh, or --dry-run to see what it would do"
    case $debian in
    debian-12 | debian-13) ;;
    *)
        [ -n "$NO_PACKAGES" ] || command -v apt-get >/dev/null || fail "this is $(release PRETTY_NAME), which has no apt-get; install.sh supports Debian 12 and 13" \
            "install rsync, btrfs-progs, ssh and Python 3.11 or later with venv, then run this with --no-packages"
        say "this is $(release PRETTY_NAME): install.sh is tested on Debian 12 and 13 only"
        ;;
    esac
}

# Two at once would overwrite each other's files.
lock() {
    [ -z "$DRY_RUN" ] || return 0
    mkdir -p "$HOME_FOLDER"
    # Not the folder itself: any user who may read it could lock it.
    (umask 077 && : >>"$LOCK_FILE")
    exec {LOCK}<"$LOCK_FILE"
    flock -n "$LOCK" || fail "another install.sh is running" "wait until it ends, then run this again"
}

# --- steps ----------------------------------------------------------------------------------------------------------------------

step_packages() {
    [ -z "$NO_PACKAGES" ] || return 0
    local -a missing
    mapfile -t missing < <(missing_packages "${RUN_PACKAGES[@]}")
    [ "${#missing[@]}" -gt 0 ] || return 0
    if [ -n "$DRY_RUN" ]; then
        note "would install: ${missing[*]}"
        return
    fi
    need_apt run || fail "these packages could not be installed: ${missing[*]}" "check the network, and that \`apt-get update\` succeeds. Nothing else was changed"
}

# Without a network, all packages must be here before anything is changed.
see_what_is_missing() {
    local -a debian=() python=()
    [ -z "$WHEELS" ] || [ -d "$WHEELS" ] || fail "the folder $WHEELS does not exist" "fill it on a machine with a network and the same release of Python: ./install.sh --fetch-wheels DIR"
    [ -z "$OFFLINE" ] || [ -n "$NO_PACKAGES" ] || mapfile -t debian < <(missing_packages "${RUN_PACKAGES[@]}")
    mapfile -t python < <(missing_wheels)
    [ "${#debian[@]}" -eq 0 ] || say "missing, Debian packages: ${debian[*]}"
    [ "${#python[@]}" -eq 0 ] || say "missing, Python packages${WHEELS:+ in $WHEELS}: ${python[*]}"
    [ "${#debian[@]}${#python[@]}" = 00 ] || fail "packages are missing for an installation${OFFLINE:+ without network}; nothing was changed" \
        "Python packages: ./install.sh --fetch-wheels DIR on a machine with a network and the same release of Python, then --wheels DIR here"
}

# The pinned packages without a file in $WHEELS. The files are checked when they are installed. A package may be pinned more than once,
# for several releases of Python: one of them is enough here.
missing_wheels() {
    local name version
    local -A found=()
    shopt -s nocaseglob
    while read -r name version; do
        [ "${found[$name]:-}" = here ] || found[$name]="missing $name"
        [ -z "$WHEELS" ] || ! compgen -G "$WHEELS/${name//-/[-_.]}-$version"'[-.]*' >/dev/null || found[$name]=here
    done < <(sed -n 's/^\([a-z0-9._-]*\)==\([^ ]*\).*/\1 \2/p' scripts/requirements/{build,install,documentation}.txt)
    shopt -u nocaseglob
    printf '%s\n' "${found[@]}" | sed -n 's/^missing //p' | sort
}

# All files for --wheels, for this machine's release of Python.
fetch_wheels() {
    local python work lock log
    python=$(ground_python) || fail "found no Python 3.11 or later to fetch for" "give its path: PYTHON=/path/to/python"
    mkdir -p "$FETCH" || fail "could not create the folder $FETCH"
    work=$(mktemp -d)
    UNFINISHED=$work log=$work/log
    trap at_the_end EXIT
    note "fetching into $FETCH"
    if ! { "$python" -m venv "$work/venv" && pip_locked "$work/venv/bin/python" install build &&
        for lock in build install documentation; do
            pip_locked "$work/venv/bin/python" download "$lock" --dest "$FETCH" || exit
        done; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        fail "could not fetch all packages" "check the network, and the package index in pip's configuration"
    fi
    note "fetched for $("$python" -V), $(uname -m). Copy the folder to the machine, then: sudo ./install.sh --offline --wheels DIR"
}

# A checksum of the interpreter and every file of a version.
fingerprint() {
    { "$1" -VV; find "${SOURCES[@]}" scripts/requirements -type f ! -name '*.pyc' ! -path 'docs/_build/*' -print0 | sort -z | xargs -0 sha256sum; } | sha256sum | cut -d ' ' -f 1
}

# Whether the version in the folder $1 works at all.
works() {
    local program
    for program in "${PROGRAMS[@]}"; do
        [ ! -e "$1/bin/$program" ] || "$1/bin/$program" --help >/dev/null 2>&1 || return 1
    done
    [ -e "$1/bin/backupd" ]
}

# In a dry run: whether the packages would install Python.
comes_with_packages() { [ -n "$DRY_RUN" ] && [ -z "$NO_PACKAGES" ] && [ -n "$(missing_packages python3-venv)" ]; }

step_version() {
    local python made_from stamp
    if ! python=$(ground_python 2>/dev/null) && ! comes_with_packages; then
        fail "found no Python 3.11 or later to build with" "give its path: PYTHON=/path/to/python"
    fi
    made_from=$(fingerprint "${python:-true}")
    if [ -z "$REBUILD" ] && [ "$(cat "$CURRENT/made-from" 2>/dev/null)" = "$made_from" ] && works "$CURRENT"; then
        NEW=$(readlink -f "$CURRENT")
        note "btrkeep is up to date: $NEW"
        return
    fi
    stamp=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' btrkeep/__init__.py)-$(date -u +%Y%m%dT%H%M%SZ)
    if [ -n "$DRY_RUN" ]; then
        NEW=$VERSIONS/$stamp
        note "would build: $NEW"
        return
    fi
    build "$python" "$VERSIONS/$stamp"
    printf '%s\n' "$made_from" >"$NEW/made-from"
}

# build PYTHON FOLDER: makes and tests a virtual environment with btrkeep. A failed build is removed at the end.
build() {
    local log program
    note "building $2"
    NEW=$2 UNFINISHED=$2
    mkdir -p "$2/source"
    log=$2/log
    cp -R "${SOURCES[@]}" "$2/source" # pip builds in the given folder, and would reuse the remains of an earlier build
    git -c safe.directory="*" rev-parse --short=12 HEAD >"$2/source/btrkeep/commit.txt" 2>/dev/null || rm -f "$2/source/btrkeep/commit.txt"
    rm -rf "$2"/source/build "$2"/source/docs/_build "$2"/source/*.egg-info
    "$1" -m venv "$2" >"$log" 2>&1 || build_failed "could not create the virtual environment" "apt-get install python3-venv"
    { install_locked "$2/bin/python" install "${FROM_WHEELS[@]}" &&
        "$2/bin/python" -I -m pip install --no-input --disable-pip-version-check --no-deps --no-build-isolation --use-pep517 "$2/source" </dev/null; } >"$log" 2>&1 ||
        build_failed "pip could not install btrkeep and its libraries" "$(hint_for_pip)"
    cp scripts/requirements/sbom.cdx.json "$2"
    works "$2" || build_failed "the new version does not run" "please report it"
    for program in "${PROGRAMS[@]}"; do
        [ ! -e "$2/bin/$program" ] || make_completion "$2" "$program"
    done
    make_documents "$2" "$log"
    rm -rf "$2/source" "$log"
}

# A package that differs from the pinned one is refused: an attacker may have changed it, or a mirror may have built it again.
hint_for_pip() {
    if [ -n "$WHEELS" ]; then
        echo "fill the folder again, on a machine with a network and the same release of Python: ./install.sh --fetch-wheels $(printf %q "$WHEELS")"
    elif grep -q 'DO NOT MATCH THE HASHES' "$NEW/log"; then
        echo "a package differs from the one that scripts/requirements pins: ask the operator of the package index in pip's configuration"
    else
        echo "check the network, and the package index in pip's configuration; --wheels installs without a network"
    fi
}

# make_documents FOLDER LOG: the pages as HTML. Sphinx is removed afterwards. If it fails, the source text is installed.
make_documents() {
    note "building the documentation"
    if ! { install_locked "$1/bin/python" documentation --target "$1/sphinx" "${FROM_WHEELS[@]}" &&
        PYTHONPATH=$1/sphinx "$1/bin/python" -P -m sphinx -q -b html -d "$1/sphinx/trees" "$1/source/docs" "$1/doc"; } >"$2" 2>&1; then
        attention "could not make HTML of the documentation, so it is installed as text: $(tail -n 1 "$2")"
        rm -rf "$1/doc"
        cp -R "$1/source/docs" "$1/doc"
    fi
    rm -rf "$1/sphinx"
}

# make_completion FOLDER PROGRAM: the program's own output for each shell; a program without that command has none.
make_completion() {
    local shell
    mkdir -p "$1/completion"
    for shell in "${SHELLS[@]}"; do
        "$1/bin/$2" completion "$shell" >"$1/completion/$2.$shell" 2>/dev/null || rm -f "$1/completion/$2.$shell"
    done
}

build_failed() {
    tail -n 15 "$NEW/log" >&2
    if [ -e "$CURRENT" ]; then
        fail "$1; the installed version is unchanged" "$2"
    fi
    fail "$1" "$2"
}

# A link for each of the programs that setup.py defines.
step_programs() {
    local program
    for program in "${PROGRAMS[@]}"; do
        if grep -q "\"$program = " setup.py; then
            put '' "$BIN/$program"
            LINKS+=("$program")
        fi
    done
}

# The target of a file of systemd/; empty if it is not installed. Units of the administrator, in /etc, take precedence.
place_of() {
    case $1 in
    *sysusers.d/*.conf) echo "$LIB/sysusers.d/${1##*/}" ;;
    *tmpfiles.d/*.conf) echo "$LIB/tmpfiles.d/${1##*/}" ;;
    *.rules) echo "$LIB/udev/rules.d/${1##*/}" ;;
    *.service | *.timer | *.slice | *.target | *.socket | *.path) echo "$LIB/systemd/system/${1##*/}" ;;
    esac
}

step_units() {
    local file place
    while read -r file; do
        place=$(place_of "$file")
        [ -z "$place" ] || put "$file" "$place"
    done < <(find systemd -path systemd/host -prune -o -type f -print | sort)
}

step_manuals() {
    local file
    for file in man/*.[1-8]; do
        put "$file" "$SHARE/man/man${file##*.}/${file##*/}"
    done
}

# The files for hosts. Nothing uses them on this machine.
step_source() {
    put backupd/source/btrkeep_source.py "$SHARE/btrkeep/btrkeep-source"
    put backupd/source/completion.bash "$SHARE/btrkeep/btrkeep-source.bash"
    put systemd/host/btrkeep-call@.service "$SHARE/btrkeep/btrkeep-call@.service"
    put systemd/host/btrkeep-call@.timer "$SHARE/btrkeep/btrkeep-call@.timer"
}

step_documents() { put '' "$DOCUMENTS"; } # a link, for each version has its own

place_of_completion() {
    case $2 in
    bash) echo "$SHARE/bash-completion/completions/$1" ;;
    zsh) echo "$SHARE/zsh/site-functions/_$1" ;;
    fish) echo "$SHARE/fish/vendor_completions.d/$1.fish" ;;
    esac
}

step_completion() {
    local program shell made
    for program in "${LINKS[@]}"; do
        for shell in "${SHELLS[@]}"; do
            made=$NEW/completion/$program.$shell
            if [ -e "$made" ] || [ ! -d "$NEW" ]; then # not built in a dry run
                put "$made" "$(place_of_completion "$program" "$shell")"
            fi
        done
    done
}

# From here on the new version is the installed one.
step_swap() {
    local program
    link "${NEW#"$HOME_FOLDER/"}" "$CURRENT"
    UNFINISHED=''
    link current/bin "$HOME_FOLDER/bin"
    link "$CURRENT/doc" "$DOCUMENTS"
    for program in "${LINKS[@]}"; do
        link "$HOME_FOLDER/bin/$program" "$BIN/$program"
    done
    write_files
    remove_what_is_no_more
    [ -n "$DRY_RUN" ] || write_list
}

step_system() {
    local path
    for path in "${PUT[@]}"; do
        case $path in
        */sysusers.d/*) ! command -v systemd-sysusers >/dev/null || act systemd-sysusers "$path" ;;
        */tmpfiles.d/*) ! command -v systemd-tmpfiles >/dev/null || act systemd-tmpfiles --create "$path" || attention "systemd-tmpfiles could not create all of $path" ;;
        esac
    done
    has_systemd || return 0
    act systemctl daemon-reload
    [[ "${PUT[*]}" != *.rules* ]] || act udevadm control --reload
}

# Pools are configured by NAME.toml.
pools() {
    local file
    for file in "$CONFIGURATIONS"/*.toml; do
        [ ! -e "$file" ] || basename "$file" .toml
    done
}

# A catalogue is migrated when it is opened, and a copy of the old one stays beside it. Better now than at night. This also publishes
# the current configuration for the dashboard.
step_catalogues() {
    local pool output
    [ -z "$DRY_RUN" ] || return 0
    while read -r pool; do
        if ! output=$("$CURRENT/bin/python" -I -c "$OPEN_CATALOGUE" "$pool" "${WEB[@]}" 2>&1); then
            attention "could not migrate the catalogue of $pool: $(tail -n 1 <<<"$output")"
        elif [ -n "$output" ]; then
            note "$output"
        fi
    done < <(pools)
}
OPEN_CATALOGUE='
import sys
from btrkeep.catalogue import Catalogue
from btrkeep.cli.output import print_commands_as, with_calls
from btrkeep.config import load, renew_state_link, publish
from btrkeep.errors import OperatorError
name, *shown = sys.argv[1:]
print_commands_as("backupd", f"backupd --pool {name}")
try:
    config = load(name)
    state = config.pool.state
    if (state / "catalogue.sqlite").exists() or name in shown:
        before = {*state.glob("catalogue.sqlite.before-*")}
        with Catalogue.open(state) as catalogue:
            publish(config, catalogue)
        renew_state_link(config)
        for copy in sorted({*state.glob("catalogue.sqlite.before-*")} - before):
            print(f"migrated the catalogue of {name}; the previous one: {copy}")
except OperatorError as error:
    sys.exit(with_calls(f"{error.message} ({error.hint})" if error.hint else error.message))
'

# Daemons are units that are wanted at boot. Jobs of timers run to their end with the version that started them. The root service is
# stopped: the next request to its socket starts the new one. The catalogues are migrated before: a dashboard reads its settings there,
# once.
step_daemons() {
    local unit
    has_systemd || return 0
    act systemctl stop --quiet 'btrkeep-serve@*.service' || attention "could not stop the old btrkeep-serve@: systemctl status 'btrkeep-serve@*'"
    act systemctl stop --quiet 'btrkeep-login@*.service' || attention "could not stop the old btrkeep-login@: systemctl status 'btrkeep-login@*'"
    while read -r unit; do
        unit=${unit##*/}
        act systemctl try-restart "${unit/@./@*.}" || attention "$unit did not start again: systemctl status '${unit/@./@*.}'"
    done < <(find systemd -name '*.service' -exec grep -l '^WantedBy=' {} +)
}

# Processes that run a program from the folder $1, found by the path of their interpreter.
processes_from() {
    local folder word
    for folder in /proc/[0-9]*; do
        IFS= read -r -d '' word 2>/dev/null <"$folder/cmdline" || continue
        [[ $word != "$1"/* ]] || printf '%s\n' "${folder#/proc/}"
    done
}

# Removes versions without running processes, daemons included.
step_old() {
    local folder
    for folder in "$VERSIONS"/*/; do
        folder=${folder%/}
        if [ ! -d "$folder" ] || [ "$folder" = "$(readlink -f "$CURRENT")" ]; then
            continue
        elif [ -n "$(processes_from "$folder")" ]; then
            note "$folder is still in use; the next install.sh removes it"
        else
            act rm -rf "$folder"
        fi
    done
}

step_configuration() {
    local example=$CONFIGURATIONS/main.toml
    [ -z "$(pools)" ] || return 0
    if [ -n "$DRY_RUN" ]; then
        note "would write: $example, an example"
        return
    fi
    mkdir -p "$CONFIGURATIONS"
    "$CURRENT/bin/python" -I -c 'from btrkeep.config import example; print(example(), end="")' >"$example.new"
    chmod 0600 "$example.new" # passwords for alarms may be added
    mv -nT "$example.new" "$example"
    note "wrote an example configuration: $example"
}

timers() { find systemd -maxdepth 1 \( -name 'btrkeep-*@.timer' -o -name 'btrkeep-*@.socket' \) -printf '%f\n' | sort; }

step_timers() {
    local pool timer
    local -a now=()
    ! has_systemd || now=(--now) # without a running systemd they start at the next boot
    for pool in "${ENABLE[@]}"; do
        while read -r timer; do
            act systemctl enable --quiet "${now[@]}" "${timer/@./@$pool.}" || attention "${timer/@./@$pool.} could not be enabled"
        done < <(timers)
    done
    for pool in "${WEB[@]}"; do
        act systemctl enable --quiet "${now[@]}" "btrkeep-serve@$pool.socket" || attention "btrkeep-serve@$pool.socket could not be enabled"
        act systemctl enable --quiet "${now[@]}" "btrkeep-login@$pool.socket" || attention "btrkeep-login@$pool.socket could not be enabled"
        act systemctl enable --quiet "${now[@]}" "btrkeep-web@$pool.service" || no_dashboard "$pool"
    done
}

# Prints the unit's own error, such as a port that is in use.
no_dashboard() {
    local reason
    SILENT+=("$1")
    reason=$(journalctl --quiet --boot --output cat --unit "btrkeep-web@$1.service" --identifier btrkeep-web --lines 2 2>/dev/null) || true
    attention "btrkeep-web@$1.service does not start${reason:+:
$reason}"
}

# Checks, before anything is changed, that the pools are configured.
see_pools() {
    local pool
    [ "${#ENABLE[@]}" -eq 0 ] || command -v systemctl >/dev/null || fail "--enable needs systemd, which is not installed" "let cron run \`backupd run\`"
    [ "${#WEB[@]}" -eq 0 ] || command -v systemctl >/dev/null || fail "--web needs systemd, which is not installed" "start \`btrkeep-web\` in another way"
    for pool in "${ENABLE[@]}" "${WEB[@]}"; do
        [[ $pool =~ ^[A-Za-z0-9_][A-Za-z0-9._-]*$ ]] || wrong "--enable, --web: $pool is not a valid pool name"
        [ -e "$CONFIGURATIONS/$pool.toml" ] || fail "the pool $pool is not configured: $CONFIGURATIONS/$pool.toml is missing" "install without --enable and --web, run \`backupd --pool $pool setup\`, then this again"
    done
}

# --- uninstalling ---------------------------------------------------------------------------------------------------------------

uninstall() {
    local path pids
    [ -e "$LISTED" ] || [ -d "$VERSIONS" ] || fail "btrkeep was not installed by install.sh: $LISTED does not exist"
    ! has_systemd || act systemctl stop 'btrkeep-web@*.service' btrkeep-{serve,login}@'*'.{socket,service} # they only answer
    mapfile -t pids < <(processes_from "$HOME_FOLDER")
    [ "${#pids[@]}" -eq 0 ] || [ -n "$DRY_RUN" ] || fail "btrkeep is running (process ${pids[*]})" "wait for its end, or stop it with systemctl or kill; then run this again"
    disable_units
    if [ -e "$LISTED" ]; then
        while read -r path; do
            act rm -f "$path"
        done <"$LISTED"
    fi
    remove_empty_folders
    act rm -rf "$VERSIONS" "$CURRENT" "$LISTED" "$HOME_FOLDER/bin" "$LOCK_FILE" "$CURRENT.new" "$LISTED.new" "$HOME_FOLDER/bin.new"
    [ -n "$DRY_RUN" ] || rmdir "$HOME_FOLDER" 2>/dev/null || true # it may have a pool or a catalogue
    act rm -rf /var/lib/systemd/timers/stamp-btrkeep-*
    ! has_systemd || act systemctl daemon-reload
    ! has_systemd || act systemctl reset-failed 'btrkeep-*'
    ! has_systemd || act systemctl stop btrkeep.slice # nothing is in it any more
    list_kept_files
}

# Timers first, so that nothing starts during the removal. Without a running systemd only their links are removed.
disable_units() {
    local file unit
    local -a now=()
    ! has_systemd || now=(--now)
    for file in /etc/systemd/system/*.wants/btrkeep-*; do
        [ -L "$file" ] || continue
        unit=${file##*/}
        if command -v systemctl >/dev/null; then
            act systemctl disable --quiet "${now[@]}" "$unit" || attention "$unit could not be disabled"
        else
            act rm -f "$file"
        fi
    done
}

# Folders that only btrkeep needed, if they are empty.
remove_empty_folders() {
    local folder
    [ -z "$DRY_RUN" ] || return 0
    for folder in "$LIB"/{systemd/system,systemd,sysusers.d,tmpfiles.d,udev/rules.d,udev} \
        "$SHARE"/{bash-completion/completions,bash-completion,fish/vendor_completions.d,fish,zsh/site-functions,zsh,man/man1,man/man5,man/man8,btrkeep,doc}; do
        rmdir "$folder" 2>/dev/null || true
    done
    find /run/btrkeep -depth -type d -empty -delete 2>/dev/null || true
}

list_kept_files() {
    local path
    if [ -n "$DRY_RUN" ]; then
        note "would be kept:"
    else
        note "btrkeep is removed. Kept:"
    fi
    for path in "$CONFIGURATIONS" /var/lib/btrkeep /var/lib/btrkeep-web /var/lib/btrkeep-login; do
        [ ! -e "$path" ] || note "  $path"
    done
    [ -n "$DRY_RUN" ] || [ ! -e "$HOME_FOLDER" ] || note "  $HOME_FOLDER, because it has other files"
    note "  the pools with their backups, the Debian packages (${RUN_PACKAGES[*]})"
    [ -z "$(getent passwd btrkeep)" ] || note "  the user btrkeep"
    [ -z "$(getent passwd btrkeep-login)" ] || note "  the user btrkeep-login"
}

# --- all of it ------------------------------------------------------------------------------------------------------------------

print_next_steps() {
    [ -z "$DRY_RUN" ] || return 0
    note "btrkeep is installed: $("$BIN/backupd" --version)"
    [ "${#ENABLE[@]}" -eq 0 ] || [ "$STATUS" -ne 0 ] || ! has_systemd || note "The timers are on: systemctl list-timers 'btrkeep-*'"
    print_dashboard_address
    print_disabled_timers
    [ "${#ENABLE[@]}" -eq 0 ] && ! compgen -G "/etc/systemd/system/*.wants/btrkeep-*" >/dev/null || return 0
    note "To start: backupd setup"
    note "The documentation: $DOCUMENTS/index.html, man backupd, man btrkeep.toml"
    [ -z "$(timers)" ] || note "To enable the timers after that: sudo $(printf %q "$TOP/install.sh") --enable main"
}

# Configured pools without timers, as after uninstalling and installing again.
print_disabled_timers() {
    local file pool
    [ -n "$(timers)" ] || return 0
    for file in "$CONFIGURATIONS"/*.toml; do
        pool=${file##*/} pool=${pool%.toml}
        grep -qsE '^[[:space:]]*\[(host|replica)\.' "$file" "$CONFIGURATIONS/$pool.d"/*.toml || continue
        [ ! -L "/etc/systemd/system/timers.target.wants/btrkeep-backup@$pool.timer" ] || continue
        note "The timers of the configured pool $pool are off: sudo $(printf %q "$TOP/install.sh") --enable $pool"
    done
}

# A new dashboard has no users.
print_dashboard_address() {
    local pool
    for pool in "${WEB[@]}"; do
        [[ " ${SILENT[*]} " != *" $pool "* ]] || continue
        note "The dashboard of $pool: http://$(where_it_listens "$pool")"
        note "To add a user: sudo btrkeep-web --pool $pool user add NAME --role operator"
    done
    [ "${#WEB[@]}" -ne 0 ] || [ "${#ENABLE[@]}" -eq 0 ] || note "The dashboard: sudo $(printf %q "$TOP/install.sh") --web ${ENABLE[0]}"
}

where_it_listens() {
    "$CURRENT/bin/python" -I -c 'import sys; from btrkeep.config import load; print(load(sys.argv[1]).web.listen)' "$1" 2>/dev/null || echo 127.0.0.1:8765
}

at_the_end() {
    local status=$?
    [ -z "$UNFINISHED" ] || rm -rf "$UNFINISHED"
    [ "$status" -ne 0 ] || status=$STATUS
    exit "$status"
}

ENABLE=() WEB=() SILENT=() LINKS=() DRY_RUN='' REBUILD='' NO_PACKAGES='' UNINSTALL='' NEW='' UNFINISHED=''
OFFLINE='' WHEELS='' FETCH='' FROM_WHEELS=()

# folder OPTION DIR: as a full path, relative to the caller's folder.
folder() {
    [ -n "${2:-}" ] || wrong "$1 needs a folder"
    (cd "$CALLED_IN" && readlink -m -- "$2")
}

while [ $# -gt 0 ]; do
    case $1 in
    --enable)
        [ $# -gt 1 ] || wrong "--enable needs the name of a pool"
        ENABLE+=("$2")
        shift
        ;;
    --enable=*) ENABLE+=("${1#*=}") ;;
    --web)
        [ $# -gt 1 ] || wrong "--web needs the name of a pool"
        WEB+=("$2")
        shift
        ;;
    --web=*) WEB+=("${1#*=}") ;;
    --rebuild) REBUILD=yes ;;
    --no-packages) NO_PACKAGES=yes ;;
    --wheels | --fetch-wheels)
        DIR=$(folder "$1" "${2:-}")
        if [ "$1" = --wheels ]; then WHEELS=$DIR; else FETCH=$DIR; fi
        shift
        ;;
    --wheels=*) WHEELS=$(folder --wheels "${1#*=}") ;;
    --fetch-wheels=*) FETCH=$(folder --fetch-wheels "${1#*=}") ;;
    --offline) OFFLINE=yes ;;
    --uninstall) UNINSTALL=yes ;;
    --dry-run) DRY_RUN=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) wrong "unknown option $1" ;;
    esac
    shift
done
[ -z "$UNINSTALL" ] || [ -z "${ENABLE[*]}${WEB[*]}$REBUILD$NO_PACKAGES$OFFLINE$WHEELS$FETCH" ] || wrong "--uninstall takes no other option but --dry-run"
[ -z "$FETCH" ] || [ -z "${ENABLE[*]}${WEB[*]}$REBUILD$NO_PACKAGES$OFFLINE$WHEELS$DRY_RUN" ] || wrong "--fetch-wheels takes no other option"
[ -z "$WHEELS" ] || FROM_WHEELS=(--no-index -f "$WHEELS")

umask 022
unset PYTHONPATH PYTHONHOME
if [ -n "$FETCH" ]; then
    fetch_wheels
    exit
fi
see_the_machine
[ -z "$WHEELS$OFFLINE" ] || see_what_is_missing
lock
trap at_the_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [ -n "$UNINSTALL" ]; then
    uninstall
    exit
fi
see_pools
for step in "${STEPS[@]}"; do
    "step_$step"
done
print_next_steps
