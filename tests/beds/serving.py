"""The root service as a separate process, and requests over its socket."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from btrkeep.serving.client import RootServiceClient
from tests.beds import session
from tests.beds.cli import BACKUPD, backupd_start


@dataclass(slots=True)
class Service:
    """`log`: its output, which under systemd goes to the journal."""

    process: subprocess.Popen[str]
    socket: Path
    log: Path

    def agent(self, who: str = "alice", patience: float = 20) -> RootServiceClient:
        """Returns a client for the user that runs the test."""
        return RootServiceClient(self.socket, who, patience)

    @property
    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def serving(
    config: Path, *words: str | Path, socket: Path | None = None, program: Sequence[str | Path] = BACKUPD
) -> Iterator[Service]:
    """Runs `backupd serve --no-systemd` while the context lasts; it must end without an error then, unless it has ended before."""
    folder = Path(tempfile.mkdtemp(prefix="serve-", dir=session.folder()))
    folder.chmod(0o755)
    path = socket or folder / "s"
    with (folder / "log").open("w") as log:
        process = backupd_start("--config", config, "serve", "--socket", path, "--no-systemd", *words, stderr=log, program=program)
    service = Service(process, path, folder / "log")
    try:
        _wait(service)
        yield service
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, service.log_text
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel
                process.wait(5)


def _wait(service: Service) -> None:
    end = time.monotonic() + 60
    while not service.socket.exists():
        assert service.process.poll() is None, service.log_text
        assert time.monotonic() < end, service.log_text
        time.sleep(0.02)
    while "serving" not in service.log_text:
        assert time.monotonic() < end, service.log_text
        time.sleep(0.02)
