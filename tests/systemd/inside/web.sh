# The dashboard: installed, started for a pool, used by somebody, killed, stopped.
. ./ground.sh

mkdir -p /srv/source
echo one >/srv/source/file
configure '
[host.here]
paths = ["/srv/source"]
[host.web1]
paths = ["/srv/source"]
[serve]
rates = ["retention 30"]
[retention]
daily = 1
min_keep = 1
'
chmod 600 /etc/btrkeep/main.toml # as backupd setup makes it
backupd run here web1 >/dev/null
systemctl start btrkeep-sample@main.service
attempt btrkeep-heatmap@main.service
python() { /opt/btrkeep/current/bin/python -I "$@"; }
echo 'four words to remember' | btrkeep-web user add alice --role operator 2>/dev/null
stat -c '%a %U' /var/lib/btrkeep-login /var/lib/btrkeep-login/main /var/lib/btrkeep-login/main/users.sqlite >own
asked() { sqlite3 /var/lib/btrkeep-login/main/users.sqlite "$1"; }
find /var/lib/btrkeep \( -name 'catalogue.sqlite*' -o -name dashboard.sqlite -o -path '*/pictures*' -o -type d \) -printf '%P %m %g\n' | sort >state

# visit ADDRESS...: logs in as alice and looks at each; a line for each with its status and how much came
cat >visit.py <<'P'
import os, re, sys
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener
TOP = os.environ.get("TOP", "http://127.0.0.1:8765")
browser = build_opener(HTTPCookieProcessor(CookieJar()))
def visit(address, form=None):
    try:
        with browser.open(TOP + address, urlencode(form).encode() if form else None) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
status, page = visit("/login")
token = re.search(r'name="csrf_token" value="([^"]+)"', page)[1]
print("/login", status)
visit("/login", {"csrf_token": token, "name": "alice", "password": "four words to remember", "next": "/"})
for address in sys.argv[1:]:
    status, page = visit(address)
    print(address, status, "here" in page)
P
systemctl start btrkeep-web@main.service
show btrkeep-web@main.service ActiveState User >started
ps -o user= -p "$(systemctl show -P MainPID btrkeep-web@main.service)" >user-of
visit() { /opt/btrkeep/current/bin/python -I visit.py "$@"; }
visit / /hosts /hosts/here /pool /jobs /log /doctor /account >visited
systemctl start btrkeep-sample@main.service
visit /hosts >visited-again
find /var/lib/btrkeep-web /var/lib/btrkeep-login -printf '%P %m %u\n' | sort >own-after

# --- the dashboard, taken over
for user in carol:viewer:web1 olga:operator:web1 idle:operator:all bob:operator:all; do
    IFS=: read -r name role hosts <<<"$user"
    echo 'four words to remember' | btrkeep-web user add "$name" --role "$role" --hosts "$hosts" 2>/dev/null
done
python takeover.py words >words
echo 'quite another password' | btrkeep-web user passwd bob 2>/dev/null
job=$(python takeover.py run-as-root)
who() { asked 'SELECT name, role, hosts FROM user ORDER BY name'; }
who >users-before
mkdir /run/taken
cp takeover.py words /run/taken
chown -R btrkeep /run/taken
(
    cd /run/taken
    setpriv --reuid=btrkeep --regid=btrkeep --init-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
        /opt/btrkeep/current/bin/python -I takeover.py "$(systemctl show -P MainPID btrkeep-login@main.service)" "$job"
) >taken-over 2>taken-over-errors
who >users-after
cat /srv/backup/hosts/*/notes.json >holds
journalctl --no-pager -o cat -u btrkeep-serve@main.service >journal-serve
btrkeep-web user passwd alice <<<'four words to remember' 2>/dev/null # which resets what was counted

# --- a second pool, whose state folder is elsewhere: at first with the port of the first one
printf '[pool]\npath = "/srv/other"\nstate = "/srv/state/other"\n[host.there]\npaths = ["/srv/source"]\n' >/etc/btrkeep/other.toml
backupd --pool other init /srv/other >/dev/null
backupd --pool other run >/dev/null
echo 'four words to remember' | btrkeep-web --pool other user add alice 2>/dev/null
systemctl start btrkeep-web@other.service 2>/dev/null || true
systemctl stop btrkeep-web@other.service
journalctl --no-pager -o cat -u btrkeep-web@other.service >journal-clash
printf '[web]\nlisten = "127.0.0.1:9001"\n' >>/etc/btrkeep/other.toml
backupd --pool other check >/dev/null || true
systemctl start btrkeep-web@other.service
TOP=http://127.0.0.1:9001 visit / /hosts /hosts/there >visited-other
systemctl stop btrkeep-web@other.service

kill -9 "$(systemctl show -P MainPID btrkeep-web@main.service)"
answers() { visit >after-kill 2>/dev/null; }
until_true 30 answers

before=$(date +%s%N)
systemctl stop btrkeep-web@main.service
echo $((($(date +%s%N) - before) / 1000000)) >stop-took
show btrkeep-web@main.service Result ExecMainStatus >stopped
journalctl --no-pager -o cat -u btrkeep-web@main.service -u btrkeep-login@main.service >journal-web
