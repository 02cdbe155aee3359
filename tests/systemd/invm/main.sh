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
until_true 120 ended balance
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
