"""How plans and runs are shown, and the meaning of the options of `plan` and `run`. No btrfs is needed."""

import io
import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click
import pytest
from rich.console import Console

from balancer import choose
from balancer.cli import COMMANDS, balance_live, group
from balancer.cli.balance_live import BalanceDisplay, RunPace
from balancer.cli.options import moment, pressure, size_or_share
from balancer.cli.plan_and_run import exit_status, settings_of
from balancer.cli.plan_view import cut_of, lines, plan_as_json, report_as_json, sentence
from balancer.cli.run import run_command
from balancer.cli.run_view import BalanceLines, report_lines, step_line, warnings_on_stderr
from balancer.run_types import (
    INTENDED,
    BalanceOutcome,
    BalanceProgress,
    BalanceStarted,
    Cancelling,
    RelocationObstacle,
    RoomFloor,
    RunSettings,
    StopReason,
)
from btrkeep.choices import BALANCE_POLICIES
from btrkeep.errors import Exit
from btrkeep.process.progress import Notice, Waiting
from tests.balancer.made import GIB, MIB, NOON, UUID, done, numbers, planned, report, view
from tests.balancer.program import balancer
from tests.beds import TOP

PAGE = (TOP / "docs" / "balance.rst").read_text(encoding="utf-8")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


# --- options


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "now", "utc"),
    [
        ("06:00", "2026-11-20T22:15:00", "2026-11-21T05:00:00"),
        ("06:00", "2026-11-20T05:59:59", "2026-11-20T05:00:00"),
        ("6:00", "2026-11-20T06:00:00", "2026-11-21T05:00:00"),  # at six sharp, tomorrow's
        ("06:00", "2026-10-24T23:00:00", "2026-10-25T05:00:00"),  # the night is an hour longer
        ("06:00", "2026-03-28T23:00:00", "2026-03-29T04:00:00"),  # and an hour shorter
        ("2026-11-20T06:00:00+02:00", "2027-01-01T00:00:00", "2026-11-20T04:00:00"),
    ],
)
@pytest.mark.usefixtures("berlin")
def test_until_is_the_next_time_on_the_clocks_of_this_machine(text: str, now: str, utc: str) -> None:
    result = moment(text, datetime.fromisoformat(now))
    assert result == datetime.fromisoformat(utc).replace(tzinfo=UTC)


def test_until_is_the_next_time_in_the_zone_of_the_pool() -> None:
    zone = ZoneInfo("America/Los_Angeles")
    for now, utc in (("2026-11-20T22:15", "2026-11-21T14:00"), ("2026-03-07T23:00", "2026-03-08T13:00")):
        assert moment("06:00", datetime.fromisoformat(now), zone) == datetime.fromisoformat(utc).replace(tzinfo=UTC)
    before = datetime.now(UTC)
    following = moment("06:00", zone=zone)
    assert before < following <= before + timedelta(hours=25)
    assert f"{following.astimezone(zone):%H:%M}" == "06:00"


@pytest.mark.parametrize(
    "text", ["", "6", "24:00", "06:60", "06:00Z", "06:00:00", "noon", "2026-11-20T06:00:00", "\u0660\u0666:00"]
)
def test_what_is_no_time_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|names no zone"):
        moment(text, datetime(2026, 11, 20))  # noqa: DTZ001


def test_room_is_a_size_or_a_share_and_pressure_a_share_or_none() -> None:
    assert (size_or_share("4GiB"), size_or_share("3%")) == (4 * GIB, 0.03)
    assert [pressure(text) for text in ("40%", "40", "none")] == [0.4, 0.4, None]
    for text in ("x", "101", "-1", "40%%"):
        with pytest.raises(ValueError, match="is not a share"):
            pressure(text)


def test_an_option_that_is_not_given_leaves_what_the_policy_has() -> None:
    for policy, floors in choose.FLOORS.items():
        assert settings_of(None, policy=policy) == RunSettings(policy=policy, floors=floors)
    run_settings = settings_of(
        None,
        budget=GIB,
        time=60.0,
        policy="score",
        min_score=7.0,
        min_benefit=0.0,
        min_unallocated=0.03,
        yield_to_backups=False,
        max_pressure="none",
        patience=5.0,
    )
    assert (run_settings.floors.min_score, run_settings.floors.min_benefit, run_settings.budget, run_settings.time) == (
        7.0,
        0.0,
        GIB,
        60.0,
    )
    assert (run_settings.yield_to_backups, run_settings.wait_for_others, run_settings.patience, run_settings.max_pressure) == (
        False,
        True,
        5.0,
        None,
    )
    assert run_settings.min_unallocated.of(1000 * GIB) == 30 * GIB
    assert settings_of(None, min_unallocated=0).min_unallocated == RoomFloor(0, 1.0)
    assert settings_of(None, min_unallocated=500 * GIB).min_unallocated.of(1000 * GIB) == 500 * GIB


def test_help_knows_the_policies_without_numpy() -> None:
    for name in ("plan", "run"):
        text = balancer(name, "--help", COLUMNS="80").stdout
        for policy in BALANCE_POLICIES:
            assert re.search(rf"^    {policy} ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["plan", "/", "--budget", "much"], "'much' is not a size"),
        (["plan", "/", "--time", "60"], "'60' is not a duration"),
        (["run", "/", "--policy", "best"], "'best' is not one of"),
        (["run", "/", "--until", "6 o'clock"], "is not a time: write it like 06:00"),
        (["run", "/", "--min-unallocated", "some"], "is neither a size nor a share"),
        (["run", "/", "--max-pressure", "high"], "is not a share"),
        (["plan", "/", "--until", "06:00"], "plan has no option --until"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_value_that_is_not_understood_is_one_line_and_a_hint(words: list[str], error: str) -> None:
    process = balancer(*words, check=False)
    assert (process.returncode, process.stdout) == (2, "")
    first, second = process.stderr.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")


# --- a plan


def five(**fields: Any) -> list[Any]:
    return [planned(number, GIB, **fields) for number in range(5)]


def test_a_plan_ends_where_the_first_of_its_limits_does() -> None:
    three = [*five()[:3], *(planned(number, GIB, is_within=False) for number in (3, 4))]
    budget = RunSettings(budget=3 * GIB)
    assert cut_of(five(), RunSettings(), NOON).number == 5
    assert cut_of(five(), RunSettings(), NOON).words == ""
    assert (cut_of(three, budget, NOON).number, cut_of(three, budget, NOON).words) == (3, "the budget of 3 GiB ends here")
    # ten seconds each: the second would end at 20 s
    assert cut_of(three, RunSettings(budget=3 * GIB, time=20.0), NOON).number == 2
    assert cut_of(three, RunSettings(budget=3 * GIB, time=19.0), NOON).number == 1
    assert "the time limit of 1m" in cut_of([*five(), *five()], RunSettings(time=60.0), NOON).words
    window = cut_of(five(), RunSettings(time=60.0, until=NOON + timedelta(seconds=35)), NOON)
    assert (window.number, window.words) == (3, "the time until 2026-11-20 12:00 +0000 ends about here")
    assert cut_of(five(), RunSettings(until=NOON - timedelta(hours=1)), NOON).number == 0


@pytest.mark.parametrize("width", [60, 80, 100, 120, 0])
def test_a_plan_fits_the_terminal_and_always_has_place_size_score_and_time(width: int) -> None:
    plans = [*five()[:3], *(planned(number, GIB, is_within=False) for number in (3, 4))]
    settings = RunSettings(budget=3 * GIB)
    text = lines(UUID, numbers(), plans, cut_of(plans, settings, NOON), "", width)
    assert not width or max(len(click.unstyle(line)) for line in text) <= width
    head = next(line.split() for line in text if "VADDR" in line)
    assert {"VADDR", "USED", "SCORE", "TIME"} <= set(head)
    if width in (80, 0):
        assert {"EXTENTS", "REFS", "METADATA", "TOTAL"} <= set(head)
    if not width:
        assert head == ["VADDR", "USED", "FRAGS", "SCORE", "BENEFIT", "EXTENTS", "REFS", "METADATA", "TIME", "TOTAL"]
    at = next(number for number, line in enumerate(text) if line.lstrip().startswith("VADDR"))
    rows = [click.unstyle(line) for line in text[at + 1 : at + 7]]
    assert [number for number, row in enumerate(rows) if row == "--- the budget of 3 GiB ends here ---"] == [3]
    assert [row.split()[0] for row in rows if row[0] != "-"] == [str(plan.vaddr) for plan in plans]


def test_the_sentence_counts_what_is_within_the_limits_only() -> None:
    plans = [planned(0, GIB // 4), planned(1, GIB // 2), planned(2, GIB // 2, is_within=False)]
    settings = RunSettings(budget=GIB)
    text = sentence(numbers(score=10_000.0), plans, cut_of(plans, settings, NOON), "")
    assert text.startswith("2 of 3 block groups: 768 MiB would be moved, and about 6.00 MiB of metadata written, in about 20s.")
    assert "about 7,805 of the score of 10,000 (78%)" in text  # 2 * 3902.4
    assert "1.25 GiB that are free in 24,690 pieces now would become unallocated" in text


def test_a_plan_of_nothing_says_why() -> None:
    assert sentence(numbers(), [], cut_of([], RunSettings(), NOON), "all is well") == "Nothing is worth balancing: all is well."
    small = RunSettings(budget=GIB // 8)
    plans = [planned(0, GIB // 2, is_within=False), planned(1, GIB // 4, is_within=False)]
    assert "The smallest block group that is worth it moves 256 MiB" in sentence(numbers(), plans, cut_of(plans, small, NOON), "")


# --- a run, line by line


def test_a_line_tells_what_became_of_a_block_group() -> None:
    assert step_line(done()) == (
        "1: block group 46000000000000: score 5,000 -> 1,200, 512 MiB moved, 600 MiB written (1.2x), 12s, 9.00 GiB unallocated"
    )
    assert step_line(done(outcome=BalanceOutcome.GONE)) == "1: block group 46000000000000: no longer existed before it was balanced"
    failed = step_line(done(outcome=BalanceOutcome.FAILED, error="Input/output\x1b[31m error"))
    assert failed == r"1: block group 46000000000000: failed (Input/output\x1b[31m error); this run skips it"
    assert "no free space" in step_line(done(outcome=BalanceOutcome.NO_SPACE, error="No space left on device"))
    assert "cancelled, score" in step_line(done(outcome=BalanceOutcome.CANCELLED, moved=MIB, written=2 * MIB))
    short = step_line(done(), longest=80)
    assert len(short) <= 80
    assert short == "1: 46000000000000: score 5,000 -> 1,200, 512 MiB moved, 600 MiB written (1.2x)"


def test_a_pipe_gets_one_line_for_each_block_group_and_one_for_each_reason_to_wait(capsys: pytest.CaptureFixture[str]) -> None:
    sink = BalanceLines()
    sink(BalanceStarted(numbers(), RunSettings(budget=20 * GIB)))
    for seconds in range(3):
        sink(Waiting(f"programs wait for the disks {41 + seconds}% of the time"))
    for number in (1, 2):
        sink(view(number))
        sink(BalanceProgress(0, 0, 1.0, 0, 0))
        sink(done(number))
    sink(Cancelling("received SIGTERM", 46000000000000))
    sink(Notice("a\x1bb"))
    text = capsys.readouterr()
    assert text.err == ""
    assert [line.split(":")[0] for line in text.out.splitlines()] == [
        "balancing by benefit",
        "waiting",
        "1",
        "2",
        "stopping",
        "note",
    ]
    assert r"a\x1bb" in text.out
    assert "at most 20 GiB" in text.out


def test_quiet_says_only_what_is_wrong_and_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    sink = BalanceLines(quiet=True)
    sink(BalanceStarted(numbers(), RunSettings()))
    sink(done())
    sink(report(done()))
    assert capsys.readouterr() == ("", "")
    sink(done(outcome=BalanceOutcome.FAILED, error="Input/output error"))
    sink(Notice("this is not recorded"))
    sink(report(done(), reason=StopReason.UNALLOCATED, why="1.00 GiB are unallocated"))
    text = capsys.readouterr()
    assert text.out == ""
    assert [line.split(":")[0] for line in text.err.splitlines()] == ["1", "note", "The run stopped"]


def test_json_leaves_standard_output_to_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    sink = warnings_on_stderr
    sink(BalanceStarted(numbers(), RunSettings()))
    sink(done())
    sink(Notice("this is not recorded"))
    sink(report(done()))
    assert capsys.readouterr() == ("", "note: this is not recorded\n")


# --- the report


def test_the_report_has_before_after_and_change_of_everything() -> None:
    text = "\n".join(report_lines(report(done(1), done(2))))
    for row in (
        r"block groups of data +40 +39 +-1",
        r"allocated for data +40\.0 GiB +39\.0 GiB +-1\.00 GiB",
        r"used for data +30\.0 GiB +30\.0 GiB$",
        r"unallocated +8\.00 GiB +9\.00 GiB +\+1\.00 GiB",
        r"fragments +6,176 +3,000 +-3,176",
        r"score +3,674 +1,200 +-2,474",
        r"largest free extent +600 MiB +600 MiB$",
        r"in free extents of 16 MiB\+ +2\.00 GiB +2\.00 GiB$",
    ):
        assert re.search(f"^{row}", text, re.MULTILINE), row
    flat = " ".join(text.split())
    assert (
        "1.00 GiB moved out of 2 block groups in 34s, 1.17 GiB were written to the devices: 1.17 bytes written per byte moved."
        in flat
    )
    assert flat.endswith("The run ended: no further block group is worth it.")
    assert max(map(len, text.splitlines())) <= 80


def test_the_report_names_the_block_groups_that_did_not_go_well() -> None:
    steps = [
        done(1, BalanceOutcome.NO_SPACE, error="No space left on device"),
        done(2, BalanceOutcome.FAILED, error="Input/\noutput error"),
        done(3, BalanceOutcome.CANCELLED, error="Operation canceled"),
    ]
    text = " ".join(" ".join(report_lines(report(*steps, reason=StopReason.SIGNAL, why="received SIGINT"))).split())
    assert "Block group 46000000000000: the kernel found no free space for its data (No space left on device)." in text
    assert r"failed (Input/\noutput error)" in text
    assert "cancelled." in text
    assert "per byte" not in text
    assert text.endswith("The run stopped: received SIGINT.")
    assert "Nothing was moved" in " ".join(report_lines(report()))


@pytest.mark.parametrize("reason", StopReason)
def test_the_exit_status_says_whether_it_came_to_its_end(reason: StopReason) -> None:
    expected = {StopReason.SIGNAL: Exit.TERMINATED}.get(reason, Exit.OK if reason in INTENDED else Exit.ATTENTION)
    assert exit_status(report(done(), reason=reason, signal=15 if reason is StopReason.SIGNAL else None)) == expected


def test_a_balance_stopped_by_another_program_needs_attention() -> None:
    assert exit_status(report(done(), reason=StopReason.SIGNAL)) == Exit.ATTENTION


def test_a_block_group_that_failed_needs_a_look_and_one_without_room_does_not() -> None:
    assert exit_status(report(done(), done(2, BalanceOutcome.FAILED))) == Exit.ATTENTION
    assert exit_status(report(done(), done(2, BalanceOutcome.NO_SPACE), done(3, BalanceOutcome.GONE))) == Exit.OK
    assert (
        exit_status(report(done(), done(2, BalanceOutcome.FAILED, error="any words", obstacle=RelocationObstacle.SWAP))) == Exit.OK
    )
    assert exit_status(report(done(), reason=StopReason.SIGNAL, signal=2)) == Exit.INTERRUPTED
    assert exit_status(report(done(), reason=StopReason.SIGNAL, signal=1)) == Exit.TERMINATED  # the terminal is gone


# --- the live display


def shown(width: int, *, colour: bool = True) -> tuple[BalanceDisplay, io.StringIO]:
    text = io.StringIO()
    sink = BalanceDisplay()
    sink.console = Console(
        file=text, width=width, height=30, force_terminal=True, color_system="256" if colour else None, highlight=False
    )
    return sink, text


def picture(sink: BalanceDisplay) -> list[str]:
    """The current content of the screen."""
    text = io.StringIO()
    Console(file=text, width=sink.console.width, highlight=False).print(sink.picture())
    return text.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_picture_has_the_block_group_its_map_and_what_is_left_at_any_width(width: int) -> None:
    sink, _ = shown(width)
    sink(BalanceStarted(numbers(), RunSettings(budget=20 * GIB)))
    sink(view(1, left=20 * GIB))
    sink(BalanceProgress(left=128 * MIB, written=500 * MIB, seconds=5.0, total_moved=384 * MIB, total_written=500 * MIB))
    drawn = picture(sink)
    flat = " ".join(" ".join(drawn).split())
    assert max(map(len, drawn)) <= width
    assert "block group 46000000000000" in flat
    assert "score 3,902.4" in flat
    assert "384 MiB of 512 MiB" in flat
    assert "384 MiB of 20 GiB" in flat
    assert "about 15s left" in flat
    assert "384 MiB moved, 500 MiB written (1.3x), score 3,674" in flat
    cells = [line for line in drawn if line.startswith("▏")]
    assert len(cells) * (len(cells[0]) - 2) * 2 == 256
    assert len({len(line) for line in cells}) == 1
    sink(done(1))
    assert "block group" not in " ".join(picture(sink))
    sink(Waiting("backups come first: backupd\x1b[2J run"))
    assert r"waiting: backups come first: backupd\x1b[2J run" in " ".join(" ".join(picture(sink)).split())
    sink(view(2))
    sink(Cancelling("received SIGINT", 46000000000000))
    output = " ".join(" ".join(picture(sink)).split())
    assert "stopping: received SIGINT; the kernel cancels the block group at 46000000000000" in output
    sink.close()


def test_without_colours_the_map_is_drawn_in_half_blocks_and_in_an_old_locale_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, _ = shown(80, colour=False)
    sink(BalanceStarted(numbers(), RunSettings()))
    sink(view())
    cells = [line for line in picture(sink) if line.startswith("▏")]
    assert [set(line[1:-1]) for line in cells] == [{" "}, {"█"}]  # from free to used
    sink.close()
    monkeypatch.setattr(balance_live, "has_blocks", lambda: False)
    sink, _ = shown(80, colour=False)
    sink(BalanceStarted(numbers(), RunSettings()))
    sink(view())
    assert [set(line.strip("|")) for line in picture(sink) if line.startswith("|")] == [{" "}, {"#"}]
    sink.close()


def test_what_is_done_scrolls_away_and_the_report_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    sink, text = shown(100)
    sink(BalanceStarted(numbers(), RunSettings()))
    sink(view())
    sink(done())
    sink(report(done()))
    plain = ESCAPES.sub("", text.getvalue())
    assert "1: 46000000000000: score 5,000 -> 1,200, 512 MiB moved, 600 MiB written (1.2x), 12s\n" in plain
    assert plain.rstrip().endswith("The run ended: no further block group is worth it.")
    assert text.getvalue().count("\x1b[?25l") == text.getvalue().count("\x1b[?25h") == 1  # the cursor is back


def test_how_far_a_run_is_goes_by_the_limit_that_is_nearest() -> None:
    pace = RunPace(RunSettings(budget=10 * GIB, time=100.0), 1000.0, NOON)
    pace.step_begins(view(candidates=4))
    assert pace.share(5 * GIB, 1010.0) == (0.5, "5.00 GiB of 10 GiB")
    assert pace.share(GIB, 1080.0) == (0.8, "1m 20s of 1m 40s")
    assert pace.left(5 * GIB, 1020.0) == 20.0  # as fast as up to now
    assert pace.left(GIB, 1080.0) == 20.0  # the time is over before
    window = RunPace(RunSettings(until=NOON + timedelta(hours=1)), 0.0, NOON)
    assert window.left(0, 1800.0) == 1800.0
    free = RunPace(RunSettings(), 0.0, NOON)
    assert free.step_share(None) == (0.0, "")
    free.step_begins(view(candidates=4))
    assert free.left(0, 10.0) is None
    assert free.step_share(BalanceProgress(512 * MIB, 0, 5.0, 0, 0)) == (0.25, "copying 512 MiB")  # a quarter of the time
    assert free.step_share(BalanceProgress(512 * MIB, 0, 99.0, 0, 0)) == (0.95, "copying 512 MiB")
    assert free.step_share(BalanceProgress(0, 0, 5.0, 0, 0)) == (1.0, "512 MiB of 512 MiB")
    free.step_ends(done())
    assert free.share(0, 12.0) == (0.25, "1 of 4 block groups")
    assert free.left(0, 12.0) == 36.0  # three more, twelve seconds each


# --- JSON and documents


def examples() -> list[dict[str, Any]]:
    blocks = PAGE.split(".. code-block:: json")[1:]
    return [json.loads(block.split("\n\n")[1]) for block in blocks]


def keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(value[0])] if isinstance(value, list) else None


def test_the_json_on_the_page_has_the_fields_that_the_program_prints() -> None:
    settings, plans = RunSettings(), five()
    plan = plan_as_json(UUID, numbers(), plans, cut_of(plans, settings, NOON), settings)
    assert [keys(example) for example in examples()] == [keys(plan), keys(report_as_json(report(done()), settings))]
    json.dumps(plan)


def test_the_page_names_every_ending_every_outcome_and_every_option_that_decides() -> None:
    page = " ".join(PAGE.split())
    for word in (*StopReason, *BalanceOutcome, *BALANCE_POLICIES):
        assert f"``{word}``" in page, word
    names = set()
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command
        names |= {option for param in command.params for option in param.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= names
    floors = choose.Floors()
    assert f"must have a score of at least {floors.min_score:g} " in page
    assert f"lose {floors.min_benefit:g} for each GiB" in page
    least = RoomFloor()
    whole = least.size / least.share / GIB
    assert f"{least.size // GIB} GiB by default, or {least.share:.0%} of a filesystem of less than {whole:.0f} GiB" in page


def test_no_flag_is_false_when_given() -> None:
    """click 8.3.0 also uses flag_value=False as the default: then a run never waited for backups, with or without --no-yield."""
    options = [param for param in run_command.params if isinstance(param, click.Option) and param.is_flag]
    assert [option.name for option in options if option.flag_value is False] == []
    for words, yields in (([], True), (["--no-yield"], False)):
        assert run_command.make_context("run", words).params["yield_to_backups"] is yields
