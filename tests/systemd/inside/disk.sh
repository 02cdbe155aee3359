# A disk at home, as docs/second-copy.rst has it: what PAGE prints was typed as it stands there.
. ./ground.sh
configure '
[host.self]
paths = ["/home/data"]
'
mkdir -p /home/data /mnt/disk /etc/systemd/system-generators
echo one >/home/data/one
# shellcheck disable=SC2046 # two numbers
mknod /dev/disk b $(cat disk-numbers)
echo '/dev/disk /mnt/disk btrfs noauto,nofail 0 0' >>/etc/fstab
# What systemd's own generator makes of that line; in a container it leaves devices out.
cat >/etc/systemd/system-generators/disk-of-fstab <<'END'
#!/bin/sh
printf '[Unit]\nSourcePath=/etc/fstab\n[Mount]\nWhat=/dev/disk\nWhere=/mnt/disk\nType=btrfs\nOptions=noauto,nofail\n' >"$1/mnt-disk.mount"
END
chmod +x /etc/systemd/system-generators/disk-of-fstab
systemctl daemon-reload
attempt btrkeep-backup@main.service

cp page-disk.toml /etc/btrkeep/disk.toml
bash -euxc "$(cat page-make)"
bash -euxc "$(cat page-mount)"
backupd --pool disk replicate
umount /mnt/disk
copies() { [ "$(find /mnt/disk/pool/hosts/self -maxdepth 1 -name '2*' | wc -l)" = "$1" ]; }
is_done() { is btrkeep-replicate@disk.service ActiveState inactive; }
ended() { copies "$1" && is_done; }
sed -i '/^from = /a every = "1s"' /etc/btrkeep/disk.toml # a day in the life of a disk

# It is mounted by hand.
echo two >/home/data/two
backupd run --all >/dev/null
mount /mnt/disk
until_true 40 ended 2
cat "$(find /mnt/disk/pool/hosts/self -maxdepth 1 -name '2*' | sort | tail -n 1)/data/home/data/two" >by-hand
backupd retention explain self >explained
umount /mnt/disk

# And by systemd, as an automount does it.
echo three >/home/data/three
backupd run --all >/dev/null
systemctl start mnt-disk.mount
until_true 40 ended 3
cat "$(find /mnt/disk/pool/hosts/self -maxdepth 1 -name '2*' | sort | tail -n 1)/data/home/data/three" >by-systemd
show btrkeep-replicate@disk.service Result >unit
systemctl stop mnt-disk.mount
