"""Which other copies of a host are named when this pool cannot read a backup."""

import shlex
from pathlib import Path

import pytest

from backupd.files.cli.restore_view import restic_line
from btrkeep.config.config_model import CopySettings, OffsiteSettings, PushSettings, ReplicaSettings
from btrkeep.decisions.copy_status import KnownCopies, other_copies

NEWEST = "2026-03-20T220000Z"
BOTH = {"web1": NEWEST}
FAR = OffsiteSettings(
    "far",
    repository="rest:https://user:secret@example.org/a b",
    password_file=Path("/etc/p w"),
    environment_file=Path("/etc/it's"),
    hosts=("web*",),
)
CONFIGURED: dict[str, CopySettings] = {
    "office": ReplicaSettings("office", address="root@backup1"),
    "away": PushSettings("away", address="root@backup3", hosts=("web*",)),
    "far": FAR,
}


@pytest.mark.parametrize(
    ("host", "known_copies", "offsite", "named"),
    [
        ("web1", KnownCopies(), {}, []),
        ("web1", KnownCopies(), {"far": {"web1": NEWEST}}, [("far", NEWEST)]),
        ("web1", KnownCopies({}, {"away": {"web1": NEWEST}}), {}, [("away", NEWEST)]),
        ("web1", KnownCopies({}, {"backup2": {"web1": NEWEST, "db1": NEWEST}}), {}, [("backup2", NEWEST)]),
        ("web1", KnownCopies({"web1": "office"}, {}), {}, [("office", None)]),
        ("web1", KnownCopies({"web1": "office"}, {"office": BOTH}), {"far": BOTH}, [("office", NEWEST), ("far", NEWEST)]),
        ("web1", None, {}, [("away", None), ("office", None), ("far", None)]),
        ("db1", None, {}, [("office", None)]),
    ],
)  # fmt: skip
def test_those_copies_are_named_that_are_known_to_have_the_host(
    host: str, known_copies: KnownCopies | None, offsite: dict[str, dict[str, str]], named: list[tuple[str, str | None]]
) -> None:
    assert [(copy.name, copy.newest) for copy in other_copies(CONFIGURED, known_copies, offsite, host)] == named


def test_a_line_for_restic_shows_no_secret_and_is_quoted_for_the_shell() -> None:
    line = restic_line(FAR, "1-2", "web1", NEWEST, ["/srv/a [b]*", "/"], "/mnt/x y")
    assert "secret" not in line
    words = shlex.split(line.strip("()").replace(";", " ; "))
    assert words[:6] == ["set", "-a", ";", ".", "/etc/it's", ";"]
    assert words[6:] == [
        *("restic", "-r", "rest:https://***@example.org/a b", "-p", "/etc/p w", "restore", "latest", "--host", "web1"),
        *("--tag", f"btrkeep,pool:1-2,backup:{NEWEST}", "--include", r"/btrkeep/data/srv/a \[b]\*", "--include", "/btrkeep/data"),
        *("--target", "/mnt/x y"),
    ]
    assert "backup:" not in restic_line(FAR, None, "web1", "2026-03", [], "/mnt/x")
