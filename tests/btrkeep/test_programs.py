"""Programs that run to their end, and the command lines that messages print for a shell."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrkeep.process.programs import ProgramFailed, ProgramResult, paste_line, run


def test_a_program_that_works_tells_what_it_printed() -> None:
    assert run(["sh", "-c", "echo out; echo err >&2"]) == ProgramResult(("sh", "-c", "echo out; echo err >&2"), 0, "out\n", "err\n")


def test_bytes_that_are_no_text_survive() -> None:
    assert run(["printf", r"\377\n"]).stdout == "\udcff\n"


def test_a_program_that_fails_is_told_by_its_last_words() -> None:
    with pytest.raises(ProgramFailed) as caught:
        run(["sh", "-c", "echo first >&2; echo the reason >&2; exit 3"])
    assert caught.value.message == "sh: the reason"
    assert caught.value.finished.returncode == 3
    with pytest.raises(ProgramFailed, match="exit status 3"):
        run(["sh", "-c", "exit 3"])
    assert run(["sh", "-c", "exit 3"], check=False).returncode == 3


@pytest.mark.parametrize("check", [False, True])
def test_a_program_that_is_missing_or_does_not_end_fails_in_any_case(check: bool) -> None:
    with pytest.raises(ProgramFailed, match="not installed"):
        run(["/no/such/program"], check=check)
    with pytest.raises(ProgramFailed, match="cannot be run: Permission denied"):
        run(["/etc/passwd"], check=check)
    with pytest.raises(ProgramFailed, match="did not end within"):
        run(["sleep", "20"], timeout=0.2, check=check)


def test_a_program_that_reads_its_input_finds_none() -> None:
    assert run(["cat"], timeout=5).stdout == ""


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@pytest.mark.slow
@given(st.lists(WORDS, max_size=4))
def test_a_pasted_line_gives_the_shell_the_very_words(words: list[str]) -> None:
    output = subprocess.run(["sh", "-c", paste_line(["printf", r"%s\0", *words])], capture_output=True, check=True).stdout
    assert output == b"".join(word.encode() + b"\0" for word in words or [""])
