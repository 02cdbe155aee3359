# In a virtual machine: suspended to memory in the middle of a transfer. What stands behind "asleep" is when it is woken, by whoever
# reads this.
. ./ground.sh
mkfs.btrfs -q /dev/vdc 2>/dev/null
mount -o nossd /dev/vdc /srv
mkdir -p /srv/web
configure '
[ssh]
command = "/payload/fakessh"
[backup]
attempts = 1
[host.web]
address = "root@web"
paths = ["/srv/web"]
window = "22:00-06:00"
bandwidth = "200kB"
'
mounted=$(findmnt -n -o OPTIONS /srv)

# asleep UNTIL: says what the kernel's clocks have counted meanwhile, in seconds: all, and those in which it was awake.
asleep() {
    python3 - "$1" <<'P'
import os, sys, time
boot, awake = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
os.write(1, f"asleep {sys.argv[1]}\n".encode())
with open("/sys/power/state", "w") as file:
    file.write("mem")
print(f"slept {time.clock_gettime(time.CLOCK_BOOTTIME) - boot:.0f} awake {time.monotonic() - awake:.0f} at {time.strftime('%F %H')}")
P
}

# change: another version of the source, of which nothing is in the one before.
change() { head -c 4000000 /dev/urandom >/srv/web/large && head -c 1000 /dev/urandom >/srv/web/small; }
comes() { [ -n "$(find /srv/backup/hosts -path '*/web/*' -name '*large*' -newer /run/begun -size +200k)" ]; }
begin() {
    touch /run/begun
    backupd run --json >/run/out 2>/run/err &
    until_true 300 comes
}

# ended NAME: how the run that was begun has ended, how long after the machine woke, and what it left.
ended() {
    local since=$SECONDS status=0
    wait %1 || status=$?
    python3 - "$1" "$status" $((SECONDS - since)) <<'P'
import json, sys
(one,) = json.load(open("/run/out"))
print("run", *sys.argv[1:], one["outcome"], one["error"])
P
    left "$1"
}

# left NAME: what is left that should not be: processes, locks that are held, another mount option.
left() {
    local options
    pgrep -af 'rsync|bwrap|backupd|btrfs receive|fakessh' | sed "s/^/wrong: $1: /" || true
    for lock in /srv/backup/.btrkeep/locks/*; do flock --nonblock "$lock" true || echo "wrong: $1: $lock is held"; done
    options=$(findmnt -n -o OPTIONS /srv)
    [ "$options" = "$mounted" ] || echo "wrong: $1: $options instead of $mounted"
}

sums() { (cd "$1" && find . -type f -exec sha256sum {} + | sort); }
# next NAME: the run after that one, on a line that is not slow, is complete and equal to its source.
next() {
    sed -i '/^bandwidth/d' /etc/btrkeep/main.toml
    backupd run --json >/run/out
    sed -i 's/^window.*/&\nbandwidth = "200kB"/' /etc/btrkeep/main.toml
    [ "$(sums /srv/web)" = "$(sums /srv/backup/hosts/web/latest/data/srv/web)" ] || echo "wrong: $1: not equal"
    echo "next $1 $(python3 -c 'import json; print(json.load(open("/run/out"))[0]["outcome"])')"
    left "next $1"
}

# --- within its window a sleep is none of a transfer's business; one that ends after it is
change
begin
asleep 2026-11-20T22:20:00
sleep 6
kill -0 %1 && echo "it goes on"
asleep 2026-11-21T07:00:00
ended morning
asleep 2026-11-21T22:00:00
next morning

echo ends
