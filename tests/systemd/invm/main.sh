# In a virtual machine: a clock that leaps over a night, a limit of memory, disks that a hook must not read.
. ./ground.sh
mkfs.btrfs -q /dev/vdc
mount /dev/vdc /srv
mkdir -p /srv/source
echo one >/srv/source/file
mknod /srv/source/unknown c 511 7
mknod /srv/source/disk b 254 0
configure '
[host.here]
paths = ["/srv/source"]
before = ["/payload/hook"]
[retention]
daily = 1
min_keep = 1
'
cat >hook <<'H'
#!/bin/sh
dd if=/dev/vda of=/dev/null bs=512 count=1 2>/dev/null && echo "the hook reads disks" || echo "the hook reads no disk"
head -c 1 /dev/zero >/dev/null && echo "the hook reads zeros"
H
sed -i 's|^dd|exec >/payload/hook-said\ndd|' hook
chmod +x hook

# --- the clock: from 21:00 to noon of the next day, with the timers as they are installed but for their delay
for job in backup expire balance heatmap; do
    mkdir -p "/run/systemd/system/btrkeep-$job@.timer.d"
    printf '[Timer]\nRandomizedDelaySec=0\nAccuracySec=10ms\n' >"/run/systemd/system/btrkeep-$job@.timer.d/test.conf"
done
systemctl daemon-reload
systemctl start btrkeep-{backup,expire,balance,heatmap}@main.timer
sleep 2
for job in backup expire balance heatmap; do is "btrkeep-$job@main.service" ExecMainStartTimestampMonotonic 0 && echo "$job waits"; done
date -s '2026-11-21 12:00:00 UTC' >/dev/null
ended() { ! is "btrkeep-$1@main.service" ExecMainExitTimestampMonotonic 0; }
until_true 900 ended balance
for job in backup expire balance; do
    echo "$job $(systemctl show "btrkeep-$job@main.service" -p Result -p ExecMainStartTimestampMonotonic -p ExecMainExitTimestampMonotonic --value | tr '\n' ' ')"
done
is btrkeep-heatmap@main.service ExecMainStartTimestampMonotonic 0 && echo "heatmap waits for 18:00"
cat hook-said
stat -c 'node %n %t:%T %F' /srv/backup/hosts/here/latest/data/srv/source/{unknown,disk}

# --- memory: a picture has what it needs, and one that would take too much is ended
attempt btrkeep-heatmap@main.service
echo "heatmap $(systemctl show btrkeep-heatmap@main.service -p Result --value), limit $(systemctl show btrkeep-heatmap@main.service -p MemoryMax --value)"
mkdir -p /run/systemd/system/btrkeep-heatmap@.service.d
printf '[Service]\nMemoryMax=12M\nMemorySwapMax=0\n' >/run/systemd/system/btrkeep-heatmap@.service.d/test.conf
systemctl daemon-reload
systemctl start btrkeep-heatmap@main.service || true
echo "with little memory $(systemctl show btrkeep-heatmap@main.service -p Result --value)"

# --- memory: rsync takes too much for the list of one host; the others go on, and with more memory that host is complete
mkdir -p /srv/{large,small}
echo one >/srv/small/file
python3 - <<'P'
for number in range(40000):
    open(f"/srv/large/{number:0250}", "w").close()
P
cat >>/etc/btrkeep/main.toml <<'C'
[backup]
attempts = 1
concurrency = 1
[ssh]
command = "/payload/fakessh"
[host.large]
address = "root@large"
paths = ["/srv/large"]
[host.small]
address = "root@small"
paths = ["/srv/small"]
[host.smaller]
address = "root@smaller"
paths = ["/srv/small"]
C
mkdir -p /run/systemd/system/btrkeep-backup@.service.d
printf '[Service]\nMemoryMax=46M\nMemorySwapMax=0\nExecStart=\nExecStart=/usr/local/sbin/backupd --pool %%i run large small smaller\n' \
    >/run/systemd/system/btrkeep-backup@.service.d/test.conf
systemctl daemon-reload
systemctl reset-failed
systemctl start btrkeep-backup@main.service || true
echo "with a long list $(systemctl show btrkeep-backup@main.service -p Result --value), kills $(journalctl -k -o cat | grep -c 'Memory cgroup out of memory.*rsync')"
states() { for host in large small smaller; do echo "$1 $host $(backupd status "$host" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["hosts"][0]["state"])') $(ls "/srv/backup/hosts/$host" | grep -c ^2)"; done; }
states little
journalctl --no-pager -o cat -u btrkeep-backup@main.service | tail -n 12
sed -i '/^Memory/d' /run/systemd/system/btrkeep-backup@.service.d/test.conf
systemctl daemon-reload
attempt btrkeep-backup@main.service
states enough
names() { ls -f "$1" | sort | sha256sum; }
[ "$(names /srv/large)" = "$(names /srv/backup/hosts/large/latest/data/srv/large)" ] && echo "the long list is whole"
