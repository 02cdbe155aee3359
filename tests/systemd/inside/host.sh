# A machine that is backed up: its files, an ssh server, and two days on which something changes.
. ./ground.sh
. ./three.sh

mkdir -p /home/data/many
head -c 24M /dev/urandom >/home/data/large
for n in {1..200}; do echo "$n" >"/home/data/many/$n"; done
ln /home/data/many/1 /home/data/linked
chmod 4750 /home/data/many/2
setfattr -n user.note -v kept /home/data/many/3
listen 127.0.1.1
manifest /home/data >/shared/source-1
tell host-up

await first-night
dd if=/dev/urandom of=/home/data/large bs=64K count=1 seek=9 conv=notrunc status=none
rm /home/data/many/7
manifest /home/data >/shared/source-2
tell second-day

await first-is-gone
dd if=/dev/urandom of=/home/data/large bs=64K count=1 seek=99 conv=notrunc status=none
echo new >/home/data/many/new
manifest /home/data >/shared/source-3
tell third-day
await all-done
