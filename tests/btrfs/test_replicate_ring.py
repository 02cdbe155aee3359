"""Three servers in a ring: each backs up its own host, and fetches all backups of the next one."""

from collections.abc import Callable
from pathlib import Path

from tests.beds.nights import Nights

FETCHES = {"B": "A", "C": "B", "A": "C"}


def test_a_ring_of_three_never_fails_and_each_has_all(make_btrfs: Callable[..., Path]) -> None:
    ring = {name: Nights(make_btrfs(), "--rehearsal") for name in "ABC"}
    for name, nights in ring.items():
        source = nights.source / f"web{name}"
        source.mkdir()
        (source / "file").write_text(name)
        nights.host(f"web{name}", source)
        nights.tables[f"replica.of{FETCHES[name]}"] = {"from": str(ring[FETCHES[name]].pool)}
        nights.write()
    for day in (1, 2, 3):
        for name, nights in ring.items():
            nights.backupd("run", f"web{name}", "--now", f"2026-03-0{day}T22:00:00Z")
        for name in "BCA":
            done = ring[name].backupd("replicate", "--now", f"2026-03-0{day}T23:30:00Z", check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "demote" not in done.stdout + done.stderr
    for name, nights in ring.items():
        copies = nights.json("status", "--now", "2026-03-04T01:00:00Z")["copies"]
        assert [(copy["state"], copy["behind"]) for copy in copies if copy["kind"] == "replica"] == [("ok", [])]
        assert sorted(path.name for path in (nights.pool / "hosts").iterdir()) == ["webA", "webB", "webC"]
        assert len(list((nights.pool / f"hosts/web{name}").glob("20*"))) == 3  # its own, and no copy of them
