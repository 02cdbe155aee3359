# What starts runs, as each command shows it: no timer, the shipped one, one that meets no window, and a line of cron, timers
# that count from their unit's last run, and anacron.
. ./ground.sh
mkdir -p /srv/source
echo one >/srv/source/file
configure 'zone = "America/Los_Angeles"
[host.here]
paths = ["/srv/source"]
window = "22:00-06:00"
[offsite.box]
repository = "/srv/restic"
password_file = "/etc/btrkeep/password"
'
echo secret >/etc/btrkeep/password
chmod 600 /etc/btrkeep/password
backupd run here >/dev/null

# look NAME: what is shown now.
look() {
    backupd check --json >"check-$1" || true
    backupd status --json >"status-$1"
    backupd doctor --json >"doctor-$1" || true
    backupd notify >/dev/null 2>&1 || true
    backupd metrics >"metrics-$1"
}

systemctl enable --quiet --now btrkeep-offsite@main.timer # which is no timer of backups
look off
systemctl enable --quiet --now btrkeep-backup@main.timer
look on
mkdir -p /etc/systemd/system/btrkeep-backup@main.timer.d
printf '[Timer]\nOnCalendar=\nOnCalendar=*-*-* 22:00\n' >/etc/systemd/system/btrkeep-backup@main.timer.d/override.conf
systemctl daemon-reload
systemctl restart btrkeep-backup@main.timer
look never
systemctl disable --quiet --now btrkeep-backup@main.timer
printf '*/15 * * * * root backupd run --scheduled\n' >/etc/cron.d/btrkeep
look nocron # no daemon of cron runs here
cp /bin/sleep /usr/local/bin/cron
/usr/local/bin/cron 100 &
look cron
kill $!
rm /etc/cron.d/btrkeep
printf '[Service]\nType=oneshot\nExecStart=/usr/local/sbin/backupd run --scheduled\n' >/etc/systemd/system/nightly.service
printf '[Timer]\nOnUnitActiveSec=15min\n' >/etc/systemd/system/nightly.timer
systemctl daemon-reload
systemctl start nightly.timer
look elapsed # its unit has never run, so it starts nothing
printf '[Timer]\nOnBootSec=1h\nOnUnitActiveSec=15min\n' >/etc/systemd/system/nightly.timer
systemctl daemon-reload
systemctl restart nightly.timer
look monotonic
systemctl stop nightly.timer
printf '1 5 btrkeep backupd run --scheduled\n' >/etc/anacrontab
look noanacron
printf '[Service]\nExecStart=/bin/true\n' >/etc/systemd/system/anacron.service
printf '[Timer]\nOnCalendar=*-*-* 07..23:30\n' >/etc/systemd/system/anacron.timer
systemctl daemon-reload
systemctl start anacron.timer
look anacron
