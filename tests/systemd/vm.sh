#!/bin/bash
# vm.sh MACHINE CHECKOUT WORK SCRIPTS: boots a virtual machine with btrkeep in it and runs SCRIPTS/main.sh as root under its systemd.
#
# For what a container on this kernel cannot have: another clock, memory limits and device policies that are held (cgroup v2). Prints what
# the script prints; its last line is "status N". MACHINE is the folder of tests/beds/machine.py; what is made of it stays in WORK (an
# image of 1.5 GB, two minutes, once). Needs root and Debian's qemu-system-x86 and cpio. KVM is not tried: where it is emulated it hangs.
set -euo pipefail
machine=$1 checkout=$2 work=$3 scripts=$4
mkdir -p "$work"

# The machine's folder with a kernel of its own: Debian's smallest, in which ext4 is built in and virtio are modules.
make_image() {
    local tree=$work/tree kernel module number=10 # so that they sort in order
    rm -rf "$tree" "$work/root.img"
    cp -a "$machine" "$tree"
    mkdir -p "$tree/etc/initramfs-tools/conf.d"
    unshare --mount --propagation private --pid --fork --kill-child bash -euc '
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        chroot "$1" bash -euc "export DEBIAN_FRONTEND=noninteractive
            apt-get -qq update; apt-get -qq install -y --no-install-recommends linux-image-cloud-amd64 udev busybox-static" </dev/null
    ' - "$tree" >"$work/apt.log" 2>&1 || { tail -20 "$work/apt.log"; return 1; }
    cp "$tree"/boot/vmlinuz-* "$work/vmlinuz"
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
ExecStart=/bin/bash -c 'mkdir -p /payload && tar -xf /dev/vdb -C /payload && cd /payload && ./install && bash -eu ./main.sh; echo "status $?"; sync'
U
    mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
    ln -sf ../payload.service "$tree/etc/systemd/system/multi-user.target.wants/"
    rm -rf "$work/initrd"
    mkdir -p "$work/initrd"/{bin,modules,proc,sys,dev,root}
    cp "$tree/bin/busybox" "$work/initrd/bin/"
    ln -s busybox "$work/initrd/bin/sh"
    for module in $(for name in virtio_pci virtio_blk; do
        chroot "$tree" modprobe -S "$kernel" --show-depends "$name"
    done | awk '$1 == "insmod" && !seen[$2]++ {print $2}'); do
        number=$((number + 1))
        cp "$tree$module" "$work/initrd/modules/$number-${module##*/}"
    done
    cat >"$work/initrd/init" <<'I'
#!/bin/sh
b=/bin/busybox
$b mount -t proc p /proc; $b mount -t devtmpfs d /dev; $b mount -t sysfs s /sys
for module in /modules/*; do $b insmod "$module"; done
n=0; while [ ! -b /dev/vda ] && [ $n -lt 50 ]; do $b sleep 0.1; n=$((n + 1)); done
$b mount -o rw,noatime /dev/vda /root
for name in proc dev sys; do $b mount -o move /$name /root/$name; done
exec $b switch_root /root /lib/systemd/systemd
I
    chmod +x "$work/initrd/init"
    (cd "$work/initrd" && find . | cpio -o -H newc --quiet) >"$work/initrd.img"
    truncate -s 2G "$work/root.img.new"
    mkfs.ext4 -q -E lazy_itable_init=1,nodiscard -O ^has_journal -d "$tree" "$work/root.img.new"
    rm -rf "$tree" "$work/initrd"
    mv "$work/root.img.new" "$work/root.img"
}

[ -s "$work/root.img" ] || make_image

# What travels: the scripts, and the packages and units of the checkout, which take the place of the installed ones.
payload=$(mktemp -d "$work/payload.XXXX")
trap 'rm -rf "$payload" "$payload.tar" "$payload.disk"' EXIT
cp "$scripts"/* "$payload/"
tar -C "$checkout" --exclude=__pycache__ -cf "$payload/packages.tar" btrkeep backupd heatmap balancer web
tar -C "$checkout/systemd" -cf "$payload/units.tar" --wildcards $(cd "$checkout/systemd" && ls -d btrkeep*)
cat >"$payload/install" <<'S'
#!/bin/bash
set -eu
tar -xf packages.tar -C "$(echo /opt/btrkeep/versions/*/lib/python3*/site-packages)"
tar -xf units.tar -C /usr/local/lib/systemd/system
systemctl daemon-reload
S
chmod +x "$payload/install"
tar -C "$payload" -cf "$payload.tar" .
truncate -s %512 "$payload.tar"
truncate -s 2G "$payload.disk"
mask=
for unit in systemd-update-utmp systemd-random-seed systemd-pstore systemd-binfmt; do mask+=" systemd.mask=$unit.service"; done
timeout "${VM_TIMEOUT:-300}" qemu-system-x86_64 -accel tcg,thread=multi,tb-size=512 -machine q35 -cpu max -smp 2 -m 1024 \
    -nodefaults -display none -monitor none -no-reboot -rtc "base=${VM_CLOCK:-2026-11-20T21:00:00}" \
    -kernel "$work/vmlinuz" -initrd "$work/initrd.img" \
    -append "console=ttyS0 panic=-1 quiet mitigations=off random.trust_cpu=on systemd.show_status=0 psi=1$mask" \
    -drive "file=$work/root.img,format=raw,if=virtio,snapshot=on,cache=unsafe" \
    -drive "file=$payload.tar,format=raw,if=virtio,readonly=on" -drive "file=$payload.disk,format=raw,if=virtio,cache=unsafe" \
    -serial "file:$payload/console" -serial "file:$payload/said" </dev/null || echo "qemu: exit status $?"
tr -d '\r' <"$payload/said"
tail -n 1 "$payload/said" | grep -q '^status' || tail -n 20 "$payload/console"
