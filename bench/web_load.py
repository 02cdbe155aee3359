"""The dashboard under load: 3,000 hosts with 34 backups each, 20 clients, btrkeep-web as a process of its own without rights.

First each page alone, one request after the other: the time from the first byte of the request to the last one read, which is a
little more than the server's own time. Then 20 clients at once, each with a connection of its own, for some seconds a page; and
once more while a night writes its progress into the catalogue five times a second. Memory is the peak of the process over all of it
(VmHWM).

    python -m bench.web_load [--hosts 3000] [--backups 34] [--clients 20] [--seconds 10] [--state DIR] [--json]
"""

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import shlex
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import make_site
from bench.common import say, wait_for_quiet
from btrkeep.catalogue import Catalogue
from tests.beds import session
from tests.beds.dashboard import Dashboard, serving

LIMIT = 0.2
"""Seconds that a page may take on the server."""
LOADED = {"overview": "/", "hosts": "/hosts", "host": "/hosts/{host}", "api hosts": "/api/v1/hosts"}
WRITING = ("overview", "hosts", "host")
"""Pages that are also loaded during writes."""
EVERY = 0.2
"""Seconds between two rows of progress."""
PAGES = {
    **LOADED,
    "hosts, searched": "/hosts?q=web+12",
    "hosts, failing": "/hosts?state=failing",
    "hosts, by size": "/hosts?sort=-size&page=9",
    "what runs": "/overview/running",
    "pool": "/pool",
    "jobs": "/jobs",
    "jobs of a year": "/jobs?days=366",
    "log": "/log",
    "metrics": "/metrics",
    "healthz": "/healthz",
    "api overview": "/api/v1/overview",
}


@dataclass(slots=True)
class Answers:
    """Seconds of each correct answer, and the number of wrong ones."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    """Makes the site, serves it, measures, and prints."""
    made = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--hosts", type=int, default=3000)
    made.add_argument("--backups", type=int, default=34)
    made.add_argument("--clients", type=int, default=20)
    made.add_argument("--seconds", type=float, default=10.0, help="seconds of load for each page")
    made.add_argument("--alone", type=int, default=30, help="requests of each page, one after the other, after an unmeasured one")
    made.add_argument("--quiet", type=float, default=0.5, help="begin when fewer CPUs than this are busy; 0: do not wait")
    made.add_argument("--patience", type=float, default=60.0, help="maximum seconds to wait for a quiet moment")
    made.add_argument("--json", action="store_true", help="print JSON")
    options = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="web-load-", dir=session.folder()) as folder:
        try:
            report(options, measure(options, Path(folder)))
        finally:
            session.end_session(session.own_name())


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures all figures."""
    say(f"making {options.hosts} hosts with {options.backups} backups")
    site = make_site.make(folder / "state", options.hosts, options.backups)
    host = site.hosts[5]
    with serving(folder, site.state) as web:
        wait_for_quiet(options)
        alone = {name: one_by_one(web, path.format(host=host), options.alone) for name, path in PAGES.items()}
        before = memory(web)
        loaded = {}
        for name, path in LOADED.items():
            wait_for_quiet(options)
            loaded[name] = load(web, path.format(host=host), options.clients, options.seconds)
            say(f"{name}: {loaded[name]['requests_per_second']:.0f}/s")
        for name in WRITING:
            wait_for_quiet(options)
            with writing(site.state):
                loaded[f"{name}, a night on"] = load(web, LOADED[name].format(host=host), options.clients, options.seconds)
        return {"alone": alone, "loaded": loaded, "memory": {"before_load": before, "peak": memory(web)}}


@contextmanager
def writing(state: Path) -> Iterator[None]:
    """Starts a process that writes progress, like the transfers of a night."""
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(state,), daemon=True)
    writer.start()
    try:
        yield
    finally:
        writer.terminate()
        writer.join()


def _write(state: Path) -> None:
    with Catalogue.open(state) as catalogue:
        while True:
            for progress in catalogue.progress():
                catalogue.put_progress(replace(progress, files_done=progress.files_done + 1))
                time.sleep(EVERY)


def one_by_one(web: Dashboard, path: str, count: int) -> dict[str, Any]:
    """Requests one page with one client."""
    answers, connection = Answers(), _connection(web)
    for _ in range(count + 1):
        _ask(connection, path, web.cookie, answers)
    connection.close()
    return _summary(answers, answers.seconds[1:]) | {"first": answers.seconds[0] if answers.seconds else None}


def load(web: Dashboard, path: str, clients: int, seconds: float) -> dict[str, Any]:
    """Requests one page with many clients, for some time. Requests in progress at its end count with their whole time."""
    answers, begun, used = [Answers() for _ in range(clients)], time.perf_counter(), cpu_of(web)
    threads = [threading.Thread(target=_client, args=(web, path, begun + seconds, answer)) for answer in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, used = time.perf_counter() - begun, cpu_of(web) - used
    together = Answers(
        [item for client in answers for item in client.seconds], [item for client in answers for item in client.wrong]
    )
    cpu = used / max(len(together.seconds), 1)
    return {"requests_per_second": len(together.seconds) / took, "cpu": cpu, **_summary(together, together.seconds)}


def _client(web: Dashboard, path: str, end: float, answers: Answers) -> None:
    connection = _connection(web)
    while time.perf_counter() < end:
        _ask(connection, path, web.cookie, answers)
    connection.close()


def _connection(web: Dashboard) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)


def _ask(connection: http.client.HTTPConnection, path: str, cookie: str, answers: Answers) -> None:
    begun = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": cookie})
    response = connection.getresponse()
    response.read()
    took = time.perf_counter() - begun
    if response.status == 200:
        answers.seconds.append(took)
    else:
        answers.wrong.append(f"{path}: {response.status}")


def _summary(answers: Answers, seconds: Sequence[float]) -> dict[str, Any]:
    if not seconds:
        return {"requests": 0, "wrong": answers.wrong[:3]}
    ordered = sorted(seconds)
    return {
        "requests": len(ordered),
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "max": ordered[-1],
        "wrong": answers.wrong[:3],
    }


def cpu_of(web: Dashboard) -> float:
    """Returns the CPU seconds of the process, with all its threads: a busy machine hardly changes this figure."""
    fields = Path(f"/proc/{web.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(web: Dashboard) -> dict[str, int]:
    """Returns the present and the peak memory of the process in bytes."""
    lines = Path(f"/proc/{web.pid}/status").read_text(encoding="utf-8").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {"now": int(values["VmRSS"].split()[0]) << 10, "most": int(values["VmHWM"].split()[0]) << 10}


def report(options: argparse.Namespace, measured: dict[str, Any]) -> None:
    """Prints JSON, or a table in milliseconds."""
    machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()}
    if options.json:
        command = shlex.join(sys.orig_argv[1:])
        print(json.dumps({"bench": "web_load", "machine": machine, "command": command, **measured}, indent=2))
        return
    print(f"btrkeep-web, {options.hosts} hosts with {options.backups} backups; {machine}\n")
    print(f"{'one client':22} {'first':>8} {'p50':>8} {'p99':>8}   ms")
    for name, figures in measured["alone"].items():
        if not figures["requests"]:
            print(f"{name:22} {figures['wrong']}")
            continue
        print(
            f"{name:22} {_ms(figures['first'])} {_ms(figures['p50'])} {_ms(figures['p99'])}"
            + ("  TOO SLOW" if figures["p50"] > LIMIT else "")
        )
    print(f"\n{f'{options.clients} clients':22} {'a second':>8} {'p50':>8} {'p99':>8} {'CPU each':>8}   ms")
    for name, figures in measured["loaded"].items():
        if not figures["requests"]:
            print(f"{name:22} {figures['wrong']}")
            continue
        times = " ".join(_ms(figures[measure]) for measure in ("p50", "p99", "cpu"))
        print(f"{name:22} {figures['requests_per_second']:8.0f} {times}  {figures['wrong'] or ''}")
    for when, figures in measured["memory"].items():
        print(f"memory {when}: {figures['now'] >> 20} MiB now, {figures['most'] >> 20} MiB at the most")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:8.1f}"


if __name__ == "__main__":
    main()
