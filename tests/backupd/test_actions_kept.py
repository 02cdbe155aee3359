"""Which recorded actions are kept when their file is full: no user can remove the actions of others by adding many."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from backupd.repo import actions_log
from backupd.repo.actions_log import UserAction, fair_share

NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)


def line(number: int, by: str, why: str = "") -> bytes:
    return json.dumps(UserAction(NOW + timedelta(seconds=number), "delete", by, "web1", "x", why).as_json()).encode()


def size(lines: list[bytes]) -> int:
    return sum(len(each) + 1 for each in lines)


def test_while_all_fit_all_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(number, by) for number, by in enumerate(("alice", "bob", "alice"))]
    monkeypatch.setattr(actions_log, "LARGEST", size(lines))
    assert fair_share(lines) == lines
    monkeypatch.setattr(actions_log, "LARGEST", size(lines) - 1)
    assert fair_share(lines) == lines[1:]  # the oldest of who has the most


def test_who_adds_many_loses_only_actions_of_his_own_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = line(0, "alice", "the oldest of all"), line(900, "bob")
    many = [line(number, "mallory", "x" * 500) for number in range(1, 200)]
    monkeypatch.setattr(actions_log, "LARGEST", 20_000)
    kept = fair_share([early, *many, late])
    assert (kept[0], kept[-1], kept[1:-1]) == (early, late, many[-len(kept) + 2 :])
    assert size(kept) <= 20_000 < size(kept) + size(many[:1])


def test_lines_that_nobody_understands_count_as_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    torn, ours = [b"{" * 400] * 50, [line(number, "alice") for number in range(10)]
    monkeypatch.setattr(actions_log, "LARGEST", 5_000)
    kept = fair_share([*ours, *torn])
    assert kept[: len(ours)] == ours
    assert set(kept[len(ours) :]) == {torn[0]}
