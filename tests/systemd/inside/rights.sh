# Everything that hardening could break, through the installed units.
. ./ground.sh

# --- what is hard to back up: other owners, bits, capabilities, nodes, attributes; homes, /root, /var/tmp, /usr/lib/modules
useradd --create-home --uid 4242 alice
mkdir -p /home/alice/private /root/own /usr/lib/modules/6.0/kernel /var/tmp/kept
cd /home/alice
echo text >plain
echo hers >private/letter
chmod 700 private
cp /bin/true setuid
cp /bin/true capable
echo x >setgid
mkfifo fifo
ln -s /nowhere link
mknod zero c 1 5
mknod unknown c 511 7
mknod disk b 7 200
echo acl >acl
setfacl -m u:4243:rw acl
setfattr -n user.note -v kept plain
chown -R alice:alice .
chown 4244:4245 acl
chmod 4755 setuid
chmod 2750 setgid
setcap cap_net_raw+ep capable
touch -d '2001-02-03 04:05:06.789' plain
echo module >/usr/lib/modules/6.0/kernel/a.ko
echo secret >/root/own/secret
chmod 600 /root/own/secret
echo tmp >/var/tmp/kept/file
cd /payload

# A host over the network, with everything that ssh needs for it.
ssh-keygen -q -t ed25519 -N '' -f /etc/btrkeep/id_ed25519
mkdir -p -m 700 /run/sshd /root/.ssh
cp /etc/btrkeep/id_ed25519.pub /root/.ssh/authorized_keys
/usr/sbin/sshd -o ListenAddress=127.0.0.1
sed 's/^/127.0.0.1 /' /etc/ssh/ssh_host_*_key.pub >/etc/btrkeep/known_hosts

configure '
[backup]
confine = "always"
[host.web1]
address = "root@127.0.0.1"
paths = ["/root/own"]
[host.here]
paths = ["/home", "/root/own", "/usr/lib/modules", "/var/tmp/kept", "/etc"]
exclude_only = []
before = ["/payload/hook"]
[retention]
daily = 1
min_keep = 1
grace = "1s"
[drill]
load = ["/root/own/secret grep -x secret $DUMP && touch /tmp/there"]
[expiry]
mount_option = "nossd"
'
cat >hook <<'H'
#!/bin/sh
# As somebody dumps a database: as its user, writing where the hook may write, calling something that must be found.
setpriv --reuid=4242 --regid=4242 --clear-groups id -u >/payload/hook-was
for folder in /usr /etc /boot /home /root; do
    touch $folder/hook 2>>/payload/hook-was || echo "kept out of $folder" >>/payload/hook-was
done
H
chmod +x hook

# what LIST ROOT: everything that a backup keeps, seen by programs that are not ours
what() {
    (
        cd "$1"
        find home root/own usr/lib/modules var/tmp/kept etc -printf '%p %y %m %U %G %s %l %T@\n' | grep -v ' d ' | sort
        find home root/own usr/lib/modules var/tmp/kept etc -type b -o -type c | sort | xargs stat -c '%n %t:%T'
        getfacl -R -n -p home | sort
        getfattr -R -d -m - home 2>/dev/null | sort
        find home root/own usr/lib/modules var/tmp/kept etc -type f -print0 | sort -z | xargs -0 sha256sum
    )
}

attempt btrkeep-backup@main.service
mv hook-was hook-in-unit
show btrkeep-backup@main.service StatusText Result >backup
what / >source
what /srv/backup/hosts/here/latest/data >backup-has
cat /srv/backup/hosts/web1/latest/data/root/own/secret >over-ssh
cat /srv/backup/hosts/web1/latest/backup.json >over-ssh-record
getcap /srv/backup/hosts/here/latest/data/home/alice/capable >capabilities

# --- the first start after a boot that did not end in order, and an end in order
sed -i 's/"boot": "[^"]*"/"boot": "another"/' /srv/backup/.btrkeep/boot.json
systemctl start btrkeep-boot@main.timer
until_true 20 is btrkeep-boot@main.service ActiveState active
show btrkeep-boot@main.service Result SubState >boot
sqlite3 /var/lib/btrkeep/main/catalogue.sqlite 'select host from verification order by host' >boot-read
systemctl stop btrkeep-boot@main.service
show btrkeep-boot@main.service Result SubState >boot-stopped
cp /srv/backup/.btrkeep/boot.json boot-ended

# --- the other jobs, each by its unit
for job in sample heatmap balance scrub verify news drill; do
    attempt "btrkeep-$job@main.service"
    show "btrkeep-$job@main.service" StatusText Result >"$job"
done
ls /var/lib/btrkeep/main/pictures >pictures
btrfs scrub status -R /srv >scrubbed
sqlite3 /var/lib/btrkeep/main/catalogue.sqlite 'select count(*) from sample' >samples
sqlite3 /var/lib/btrkeep/main/catalogue.sqlite 'select count(*) from score' >scores
sqlite3 /var/lib/btrkeep/main/catalogue.sqlite "select value from about where name like 'drill:%'" >drilled

# --- expiry: of three backups the one between the first of the day and the newest goes, under another mount option; killed meanwhile
for _ in 1 2; do
    sleep 1.1
    backupd run here >/dev/null
done
attempt btrkeep-expire@main.service # marks
sleep 1.1
option() { findmnt -no FS-OPTIONS /srv | grep -qw "$1"; }
findmnt -no FS-OPTIONS /srv >option-before
ls -d /srv/backup/hosts/here/2* | wc -l >there
exec 3<"$(ls -d /srv/backup/hosts/here/2* | sed -n 2p)/data/etc/passwd" # the cleaner cannot drop what is open, so --wait waits
systemctl start --no-block btrkeep-expire@main.service
until_true 20 option nossd
findmnt -no FS-OPTIONS /srv >option-meanwhile
show btrkeep-expire@main.service StatusText >expire-status
kill -9 "$(show btrkeep-expire@main.service MainPID | cut -d= -f2)"
until_true 20 systemctl is-failed -q btrkeep-expire@main.service
findmnt -no FS-OPTIONS /srv >option-after
show btrkeep-expire@main.service Result ExecMainCode ExecMainStatus >expire
exec 3<&-
systemctl reset-failed btrkeep-expire@main.service
attempt btrkeep-expire@main.service
ls -d /srv/backup/hosts/here/2* | wc -l >left
findmnt -no FS-OPTIONS /srv >option-at-last
