# What every script that runs in a booted machine begins with. The pool's filesystem is at /srv.
# shellcheck shell=bash
export NO_COLOR=1

# configure TEXT: a pool at /srv/backup, as the documentation says, with TEXT behind its [pool].
configure() {
    mkdir -p /etc/btrkeep
    printf '[pool]\npath = "/srv/backup"\n%s\n' "$1" >/etc/btrkeep/main.toml
    backupd init /srv/backup >/dev/null
}

# show UNIT [PROPERTY...]: NAME=VALUE lines.
show() {
    local unit=$1
    shift
    systemctl show "$unit" "${@/#/--property=}"
}

# is UNIT PROPERTY VALUE
is() {
    [ "$(systemctl show "$1" --property="$2" --value)" = "$3" ]
}

# until_true SECONDS COMMAND...: waits; the script ends when it does not come true.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || { echo "not true in time: $*"; systemctl list-jobs; journalctl --no-pager -n 60 -u 'btrkeep-*'; return 1; }
        sleep 0.1
    done
}

# attempt UNIT: starts it and says how it ended; what it said stands in the journal.
attempt() {
    systemctl start "$1" || { echo "$1 failed"; journalctl --no-pager -o cat -u "$1"; return 1; }
}
