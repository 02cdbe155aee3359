#!/bin/bash
# vm_image.sh MACHINE FOLDER: what a virtual machine boots (tests/beds/vm.py): FOLDER/root.img, vmlinuz and initrd.img.
#
# MACHINE is the folder of tests/beds/machine.py. The image has 1.5 GB and takes two minutes. Needs root and Debian's cpio. Whatever
# boots it unpacks the tar that is its second disk, runs ./install and ./main.sh in there, and prints what they say to its second
# serial port; the last line is "status N". With START=/sbin/payload among the words for the kernel there is no systemd, which is
# most of a boot.
set -euo pipefail
tree=$2/tree kernel='' number=10 # so that the modules sort in order
mkdir -p "$2"
cd "$2"

# The machine's folder with a kernel of its own: Debian's smallest, in which ext4 is built in and virtio are modules.
cp -a "$1" "$tree"
mkdir -p "$tree/etc/initramfs-tools/conf.d"
unshare --mount --propagation private --pid --fork --kill-child bash -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    chroot "$1" bash -euc "export DEBIAN_FRONTEND=noninteractive INITRD=No; apt-get -qq update
        apt-get -qq install -y --no-install-recommends linux-image-cloud-amd64 udev busybox-static dmsetup lvm2 thin-provisioning-tools xfsprogs" </dev/null
' - "$tree" >apt.log 2>&1 || { tail -20 apt.log; exit 1; }
cp "$tree"/boot/vmlinuz-* vmlinuz
kernel=$(ls "$tree/usr/lib/modules")
printf '/dev/vda / ext4 defaults,noatime 0 0\n' >"$tree/etc/fstab"
printf 'btrfs\n' >"$tree/etc/modules-load.d/btrkeep.conf"
printf 'vm\n' >"$tree/etc/hostname"
cat >"$tree/etc/systemd/system/payload.service" <<'U'
[Unit]
After=basic.target dbus.service
Wants=dbus.service
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
StandardOutput=file:/dev/ttyS1
StandardError=inherit
TimeoutStartSec=infinity
ExecStart=/sbin/payload
U
cat >"$tree/sbin/payload" <<'P'
#!/bin/bash
alone() { [ $$ -eq 1 ]; }
if alone; then
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
    exec >/dev/ttyS1 2>&1 </dev/null
    stty -F /dev/ttyS1 -opost
    for point in /run /tmp; do mount -t tmpfs tmpfs "$point"; done
    ln -s /proc/self/fd /dev/fd
    modprobe btrfs
fi
mkdir -p /payload && tar -xf /dev/vdb -C /payload && cd /payload && ./install && bash -eu ./main.sh
echo "status $?"
sync
! alone || echo o >/proc/sysrq-trigger
! alone || sleep infinity
P
chmod +x "$tree/sbin/payload"
mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
ln -sf ../payload.service "$tree/etc/systemd/system/multi-user.target.wants/"

mkdir -p initrd/{bin,modules,proc,sys,dev,root}
cp "$tree/bin/busybox" initrd/bin/
ln -s busybox initrd/bin/sh
for module in $(for name in virtio_pci virtio_blk; do
    chroot "$tree" modprobe -S "$kernel" --show-depends "$name"
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}'); do
    number=$((number + 1))
    cp "$tree$module" "initrd/modules/$number-${module##*/}"
done
cat >initrd/init <<'I'
#!/bin/sh
b=/bin/busybox
$b mount -t proc p /proc; $b mount -t devtmpfs d /dev; $b mount -t sysfs s /sys
for module in /modules/*; do $b insmod "$module"; done
n=0; while [ ! -b /dev/vda ] && [ $n -lt 50 ]; do $b sleep 0.1; n=$((n + 1)); done
$b mount -o rw,noatime /dev/vda /root
for name in proc dev sys; do $b mount -o move /$name /root/$name; done
exec $b switch_root /root "${START:-/lib/systemd/systemd}"
I
chmod +x initrd/init
(cd initrd && find . | cpio -o -H newc --quiet) >initrd.img
truncate -s 2G root.img
mkfs.ext4 -q -E lazy_itable_init=1,nodiscard -O ^has_journal -d "$tree" root.img
rm -rf "$tree" initrd
