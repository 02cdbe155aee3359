# The root service: started by whoever connects, gone when idle, and what it starts.
. ./ground.sh

mkdir -p /srv/source/hard /srv/restored
echo one >/srv/source/file
cd /srv/source/hard
cp /bin/true setuid
cp /bin/true capable
mknod zero c 1 5
mkfifo fifo
ln -s /nowhere link
ln setuid second
echo attribute >attribute
setfattr -n trusted.note -v kept attribute
setfacl -m u:4243:rw attribute
chown -R -h 4242:4243 .
chmod 4755 setuid
setcap cap_net_raw+ep capable
chmod 700 .
cd /payload
printf '#!/bin/sh\nuntil [ "$1" = far ]; do shift; done; shift\nexec /bin/sh -c "$*"\n' >fakessh
chmod 755 fakessh
configure '
[backup]
confine = "always"
[ssh]
command = "/payload/fakessh"
[host.here]
paths = ["/srv/source"]
[host.far]
address = "root@far"
paths = ["/srv/source/file"]
[serve]
run_distance = "1s"
[retention]
daily = 1
min_keep = 1
'
ssh-keygen -q -t ed25519 -N '' -f /etc/btrkeep/id_ed25519
printf 'far %s\n' "$(cat /etc/btrkeep/id_ed25519.pub)" >/etc/btrkeep/known_hosts
backupd run here far >/dev/null
mkdir -p /etc/btrkeep/main.d
mkdir -p /run/systemd/system/btrkeep-serve@.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/local/sbin/backupd --pool %%i serve --idle 3 --restore-to /srv/restored --restore-below /srv/source\n' >/run/systemd/system/btrkeep-serve@.service.d/test.conf
systemctl daemon-reload

# ask USER VERB [NAME=VALUE...]: what it answers, as the dashboard would get it
cat >ask.py <<'P'
import json, sys
from pathlib import Path
from btrkeep.errors import OperatorError
from btrkeep.serving.client import RootServiceClient
from btrkeep.serving.protocol import socket_of
verb, *words = sys.argv[1:]
arguments = {name: json.loads(value) for name, value in (word.split("=", 1) for word in words)}
try:
    print(json.dumps(RootServiceClient(socket_of("main"), "root", session=Path("word").read_text().strip()).ask(verb, **arguments)))
except OperatorError as error:
    print(json.dumps({"error": error.message, "kind": getattr(error, "kind", "absent")}))
P
ask() {
    local user=$1
    shift
    setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups /opt/btrkeep/current/bin/python -I ask.py "$@"
}
gone() { is btrkeep-serve@main.service ActiveState inactive; }

systemctl start btrkeep-serve@main.socket btrkeep-login@main.socket
echo 'four words to remember' | btrkeep-web user add alice --role operator 2>/dev/null
/opt/btrkeep/current/bin/python -I -c '
from pathlib import Path
from btrkeep.serving.client import RootServiceClient
words = {"name": "alice", "password": "four words to remember", "address": "", "browser": ""}
print(RootServiceClient(Path("/run/btrkeep/login-main.sock"), "").ask("login", **words)["word"])' >word
stat -c '%a %U %G' /run/btrkeep/serve-main.sock >socket
chmod 755 /payload
id btrkeep >/dev/null
gone
ask btrkeep browse 'host="here"' 'backup="latest"' 'path="/srv/source"' >browsed
show btrkeep-serve@main.service MainPID ActiveState >while-answering
ask nobody browse 'host="here"' 'backup="latest"' 'path="/"' >by-nobody
chmod 666 /run/btrkeep/serve-main.sock # by mistake
ask nobody browse 'host="here"' 'backup="latest"' 'path="/"' >by-nobody-let-in
chmod 660 /run/btrkeep/serve-main.sock
ask btrkeep doctor >doctor-inside
backupd doctor --json >doctor-outside || true
ask btrkeep plan >planned
ask btrkeep hold 'host="here"' 'backup="latest"' 'why="kept"' >held

# --- a job, in a unit of its own
ask btrkeep run 'host="here"' >begun
job=$(sed 's/.*"job": "\([^"]*\)".*/\1/' begun)
over() { ask btrkeep job "job=\"$job\"" >job && grep -qE '"state": "(done|failed)"' job; }
until_true 20 over
ls -d /srv/backup/hosts/here/2* | wc -l >made

# --- restores, by their unit: into a folder without what gives power, to its own place with all of it
restored() { ask btrkeep job "job=\"$restoring\"" >restored && grep -qE '"state": "(done|failed)"' restored; }
mv /srv/source/hard /srv/lost
for to in folder host; do
    ask btrkeep preview 'host="here"' 'backup="latest"' 'paths=["/srv/source/hard"]' "to=\"$to\"" >previewed
    ask btrkeep restore 'host="here"' 'backup="latest"' 'paths=["/srv/source/hard"]' "to=\"$to\"" >restoring
    restoring=$(sed 's/.*"job": "\([^"]*\)".*/\1/' restoring)
    until_true 20 restored
    grep -q '"state": "done"' restored || { cat previewed restored; false; }
done
find /srv/restored/here-* \( -type f -perm /6000 -o -type b,c \) >powerful
find /srv/restored/here-* -type f >in-folder
what() {
    (
        cd "$1"
        find . -printf '%p %y %m %U %G %l %n %T@\n' | sort
        find . -type c -exec stat -c '%n %t:%T' {} +
        getfattr -R -h -d -m - . 2>/dev/null | grep -v system.posix | sort
        getfacl -R -n -p . | sort
    )
}
what /srv/lost >hard
what /srv/source/hard >hard-restored
find /run/btrkeep /var/lib/btrkeep/main/jobs -printf '%P %m %U\n' | sort >left
journalctl --no-pager -o cat -u btrkeep-serve@main.service >journal-serve
journalctl --no-pager -o cat -u "btrkeep-run@main:$job.service" >journal-run

# --- to a host that is reached: its rsync is confined, or nothing is restored
rm /srv/source/file
ask btrkeep restore 'host="far"' 'backup="latest"' 'paths=["/srv/source/file"]' 'to="host"' >restoring
restoring=$(sed 's/.*"job": "\([^"]*\)".*/\1/' restoring)
mv restored restored-here
until_true 30 restored
mv restored restored-far
mv restored-here restored
cp /srv/source/file far-file || true

# --- of three that are asked for one runs, and the service, which is killed meanwhile, starts the others
cat >/etc/btrkeep/main.d/more.toml <<'T'
[backup]
concurrency = 1
[host.one]
paths = ["/srv/source/hard"]
before = ["/bin/sh", "-c", "until [ -e /srv/gate ]; do sleep 0.1; done"]
[host.two]
paths = ["/srv/source/hard"]
[host.three]
paths = ["/srv/source/hard"]
T
for host in one two three; do ask btrkeep run "host=\"$host\"" >>asked-for; done
under_way() { systemctl list-units --plain --no-legend 'btrkeep-run@main:*' | awk '{print $4}'; }
begun() { [ "$(under_way)" = start ]; }
until_true 20 begun
systemctl kill --signal=KILL btrkeep-serve@main.service
back() { [ "$(systemctl show btrkeep-serve@main.service -p NRestarts --value)" = 1 ] && is btrkeep-serve@main.service ActiveState active; }
until_true 20 back
sleep 4 # longer than it stays when nobody asks and nothing waits
show btrkeep-serve@main.service ActiveState NRestarts >while-waiting
under_way >under-way
touch /srv/gate
until_true 40 gone # by itself, when all have begun
three() { ls -d /srv/backup/hosts/{one,two,three}/2* 2>/dev/null | wc -l; }
all_made() { [ "$(three)" = 3 ]; }
until_true 20 all_made
find /run/btrkeep/jobs/main -type f >requests-left
rm /etc/btrkeep/main.d/more.toml

# --- a mistake in the configuration is answered, however often
echo 'nonsense' >>/etc/btrkeep/main.toml
until_true 20 gone
for _ in 1 2 3 4 5 6 7 8; do ask btrkeep browse 'host="here"' 'backup="latest"' 'path="/"' >>misconfigured; done
sed -i '$d' /etc/btrkeep/main.toml

# --- gone when idle: nobody keeps the pool, and the next one who asks is answered
until_true 20 gone
show btrkeep-serve@main.service Result >idle
umount /srv && echo unmounted >unmounted
ask btrkeep browse 'host="here"' 'backup="latest"' 'path="/"' >without-pool
