"""Configurations that others may write to: the part of the path that is named, and the effect of the printed command."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from btrkeep import trusted_path
from btrkeep.trusted_path import MOVE_STATE, UntrustedStep, remedy, untrusted_config
from tests.beds import session, work
from tests.beds.leftout import needs_root

OTHER = 61234
pytestmark = needs_root


@pytest.fixture
def main() -> Iterator[Path]:
    """Makes a configuration of root, with a file in its folder; a symlink leads to it."""
    top = Path(tempfile.mkdtemp(prefix="config-", dir=session.folder()))
    folder = top / "real" / "main.d"
    folder.mkdir(parents=True)
    for file in (folder / "web.toml", folder.with_suffix(".toml")):
        file.touch()
    (top / "etc").symlink_to("real")
    for place in (top, *top.rglob("*")):
        if not place.is_symlink():
            place.chmod(0o755)
    yield top / "etc" / "main.toml"
    shutil.rmtree(top)


def test_the_printed_command_mends_each_step(main: Path) -> None:
    assert untrusted_config(main) is None
    real = main.parent.resolve()
    places = [real.parent, real, real / "main.toml", real / "main.d", real / "main.d" / "web.toml"]
    for place in places:
        for spoil in (
            ["chmod", "g+w"],
            ["chmod", "o+w"],
            ["chown", str(OTHER)],
            *([["setfacl", "-m", f"g:{OTHER}:rwx"]] * has_acls()),
        ):
            work(*spoil, place)
            step = untrusted_config(main)
            assert step
            assert step.place == place
            work("sh", "-c", remedy(step))
            assert untrusted_config(main) is None, (spoil, place)
    os.chown(main.parent, OTHER, -1, follow_symlinks=False)
    step = untrusted_config(main)
    assert step
    assert step.place == main.parent
    work("sh", "-c", remedy(step))
    assert untrusted_config(main) is None


def has_acls() -> bool:
    return shutil.which("setfacl") is not None


def test_a_home_folder_is_not_given_to_root(main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That command would have locked out the user whose home folder has the configuration."""
    home = main.parent.resolve()
    os.chown(home, OTHER, -1)
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_name="ada", pw_dir=str(home)))
    step = untrusted_config(main)
    assert step
    assert (step.place, step.reason) == (home, "belongs to the user ada")
    assert remedy(step) == "move the configuration to a folder that belongs to root, such as /etc/btrkeep"


@pytest.mark.parametrize("is_open", [True, False])
def test_what_a_server_owns_is_moved_and_not_changed(main: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool) -> None:
    """NFS with root_squash refuses the chown, and CIFS ignores the chmod, so the printed command would not help."""
    step = UntrustedStep(main.parent, "belongs to the user nobody", is_open)
    assert remedy(step, MOVE_STATE).startswith(("chmod ", "chown "))
    monkeypatch.setattr(trusted_path, "is_remote", lambda place: place == main.parent)
    assert remedy(step, MOVE_STATE) == MOVE_STATE
