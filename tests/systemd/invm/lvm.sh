# In a virtual machine, which has the device mapper: btrkeep-source on LVM, thin and classic, ext4 and xfs, through its own requests.
chmod +x btrkeep-source
modprobe -a dm-snapshot dm-thin-pool xfs || true
pvcreate -q /dev/vdc >/dev/null
vgcreate -q vg-a /dev/vdc >/dev/null
lvcreate -q -y -L 300M -n classic vg-a >/dev/null
lvcreate -q -y -T -L 700M vg-a/pool >/dev/null
lvcreate -q -y -V 400M -T vg-a/pool -n thin >/dev/null
mkfs.ext4 -q /dev/vg-a/classic
mkfs.xfs -q /dev/vg-a/thin
mkdir -p /srv/classic /srv/thin
mount /dev/vg-a/classic /srv/classic
mount /dev/vg-a/thin /srv/thin
printf '[snapshots]\nlvm_size = 20M\n' >/etc/btrkeep-source.conf
source_words() { SSH_ORIGINAL_COMMAND="$*" ./btrkeep-source --server office; }
session() { sed 's/.*"session": "\([^"]*\)".*/\1/'; }
for name in classic thin; do echo before >/srv/$name/file; done
source_words btrkeep-source check /srv | tr '{' '\n' | grep consistency

# --- a session is of one moment
source_words btrkeep-source begin /srv/classic /srv/thin >answer
tr '{' '\n' <answer | grep -E 'consistency|method'
for name in classic thin; do echo after >/srv/$name/file; done
cat >ssh-here <<'S'
#!/bin/sh
shift
SSH_ORIGINAL_COMMAND="$*" exec /payload/btrkeep-source --server office
S
chmod +x ssh-here
mkdir to
for name in classic thin; do
    rsync -aR --rsync-path "btrkeep-source rsync $(session <answer)" -e /payload/ssh-here "here:/./srv/$name/" to/
    echo "$name has $(cat to/srv/$name/file)"
done
lvs --noheadings -o lv_name vg-a | tr -d ' ' | sort | sed "s/office-.*\./SESSION./"
source_words btrkeep-source end "$(session <answer)"
echo "left: $(lvs --noheadings -o lv_name vg-a | tr -d ' ' | sort | tr '\n' ' ')"

# --- a classic snapshot that is too small
source_words btrkeep-source begin /srv/classic >answer
dd if=/dev/urandom of=/srv/classic/large bs=1M count=60 conv=fsync 2>/dev/null
sync
source_words btrkeep-source end "$(session <answer)"
echo "left: $(lvs --noheadings -o lv_name vg-a | tr -d ' ' | sort | tr '\n' ' ')"

# --- without a record, as after a reboot, and with a timer of systemd
source_words btrkeep-source begin /srv/thin >answer
systemctl list-timers --no-legend 'btrkeep-source-*' | wc -l
rm -r /run/btrkeep-source
source_words btrkeep-source begin /srv/thin >answer
echo "sessions: $(lvs --noheadings -o lv_name vg-a | grep -c office)"
source_words btrkeep-source end "$(session <answer)"
echo "left: $(lvs --noheadings -o lv_name vg-a | tr -d ' ' | sort | tr '\n' ' ')"
