#!/bin/bash
# sudo scripts/unit_as_user.sh [pytest arguments]
#
# The tests of `./test.sh --unit` at the commit HEAD as the user nobody, without the programs that btrkeep can do without. It needs
# the virtual environment that ./test.sh makes. What is left out because a program is not installed counts as left out, in CI too.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
# shellcheck source=scripts/ground.sh
. scripts/ground.sh
unset CI
umask 022 # else nobody could use the layers and the clone

# What stays: rsync, an ssh client, and what a Debian has that nobody chose: coreutils, util-linux, findutils, procps, systemd's own.
WITHOUT=("${DEV_PACKAGES[@]}" bubblewrap btrfs-progs openssh-server acl attr e2fsprogs libcap2-bin sqlite3)

# In a mount namespace of its own: the environment is mounted into the user's clone, and both are gone with the last process.
if [ "${1:-}" != --inside ]; then
    top=$(mktemp -d /var/tmp/btrkeep-unit-XXXXXX)
    trap 'rm -rf --one-file-system "$top"' EXIT
    status=0
    unshare --mount --propagation private -- scripts/unit_as_user.sh --inside "$top" "$@" || status=$?
    exit "$status"
fi
top=$2
shift 2

# Those programs are not there, for this namespace: deleted in a layer over their folders.
mkdir "$top/layers"
mount -t tmpfs -o mode=755 tmpfs "$top/layers"
mapfile -t hidden < <(dpkg -L "${WITHOUT[@]}" 2>/dev/null | sed -n 's|^.*/s\?bin/\([^/]*\)$|\1|p')
for folder in /usr/bin /usr/sbin; do
    layer=$top/layers/${folder##*/}
    mkdir -p "$layer/files" "$layer/work"
    mount -t overlay -o "lowerdir=$folder,upperdir=$layer/files,workdir=$layer/work" overlay "$folder"
    (cd "$folder" && rm -f -- "${hidden[@]}")
done
if command -v btrfs >&2; then
    say "it is still there: these tests would prove less than they say"
    exit 1
fi

# A checkout in a home, as developers have it.
tree=$top/home/developer/btrkeep
mkdir -p "${tree%/*}"
git config --file "$top/gitconfig" safe.directory '*' # the checkout may be another user's; a clone passes no -c on
GIT_CONFIG_GLOBAL=$top/gitconfig git clone --quiet --no-hardlinks . "$tree"
mkdir "$tree/.venv"
chmod 755 "$top"
chown -R nobody: "$top/home"
mount --bind -o ro "$VENV" "$tree/.venv"
mount --rbind "$top/home" /home
cd "/home/developer/btrkeep"
exec setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups --bounding-set=-all --inh-caps=-all -- \
    env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin HOME=/home/developer LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    .venv/bin/python -m pytest --unit -n "$(nproc)" --dist worksteal "$@"
