#!/bin/bash
# sudo scripts/unit_as_user.sh [pytest arguments]
#
# Runs the tests of `./test.sh --unit` at the commit HEAD as the user nobody, without the optional programs. It needs the virtual
# environment that ./test.sh makes. A test that needs a missing program counts as left out, in CI too.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
# shellcheck source=scripts/ground.sh
. scripts/ground.sh
unset CI
umask 022 # otherwise the user nobody could not use the layers and the clone

# The packages to hide. rsync, an ssh client and the packages of each Debian remain: coreutils, util-linux, findutils, procps, systemd.
WITHOUT=("${DEV_PACKAGES[@]}" bubblewrap btrfs-progs openssh-server acl attr e2fsprogs libcap2-bin sqlite3)

# In a separate mount namespace: the environment is mounted into the user's clone, and all mounts end with the last process.
if [ "${1:-}" != --inside ]; then
    top=$(mktemp -d /var/tmp/btrkeep-unit-XXXXXX)
    trap 'rm -rf --one-file-system "$top"' EXIT
    status=0
    unshare --mount --propagation private -- scripts/unit_as_user.sh --inside "$top" "$@" || status=$?
    exit "$status"
fi
top=$2
shift 2

# Hides those programs in this namespace: they are deleted in a layer over their folders.
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
    say "the program btrfs could not be hidden: the tests would not show how btrkeep works without it"
    exit 1
fi

# A checkout in a home folder, as developers have it.
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
