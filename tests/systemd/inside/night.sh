# Timers, in the order of a night; one that was missed; a failure that is told.
. ./ground.sh

# Whoever is told: each message becomes a line.
cat >listen.py <<'P'
import http.server, json
class Listen(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with open("/payload/told", "a") as file:
            file.write(json.dumps(json.loads(text)) + "\n")
        self.send_response(200); self.end_headers()
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", 8099), Listen).serve_forever()
P
python3 listen.py &
mkdir -p /srv/source /srv/other
echo one >/srv/source/file
configure '
[host.here]
paths = ["/srv/source"]
before = ["/bin/sh", "-c", "until [ -e /srv/go ]; do sleep 0.1; done"]
[retention]
daily = 1
min_keep = 1
[notify]
urls = ["json://127.0.0.1:8099/"]
[balance]
time = "1m"
'

# --- a night that was missed: the timers as they are installed, but without the delay that spreads machines
for job in backup expire; do
    mkdir -p "/run/systemd/system/btrkeep-$job@.timer.d"
    printf '[Timer]\nRandomizedDelaySec=0\nAccuracySec=10ms\n' >"/run/systemd/system/btrkeep-$job@.timer.d/test.conf"
done
systemctl daemon-reload
mkdir -p /var/lib/systemd/timers
touch -d '3 days ago' /var/lib/systemd/timers/stamp-btrkeep-backup@main.timer
touch /var/lib/systemd/timers/stamp-btrkeep-expire@main.timer
ended() { ! is "btrkeep-$1@main.service" ExecMainExitTimestampMonotonic 0; }
systemctl start btrkeep-backup@main.timer btrkeep-expire@main.timer
until_true 20 is btrkeep-backup@main.service StatusText "0 of 1 host done, running: here"
show btrkeep-backup@main.service StatusText >status-meanwhile
touch /srv/go
until_true 20 ended backup
show btrkeep-backup@main.service Result ExecMainStatus >missed
show btrkeep-expire@main.service ExecMainStartTimestampMonotonic >not-missed
ls /srv/backup/hosts/here | grep -c ^2 >made
systemctl stop btrkeep-backup@main.timer btrkeep-expire@main.timer

# --- a night: all jobs are due while the backup is still held, the latest job first, and nobody is in the way of another
rm /srv/go
systemctl reset-failed
for job in heatmap balance expire backup sample; do
    mkdir -p "/run/systemd/system/btrkeep-$job@.timer.d"
    cat >"/run/systemd/system/btrkeep-$job@.timer.d/test.conf" <<'T'
[Timer]
OnCalendar=
OnActiveSec=100ms
Persistent=no
RandomizedDelaySec=0
AccuracySec=10ms
T
done
systemctl daemon-reload
echo two >/srv/source/file
rm -f /srv/backup/hosts/here/latest # a convenience, which comes back
sed -i 's/^before/every = "1s"\nbefore/' /etc/btrkeep/main.toml
cut -d' ' -f1 /proc/uptime >night-began
queued() { systemctl list-jobs | grep -q "btrkeep-$1@main.service .* waiting"; }
systemctl start btrkeep-backup@main.timer
until_true 20 is btrkeep-backup@main.service StatusText "0 of 1 host done, running: here"
for job in heatmap balance expire; do
    systemctl start "btrkeep-$job@main.timer"
    until_true 20 queued "$job"
done
systemctl start btrkeep-sample@main.timer
until_true 20 ended sample
systemctl list-jobs --no-legend >jobs-meanwhile
touch /srv/go
until_true 60 ended heatmap
for job in backup expire balance heatmap sample; do
    show "btrkeep-$job@main.service" Result ExecMainStatus ExecMainStartTimestampMonotonic ExecMainExitTimestampMonotonic >"night-$job"
done
systemctl stop btrkeep-{heatmap,balance,expire,backup,sample}@main.timer

# --- a failure: a source path is gone
cp -r /srv/source /srv/kept
rm -r /srv/source
systemctl start btrkeep-backup@main.service || true
until_true 20 test -s told
systemctl is-failed btrkeep-backup@main.service >failed || true
unit=btrkeep-notify@btrkeep-backup@main.service.service
until_true 20 is "$unit" SubState dead
show "$unit" Result >notified

# --- stopped in the middle: that is not a failure, and what has arrived is kept
mv /srv/kept /srv/source
rm /srv/go
mv told told-of-failure
systemctl reset-failed
systemctl start --no-block btrkeep-backup@main.service
until_true 20 is btrkeep-backup@main.service StatusText "0 of 1 host done, running: here"
systemctl stop btrkeep-backup@main.service
show btrkeep-backup@main.service Result ExecMainStatus ActiveState >stopped
journalctl --no-pager -o cat -u btrkeep-backup@main.service | tail -20 >journal
[ ! -e told ] || mv told told-of-stop
pgrep -af /srv/go >left-behind || true
kill %1
