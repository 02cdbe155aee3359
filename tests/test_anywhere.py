"""A checkout works everywhere: in a home that only its owner may enter, in a folder with a space in its name, under any umask.

Only this long form runs btrkeep's tests in such a place. Ordinary tests (test_beds.py, test_structure.py) also check that a user
without rights can run the code of root's checkout, and that the scripts quote names with spaces.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds import TOP, session, work
from tests.beds.anyone import without_rights
from tests.test_structure import tracked_files

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.root, pytest.mark.btrfs]

# A server and a btrkeep command without rights, a stand-in for ssh, and a signal that nohup ignores.
CHOSEN = (
    "tests/test_beds.py::test_who_has_no_rights_runs_the_code_of_this_checkout_and_may_not_change_it",
    "tests/web/test_gate_cli.py::test_a_user_logs_in_over_a_socket_and_sees_a_page",
    "tests/backupd/test_cli_pool.py::test_a_user_other_than_root_gets_one_line_that_says_so[status]",
    "tests/backupd/test_command.py::test_the_probe_of_a_source_that_is_missing_fails",
    "tests/btrfs/test_signals.py::test_a_terminal_that_goes_away_stops_the_run_cleanly[lines]",
)


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A copy of this checkout that only root may read."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=session.folder()))
    top = home / "a folder"
    for path in tracked_files():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / path, top / path)
    work("chmod", "-R", "go=", home)
    yield top
    shutil.rmtree(home)


def test_tests_pass_in_a_folder_of_roots_with_a_space_in_its_name_under_nohup_and_leave_nothing(
    checkout: Path, tmp_path: Path
) -> None:
    place = checkout.parent / "place"  # the folder of that session
    place.mkdir(mode=0o755)
    checkout.parent.chmod(0o711)
    assert work(*without_rights(), "ls", checkout, check=False, cwd=Path("/")).returncode == 2
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", tmp_path / "tests", *CHOSEN)
    done = work(
        *("sh", "-c", 'umask 077; exec nohup env -u PYTEST_XDIST_WORKER "$@"', "-", sys.executable, *words),
        cwd=checkout,
        env={session.PLACE: str(place), "PYTHONPATH": str(checkout)},
        check=False,
    )
    assert f"{len(CHOSEN)} passed" in done.stdout, done.stdout + done.stderr
    assert list(place.iterdir()) == []
    assert not session.mounts_below(place)
