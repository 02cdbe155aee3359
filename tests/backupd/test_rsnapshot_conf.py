"""rsnapshot.conf in the forms that users write: the settings that are read, and the TOML made of them."""

import os
import tomllib
from pathlib import Path

import pytest

from backupd.run.importing.cli.import_ import suggested
from backupd.run.importing.rsnapshot_conf import read_conf
from btrkeep.errors import UsageError


@pytest.mark.timeout(20)
def test_files_that_include_others_again_and_again_are_refused(tmp_path: Path) -> None:
    """300 to the power of 7 files: days, and all of their lines in memory."""
    for number in range(7):
        (tmp_path / f"{number}").write_text(f"include_conf\t{number + 1}\nbackup_script\ta\tb\n" * 300)
    (tmp_path / "7").write_text("snapshot_root\t/old\n")
    with pytest.raises(UsageError, match="without end"):
        read_conf(tmp_path / "0")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("lines", "times"), [(1, 1001), (200_000, 10), (100, 1)])
def test_patterns_are_read_from_so_many_files_and_so_much_text_and_no_more(tmp_path: Path, lines: int, times: int) -> None:
    """A file that is named repeatedly would be in memory as often."""
    (tmp_path / "patterns").write_text("abc\n" * lines)
    (tmp_path / "conf").write_text(f"exclude_file\t{tmp_path}/patterns\n" * times)
    if times == 1:
        assert read_conf(tmp_path / "conf").exclude == ("abc",) * lines
        return
    with pytest.raises(UsageError, match="without end, or are too long"):
        read_conf(tmp_path / "conf")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("key", ["include_conf", "exclude_file", ""])
def test_a_pipe_and_a_device_are_refused_instead_of_being_read_for_ever(tmp_path: Path, key: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/zero")):
        if not key:
            with pytest.raises(UsageError, match="is not a regular file"):
                read_conf(file)
            continue
        (tmp_path / "conf").write_text(f"{key}\t{file}\nsnapshot_root\t/old\n")
        if key == "include_conf":
            with pytest.raises(UsageError, match="is not a regular file"):
                read_conf(tmp_path / "conf")
        else:
            assert read_conf(tmp_path / "conf").untranslated == (f"exclude_file {file}",)


@pytest.mark.parametrize("host", ["web1", "web1.example.org", "b\u00fcro"])
def test_a_host_with_a_full_name_gets_a_section_of_its_own(tmp_path: Path, host: str) -> None:
    (tmp_path / "conf").write_text(f"backup\troot@web1:/etc/\t{host}/\nretain\tdaily\t7\n", "utf-8")
    answer = tomllib.loads(suggested(read_conf(tmp_path / "conf"), str, []))
    assert answer == {"host": {host: {"address": "root@web1", "paths": ["/etc"], "retention": {"daily": 7}}}}


def test_no_character_of_it_reaches_a_terminal_and_no_number_is_too_long(tmp_path: Path) -> None:
    pattern = 'a\x1b[31m\x7f\x9b31m\u202e"'
    (tmp_path / "conf").write_text(f"exclude\t{pattern}\nbackup\t/etc/\tweb1/\nretain\tdaily\t{'9' * 5000}\n", "utf-8")
    text = suggested(read_conf(tmp_path / "conf"), str, [])
    assert all(name.isprintable() or name == "\n" for name in text)
    assert tomllib.loads(text)["host"]["web1"] == {"paths": ["/etc"], "exclude": [pattern]}
