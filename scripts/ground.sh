# Shared by install.sh, test.sh and demo.sh: Debian packages and a virtual environment. To be sourced by bash, from the top folder.
#
#   need_apt [dev|run] installs the missing packages of PACKAGES, with "dev" also those of DEV_PACKAGES, with "run" only those of
#                      RUN_PACKAGES (as root; other users get a list of the missing packages, and the script continues)
#   need_venv [dev]    makes .venv, or makes it again after a change of setup.py or pyproject.toml; "dev" adds the tools for development
#   VENV               the environment's folder
#
# shellcheck shell=bash

# The packages that the programs need, the demonstration in addition, and only the tests. No other file lists packages.
RUN_PACKAGES=(rsync bubblewrap btrfs-progs openssh-client python3-venv util-linux mount)
PACKAGES=("${RUN_PACKAGES[@]}" openssh-server acl attr e2fsprogs libcap2-bin procps sqlite3 git)
DEV_PACKAGES=(btrfs-heatmap chromium curl fuse3 groff-base jq libnbd-bin man-db mariadb-client mariadb-server-core mmdebstrap nbdkit nftables patch postgresql prometheus rclone restic rsnapshot shellcheck systemd-container unzip)

GROUND_TOP=$PWD
VENV=$GROUND_TOP/.venv

say() { printf '%s\n' "$*" >&2; }

missing_packages() {
    local name
    for name in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || printf '%s\n' "$name"
    done
}

# apt_get WORDS...: asks nothing, waits for another apt that holds the lock, and never reads our standard input.
apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null >&2
}

# Fetches the package lists only if an installation without them fails, because that takes longer than most installations.
install_packages() {
    apt_get install -y --no-install-recommends "$@" 2>/dev/null && return
    apt_get update
    apt_get install -y --no-install-recommends "$@"
}

need_apt() {
    local -a wanted=("${PACKAGES[@]}") missing
    local log
    case ${1:-} in
    dev) wanted+=("${DEV_PACKAGES[@]}") ;;
    run) wanted=("${RUN_PACKAGES[@]}") ;;
    esac
    mapfile -t missing < <(missing_packages "${wanted[@]}")
    [ "${#missing[@]}" -eq 0 ] && return
    if ! command -v apt-get >/dev/null; then
        say "not installed (no apt-get), continuing without: ${missing[*]}"
        return
    fi
    if [ "$(id -u)" -ne 0 ]; then
        say "not installed, continuing without: ${missing[*]} (as root: apt-get install ${missing[*]})"
        return
    fi
    say "installing: ${missing[*]}"
    # Only the programs of PostgreSQL are needed: without this setting, Debian's package creates a cluster and starts its server.
    if [[ " ${missing[*]} " == *" postgresql "* ]] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        printf 'create_main_cluster = false\n' >/etc/postgresql-common/createcluster.conf
        say "PostgreSQL is installed for its programs: no cluster is created (/etc/postgresql-common/createcluster.conf)"
    fi
    log=$(mktemp)
    if ! install_packages "${missing[@]}" >"$log" 2>&1; then # its output is long, and shown only if it fails
        cat "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
    # Only the program promtool is needed, not the server.
    if [[ " ${missing[*]} " == *" prometheus "* ]] && [ -d /run/systemd/system ]; then
        systemctl disable --now --quiet prometheus.service 2>/dev/null || true
    fi
    # Only the program sshd is needed, not a server that listens on this machine.
    if [[ " ${missing[*]} " == *" openssh-server "* ]] && [ -d /run/systemd/system ]; then
        systemctl disable --now --quiet ssh.service ssh.socket 2>/dev/null || true
        say "openssh-server was installed for its program; its service is off (to enable it: systemctl enable --now ssh)"
    fi
}

# The interpreter: Debian's, if it is new enough; PYTHON=... chooses another.
ground_python() {
    local candidate
    for candidate in "${PYTHON:-}" /usr/bin/python3 python3; do
        [ -n "$candidate" ] || continue
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$candidate" && return
    done
    say "found no Python 3.11 or later; give its path: PYTHON=/path/to/python"
    return 1
}

# A checksum of the path, the interpreter and the files that define the environment.
ground_fingerprint() {
    { printf '%s\n' "$VENV" "$("$1" -VV)"; cat setup.py pyproject.toml btrkeep/__init__.py scripts/requirements/*.txt; } | sha256sum | cut -d ' ' -f 1
}

venv_is_current() {
    [ "$(cat "$VENV/made-from" 2>/dev/null)" = "$1" ] && { [ -z "$2" ] || [ -e "$VENV/made-for-$2" ]; }
}

# pip_locked PYTHON install|download LOCK [OPTIONS...]: the packages that scripts/requirements/LOCK.txt pins, each checked against its SHA-256.
pip_locked() {
    "$1" -I -m pip "$2" --quiet --disable-pip-version-check --no-input --require-hashes --no-deps --use-pep517 --no-build-isolation \
        -r "scripts/requirements/$3.txt" "${@:4}" </dev/null
}

# install_locked PYTHON LOCK [OPTIONS...]: installs them, after the tools that build packages from source.
install_locked() {
    pip_locked "$1" install build "${@:3}" && pip_locked "$1" install "$2" "${@:3}"
}

make_venv() {
    local python=$1 fingerprint=$2 extra=$3
    say "making the virtual environment .venv${extra:+ with the tools for development}"
    if [ "$(cat "$VENV/made-from" 2>/dev/null)" != "$fingerprint" ]; then
        rm -rf "$VENV"
        "$python" -m venv "$VENV"
    fi
    install_locked "$VENV/bin/python" "$([ -n "$extra" ] && echo development || echo install)" >&2
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation --use-pep517 -e . </dev/null >&2
    [ -z "$extra" ] || : >"$VENV/made-for-$extra"
    printf '%s\n' "$fingerprint" >"$VENV/made-from"
}

need_venv() {
    local extra=${1:-} python fingerprint lock
    python=$(ground_python)
    fingerprint=$(ground_fingerprint "$python")
    venv_is_current "$fingerprint" "$extra" && return
    exec {lock}<"$GROUND_TOP"       # a second process waits, and then finds it complete
    flock "$lock"
    # Readable for all users, whatever the umask is, because unprivileged processes use it, too.
    venv_is_current "$fingerprint" "$extra" || (umask 022 && make_venv "$python" "$fingerprint" "$extra")
    exec {lock}<&-
}
