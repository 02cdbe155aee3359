"""A host with `engine = "send"`: its btrkeep-source behind a real sshd, its subvolume on a btrfs of its own."""

import os
import random
import re
from pathlib import Path
from typing import Any

from tests.beds.nights import Nights
from tests.beds.source_program import HIDDEN, SourceHost
from tests.beds.ssh import Sshd
from tests.beds.work import work


class Web1:
    """A host whose source path is a subvolume."""

    def __init__(self, nights: Nights, sshd: Sshd, top: Path) -> None:
        self.nights, self.top, self.srv = nights, top, top / "srv"
        self.program = SourceHost(sshd)
        self.program.ssh("office")
        work("btrfs", "-q", "subvolume", "create", self.srv)
        (self.srv / "www").mkdir()
        (self.srv / "www/page").write_text("first")
        (self.srv / "big").write_bytes(random.Random(1).randbytes(4 << 20))
        os.link(self.srv / "www/page", self.srv / "second-name")
        nights.settings("ssh", command="ssh -F none", key=str(self.program.keys["office"]), known_hosts=str(sshd.known_hosts))
        self.configure()

    def configure(self, *paths: Path, engine: str = "send", **keys: Any) -> None:
        sshd = self.program.sshd
        self.nights.host("web1", *(paths or (self.srv,)), address=sshd.address, port=sshd.port, engine=engine, **keys)

    def run(self, outcome: str = "complete") -> dict[str, Any]:
        result = self.nights.run("web1", status=0 if outcome == "complete" else 1)["web1"]
        assert result["outcome"] == outcome, result
        return result

    def path(self) -> dict[str, Any]:
        (path,) = self.nights.record("web1")["paths"]
        return dict(path)

    def differences(self) -> list[str]:
        """Returns the differences between the host and its newest backup, which does not contain our own folder."""
        own = re.compile(rf"b'{re.escape(HIDDEN)}(/.*)?': only in the source")
        return [line for line in self.nights.differences("web1", self.srv) if not own.fullmatch(line)]

    def kept(self) -> list[Path]:
        return sorted((self.srv / HIDDEN).iterdir())
