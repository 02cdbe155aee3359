"""The backup server of bench.silence, from inside the booted machine: its setup, its nights, and the four places that report.

Runs under the system's own Python: only the standard library is imported. Hosts are real sshd processes on ports of the loopback
address, the pool is a raid1 on two loop devices, the webhook is a web server, and the dashboard answers its API.
"""

import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

CONFIG = Path("/etc/btrkeep/main.toml")
DROP_INS = Path("/etc/btrkeep/main.d")
STATE = Path("/var/lib/btrkeep/main")
POOL = Path("/srv/backup")
HOSTS = Path("/hosts")
WEBHOOK = Path("/run/silence/messages")
OFFSET = Path("/usr/local/lib/silence/offset")
DAY = 86400
PORTS = {"web1": 2201, "web2": 2202, "laptop": 2203, "office": 2204}
"""The hosts that are reached over ssh, each with an sshd of its own; `office` is the other backup server."""
PLACES = ("status", "overview", "metrics", "webhook")
_SSHD = """\
ListenAddress 127.0.0.1
Port {port}
HostKey /run/silence/{name}.hostkey
AuthorizedKeysFile /run/silence/{name}.authorized
PidFile none
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
MaxStartups 100
"""
_MAIN = """\
[pool]
path = "/srv/backup"
zone = "UTC"
[backup]
attempts = 1
confine = "auto"
[retention]
daily = 3
min_keep = 3
[notify]
urls = ["json://127.0.0.1:8099/"]
digest = "none"
[host.web1]
address = "root@127.0.0.1"
port = 2201
paths = ["/hosts/web1"]
[host.web2]
address = "root@127.0.0.1"
port = 2202
paths = ["/hosts/web2"]
[host.laptop]
address = "root@127.0.0.1"
port = 2203
paths = ["/hosts/laptop"]
optional = true
[host.here]
paths = ["/hosts/here"]
"""
_LISTENER = """\
import http.server, json, sys
class Listener(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open("/run/silence/messages", "a") as file:
            file.write(json.dumps(text) + "\\n")
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8099), Listener).serve_forever()
"""


@dataclass(slots=True)
class Machine:
    """The server. `devices`: the two disks of the pool. `nights`: simulated so far. `read_messages`: of the webhook."""

    devices: tuple[str, str]
    nights: int = 0
    read_messages: int = 0
    token: str = ""
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    # --- small tools

    def run(self, *words: object, check: bool = False, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, errors="replace", check=False, timeout=timeout)
        if check and done.returncode:
            raise RuntimeError(f"{words}: {done.returncode}: {done.stdout[-800:]} {done.stderr[-800:]}")
        return done

    def backupd(self, *words: object, check: bool = False) -> subprocess.CompletedProcess[str]:
        return self.run("backupd", *words, check=check)

    def unit(self, *jobs: str) -> None:
        """Starts the services of these jobs, as their timers do, and waits for their ends, and for the messages of OnFailure."""
        for job in jobs:
            unit = f"btrkeep-{job}@main.service"
            self.run("systemctl", "reset-failed", unit)
            self.run("systemctl", "start", unit)
            failure = f"btrkeep-notify@{unit}.service"
            for _ in range(100):
                state = self.run("systemctl", "show", "-P", "ActiveState", failure).stdout.strip()
                if state in ("inactive", "failed"):
                    break
                time.sleep(0.1)

    def later(self, seconds: float) -> None:
        """Lets time pass: moves all clocks of all programs but systemd's own."""
        self._move(seconds, seconds)

    def set_clock(self, seconds: float) -> None:
        """Sets the wall clock ahead or back; the time since the boot does not change."""
        self._move(seconds, 0)

    def _move(self, wall: float, boot: float) -> None:
        with OFFSET.open("r+b") as file:
            walls, boots = struct.unpack("=qq", file.read(16))
            file.seek(0)
            file.write(struct.pack("=qq", walls + int(wall), boots + int(boot)))

    def now(self) -> float:
        with OFFSET.open("rb") as file:
            offset: int = struct.unpack("=q", file.read(8))[0]
        return time.clock_gettime(time.CLOCK_REALTIME) + (0 if _is_faked() else offset)

    def write(self, path: Path | str, text: str, mode: int = 0o600) -> None:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)

    def drop_in(self, name: str, text: str) -> None:
        self.write(DROP_INS / f"{name}.toml", text)

    def drop(self, name: str) -> None:
        (DROP_INS / f"{name}.toml").unlink(missing_ok=True)

    def configured(self, old: str, new: str) -> None:
        """Replaces a part of main.toml; `restore_config` undoes it."""
        text = CONFIG.read_text(encoding="utf-8")
        if old not in text:
            raise RuntimeError(f"{old!r} is not in {CONFIG}")
        CONFIG.write_text(text.replace(old, new, 1), encoding="utf-8")

    def host(self, name: str, settings: str) -> None:
        """Changes settings of a host in main.toml; a new one is added."""
        text = CONFIG.read_text(encoding="utf-8")
        head, name_line, rest = text.partition(f"[host.{name}]\n")
        own, bracket, others = rest.partition("\n[")
        names = {line.split(" =")[0] for line in settings.splitlines()}
        kept = [line for line in own.splitlines() if line.split(" =")[0] not in names]
        section = "\n".join([name_line.strip() or f"\n[host.{name}]", *kept, settings.strip()])
        CONFIG.write_text(f"{head}{section}\n{bracket.lstrip()}{others}", encoding="utf-8")

    def restore_config(self) -> None:
        self.write(CONFIG, _MAIN)
        for path in DROP_INS.glob("*"):
            path.unlink() if not path.is_dir() or path.is_symlink() else shutil.rmtree(path)

    # --- hosts

    def sshd(self, name: str) -> None:
        """Starts a host's ssh server, after ending a running one."""
        self.no_sshd(name)
        config = Path(f"/run/silence/{name}.sshd")
        config.write_text(_SSHD.format(name=name, port=PORTS[name]) + "PerSourcePenalties no\n", encoding="utf-8")
        if self.run("/usr/sbin/sshd", "-t", "-f", config).returncode:  # older ones do not have the word
            config.write_text(_SSHD.format(name=name, port=PORTS[name]), encoding="utf-8")
        log = f"/run/silence/{name}.log"
        self.children[name] = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", str(config), "-E", log], stdin=subprocess.DEVNULL)
        for _ in range(100):
            if self.run("ssh-keyscan", "-p", PORTS[name], "127.0.0.1").stdout:
                return
            time.sleep(0.05)
        raise RuntimeError(f"the sshd of {name} did not start")

    def no_sshd(self, name: str) -> None:
        if child := self.children.pop(name, None):
            child.terminate()
            child.wait()

    def host_key(self, name: str, *, trusted: bool) -> None:
        """Gives a host a new key, with or without recording it in known_hosts."""
        file = Path(f"/run/silence/{name}.hostkey")
        file.unlink(missing_ok=True)
        self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file, check=True)
        if trusted:
            path = Path("/etc/btrkeep/known_hosts")
            lines = [line for line in path.read_text().splitlines() if f"]:{PORTS[name]} " not in line] if path.exists() else []
            words = Path(f"{file}.pub").read_text().split()
            self.write(path, "\n".join([*lines, f"[127.0.0.1]:{PORTS[name]} {words[0]} {words[1]}", ""]), 0o644)

    def authorize(self, name: str, options: str = "") -> None:
        """Writes the line of authorized_keys of a host; the options are before the key."""
        public = Path("/etc/btrkeep/id_ed25519.pub").read_text(encoding="utf-8")
        Path(f"/run/silence/{name}.authorized").write_text(f"{options} {public}".lstrip(), encoding="utf-8")

    def shell(self, name: str, script: str) -> None:
        """Sets the shell script that a host runs for each command, which is in $SSH_ORIGINAL_COMMAND."""
        path = Path(f"/run/silence/{name}.shell")
        self.write(path, f"#!/bin/bash\n{script}\n", 0o755)
        self.authorize(name, f'command="{path}"')

    def change(self, name: str) -> None:
        """Changes files on a host as during a day."""
        folder = HOSTS / name
        (folder / "log").open("a").write(f"{self.nights} {time.monotonic_ns()}\n")
        (folder / f"day{self.nights % 5}").write_bytes(os.urandom(3000))

    # --- the server

    def set_up(self) -> None:
        for path in ("/run/silence", "/run/sshd", "/etc/btrkeep", "/var/lib/node"):
            Path(path).mkdir(parents=True, exist_ok=True)
        OFFSET.write_bytes(bytes(4096))
        Path("/etc/ld.so.preload").write_text("/usr/local/lib/silence/clock.so\n")
        self.mount()
        state = STATE.parent.stat()
        words = f"size=200m,mode={state.st_mode & 0o7777:o},uid={state.st_uid},gid={state.st_gid}"
        self.run("mount", "-t", "tmpfs", "-o", words, "tmpfs", STATE.parent, check=True)
        WEBHOOK.touch()
        self.webhook()
        self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/btrkeep/id_ed25519", check=True)
        for name in PORTS:
            self.host_key(name, trusted=True)
            self.authorize(name)
            self.sshd(name)
        for name in ("web1", "web2", "laptop", "here"):
            folder = HOSTS / name
            for number in range(320):
                (folder / f"folder{number % 4}").mkdir(parents=True, exist_ok=True)
                (folder / f"folder{number % 4}" / f"file{number}").write_bytes(os.urandom(2000))
        self.write(CONFIG, _MAIN)
        DROP_INS.mkdir(exist_ok=True)
        self.backupd("init", POOL, check=True)
        timers = [f"btrkeep-{job}@main.timer" for job in ("backup", "expire", "news", "sample")]
        # Enabled as install.sh does, with a delay: the bench starts their services, a start in the middle would spoil its figures.
        for job in ("backup", "expire", "news", "sample"):
            text = "[Timer]\nPersistent=no\nRandomizedDelaySec=12h\n"
            self.write(f"/etc/systemd/system/btrkeep-{job}@main.timer.d/bench.conf", text, 0o644)
        self.run("systemctl", "daemon-reload")
        self.run("systemctl", "enable", "--now", *timers, check=True)
        self.token = self.run("btrkeep-web", "token", "add", "silence", check=True).stdout.strip()
        self.run(
            "systemctl", "start", "btrkeep-login@main.socket", "btrkeep-serve@main.socket", "btrkeep-web@main.service", check=True
        )
        self.night()

    def tear_down(self) -> None:
        for name in [*self.children]:
            self.no_sshd(name)
        Path("/etc/ld.so.preload").unlink(missing_ok=True)

    def mount(self, options: str = "") -> None:
        first, second = self.devices
        words = ",".join(filter(None, [f"device={second}" if "degraded" not in options else "", options]))
        Path("/srv").mkdir(exist_ok=True)
        self.run("mount", "-t", "btrfs", "-o", words or "defaults", first, "/srv", check=True)

    def unmount(self) -> None:
        self.run("systemctl", "stop", "btrkeep-serve@main.service")
        for _ in range(100):
            if not self.run("umount", "/srv").returncode:
                return
            time.sleep(0.1)
        raise RuntimeError(f"/srv is busy: {self.run('fuser', '-vm', '/srv').stderr}")

    def free_metadata(self) -> int:
        """Returns the unused bytes in metadata block groups, without the kernel's own reserve."""
        lines = self.run("btrfs", "filesystem", "df", "--raw", "/srv", check=True).stdout
        metadata = re.findall(r"^Metadata, .*: total=(\d+), used=(\d+)$", lines, re.MULTILINE)
        reserve = re.findall(r"^GlobalReserve, .*: total=(\d+)", lines, re.MULTILINE)
        return sum(int(total) - int(used) for total, used in metadata) - sum(map(int, reserve))

    def webhook(self) -> None:
        if "webhook" not in self.children:
            program = ["/usr/bin/python3", "-c", _LISTENER]
            self.children["webhook"] = subprocess.Popen(program, stdin=subprocess.DEVNULL)
            time.sleep(0.3)

    def no_webhook(self) -> None:
        self.no_sshd("webhook")

    def night(self, *jobs: str, days: float = 1) -> None:
        """Lets a day pass: hosts change, due runs and the reporting programs run."""
        self.later(days * DAY)
        self.nights += 1
        for name in ("web1", "web2", "laptop", "here"):
            if (HOSTS / name).is_dir():
                self.change(name)
        self.unit("backup", *jobs, "sample", "news")

    def journal(self) -> list[str]:
        """Returns the last lines of our units."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-n", "25", "-u", "btrkeep-*").stdout.splitlines()

    def override(self, unit: str, text: str) -> None:
        """Gives a unit a drop-in; "" removes it."""
        folder = Path(f"/run/systemd/system/{unit}.d")
        shutil.rmtree(folder, ignore_errors=True)
        if text:
            self.write(folder / "fault.conf", text, 0o644)
        self.run("systemctl", "daemon-reload")

    def sql(self, statement: str) -> None:
        with sqlite3.connect(STATE / "catalogue.sqlite") as connection:
            connection.execute(statement)
        connection.close()

    # --- the four places

    def reports(self) -> dict[str, tuple[str, ...]]:
        """Returns all complaints of the four places. Without a fault there is none, and no complaint names a host or a job."""
        status = self.backupd("status", "--json")
        self.backupd("metrics", "--textfile", "/var/lib/node/btrkeep.prom")
        try:
            metrics = Path("/var/lib/node/btrkeep.prom").read_text(encoding="utf-8")
        except OSError as error:
            metrics = f"unreadable: {error}"
        overview = self.overview()
        messages = self.messages()
        return {
            "status": tuple(_of_status(status.stdout, status.returncode, status.stderr)),
            "overview": tuple(of_overview(overview)),
            "metrics": tuple(of_metrics(metrics, self.now())),
            "webhook": tuple(messages),
        }

    def overview(self) -> str:
        request = Request("http://127.0.0.1:8765/api/v1/overview", headers={"Authorization": f"Bearer {self.token}"})
        try:
            with urlopen(request, timeout=20) as answer:
                text: str = answer.read().decode()
                return text
        except HTTPError as error:
            return f"HTTP {error.code}: {error.read().decode(errors='replace')[:2000]}"
        except OSError as error:
            return f"no answer: {error}"

    def messages(self) -> list[str]:
        """Returns the new messages."""
        lines = WEBHOOK.read_text(encoding="utf-8").splitlines()
        new, self.read_messages = lines[self.read_messages :], len(lines)
        return [f"{message['title']}: {message['message']}" for message in map(json.loads, new)]


def _is_faked() -> bool:
    return "clock.so" in Path("/proc/self/maps").read_text(encoding="utf-8")


def _of_status(text: str, status: int, errors: str) -> list[str]:
    complaints = [line for line in errors.splitlines() if line.strip()]
    if status:
        complaints.append(f"exit status {status}")
    try:
        shown = json.loads(text)
    except ValueError:
        return [*complaints, "no JSON"]
    complaints += [f"configuration: {fault}" for fault in shown["looked"]["faults"]]
    complaints += ["unknown: the last check is old, or something cannot be read"] if shown["looked"]["unknown"] else []
    complaints += [f"{host['host']} is {host['state']}: {host['error']}" for host in shown["hosts"] if host["state"] != "ok"]
    complaints += [f"{host['host']}: {words}" for host in shown["hosts"] for words in host["warnings"]]
    complaints += [f"{finding}" for finding in shown["pool"]["findings"]]
    complaints += [
        f"copy {copy['replica']} is {copy['state']}: {copy['error']}" for copy in shown["copies"] if copy["state"] != "ok"
    ]
    complaints += [
        f"{key}: {shown[key]}" for key in ("repeated", "failed", "in_doubt", "lost", "clock", "unconfigured") if shown[key]
    ]
    complaints += [f"{key}: {shown['verification'][key]}" for key in ("unverified", "damaged") if shown["verification"][key]]
    complaints += [f"drill: {shown['drill']['state']}"] if shown["drill"]["state"] not in ("ok", "never") else []
    return complaints


def of_overview(text: str) -> list[str]:
    """Returns the complaints of the overview."""
    try:
        shown = json.loads(text)
    except ValueError:
        return [text[:300]]
    shown = shown.get("overview", shown)
    complaints = [f"{line['head']}: {line['text']}" for line in shown["urgent"]]
    complaints += [f"{alarm['what']} {alarm['subject']}: {alarm['text']}" for alarm in shown["alarms"]]
    if shown["health"]["level"] != "ok":
        complaints.append(f"the pool is {shown['health']['level']}: {shown['health']['findings']}")
    states = dict(map(tuple, (state.values() if isinstance(state, dict) else state for state in shown["states"])))
    complaints += [f"{count} {state}" for state, count in states.items() if count and state not in ("ok", "copy")]
    return complaints


def of_metrics(text: str, now: float) -> list[str]:
    """Returns the complaints of the metrics: about hosts, alarms and checks, and about their age."""
    complaints = [line for line in text.splitlines() if re.match(r"btrkeep_(alarms|pool_health|config_faults)\{.*\} [1-9]", line)]
    complaints += re.findall(r"^btrkeep_(?:pool_usable|catalogue_usable)\{.*\} 0.*$", text, re.MULTILINE)
    looked = re.search(r"^btrkeep_alarms_timestamp_seconds\{.*\} (\S+)$", text, re.MULTILINE)
    written = re.search(r"^btrkeep_look_timestamp_seconds\{.*\} (\S+)$", text, re.MULTILINE)
    if looked and now - float(looked[1]) > 3600:
        complaints.append("alarms are older than an hour")
    if written and now - float(written[1]) > 3600:
        complaints.append("the file of metrics is older than an hour")
    return complaints or ([] if written else [text[:200] or "empty"])


def listed(reports: dict[str, tuple[str, ...]]) -> list[str]:
    """Returns all complaints, each with its place."""
    return [f"{place}: {text}" for place, texts in reports.items() for text in texts]
