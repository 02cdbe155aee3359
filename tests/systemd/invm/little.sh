# In a virtual machine: five commands within so little memory that the kernel ends them, and what is left of the pools then.
. ./ground.sh
mkfs.btrfs -q /dev/vdc
mkfs.btrfs -q /dev/vdd
mount /dev/vdc /srv
mount /dev/vdd /mnt
mkdir -p /srv/old
configure '
[ssh]
command = "/payload/fakessh"
[backup]
attempts = 1
[retention]
daily = 3
min_keep = 1
grace = "1s"
[host.web]
address = "root@web"
paths = ["/srv/source/web"]
[host.db]
address = "root@db"
paths = ["/srv/source/db"]
[host.here]
paths = ["/srv/source/here"]
[host.old]
paths = ["/srv/source/old"]
enabled = false
'
printf '[pool]\npath = "/mnt/second"\n[replica.first]\nfrom = "/srv/backup"\n' >/etc/btrkeep/second.toml
backupd --pool second init /mnt/second >/dev/null
for pool in main second; do backupd --pool "$pool" list >/dev/null; done
number=0

# change FOLDER...: another version of each, noted.
change() {
    number=$((number + 1))
    python3 truth.py change "$number" "$@"
}

# kills: how many processes the kernel has ended in a control group.
kills() { journalctl -k -o cat | grep -c 'Memory cgroup out of memory: Killed process' || true; }

# within MIB COMMAND...: runs it in a unit with that limit; its exit status, and how many the kernel has ended, are in $status, $ended.
within() {
    local limit=$1 before
    shift
    before=$(kills)
    status=0
    systemd-run --quiet --wait --collect -p "MemoryMax=${limit}M" -p MemorySwapMax=0 -p OOMPolicy=continue \
        -p StandardOutput=file:/run/out -p StandardError=file:/run/out "$@" || status=$?
    ended=$(($(kills) - before))
}

# starved NAME COMMAND...: with four limits that come nearer and nearer to what it takes, then without one. What the
# function before_NAME does comes before each; truth.py has the words of look_NAME.
starved() {
    local name=$1 low=4 high=64 limit options
    shift
    for _ in 1 2 3 4; do
        limit=$(((low + high) / 2))
        "before_$name"
        within "$limit" "$@"
        echo "$name within $limit: status $status, ended $ended"
        [ "$ended" -gt 0 ] && low=$limit || high=$limit
        # shellcheck disable=SC2086
        python3 truth.py look ${look[$name]:-}
    done
    "before_$name"
    within 1000 "$@"
    echo "$name with enough: status $status"
    [ "$status" = 0 ] || cat /run/out
    options=$(findmnt -n -o OPTIONS /srv /mnt | tr '\n' ' ')
    [ "$options" = "$mounted" ] || echo "wrong: mounted $options in the place of $mounted"
    # shellcheck disable=SC2086
    python3 truth.py look ${look[$name]:-}
}
declare -A look=([expire]="old 3")
mounted=$(findmnt -n -o OPTIONS /srv /mnt | tr '\n' ' ')

before_run() { change /srv/source/web /srv/source/db /srv/source/here; }
starved run /usr/local/sbin/backupd run web db here

# Two trees more each time: what an import that was ended has left goes on.
trees=0
before_import() {
    python3 truth.py trees "$trees" /srv/old
    trees=$((trees + 2))
}
starved import /usr/local/sbin/backupd import tree /srv/old --host old

before_verify() { :; }
starved verify /usr/local/sbin/backupd verify

before_replicate() { change /srv/source/web; backupd run web >/dev/null; }
starved replicate /usr/local/sbin/backupd --pool second replicate

# Three of ten are kept; the others go one by one.
before_expire() { :; }
starved expire /usr/local/sbin/backupd expire old --limit 1 --force old

echo "left $(find /srv/backup/hosts/old -maxdepth 1 -name '2*' | wc -l)"
for name in web db here; do echo "latest $name $(find "/srv/backup/hosts/$name/latest/data/srv/source/$name/version" -exec cat {} +)"; done
for pool in main second; do
    backupd --pool "$pool" list --json >/run/list
    python3 - "$pool" <<'P'
import json, pathlib, sqlite3, sys
top = {"main": "/srv/backup", "second": "/mnt/second"}[sys.argv[1]]
there = sorted(str(path.relative_to(top)) for path in pathlib.Path(top).glob("hosts/*/2*"))
state, = pathlib.Path("/var/lib/btrkeep").glob(f"**/{sys.argv[1]}*/**/catalogue.sqlite")
with sqlite3.connect(state) as catalogue:
    known = sorted(path for (path,) in catalogue.execute("select path from backup"))
    print(sys.argv[1], "catalogue", catalogue.execute("pragma integrity_check").fetchone()[0], "equal" if known == there else (known, there))
P
done
pgrep -a rsync || echo "no rsync is left"
echo "ends"
