"""Each limit of the bytes of answers separately: unread answers, one answer, the list of jobs."""

import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backupd.serve import answering, verbs
from backupd.serve.jobs import JobStore, ServeJob, new_id
from backupd.serve.request_checks import Right, checked
from backupd.serve.service_context import Call, ConcurrencyLimit, ServiceContext
from backupd.serve.verbs import VERBS, Verb, tasks
from btrkeep.clock import Clock
from btrkeep.serving.protocol import encoded
from btrkeep.serving.server import Peer, Wire
from btrkeep.serving.viewer import NoSlot, UnreadBytes, Viewer

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
ADA, BOB, EVE = (Viewer(name, "admin") for name in ("ada", "bob", "eve"))


@pytest.fixture
def service(tmp_path: Path) -> ServiceContext:
    file = tmp_path / "main.toml"
    file.write_text(f'[pool]\npath = "/srv/backup"\nstate = "{tmp_path}"\n')
    return ServiceContext("main", file, Clock(), systemd=False)


def is_own(unread: UnreadBytes, viewer: Viewer, size: int) -> bool:
    """Returns True if the refusal is because of the viewer's own answers."""
    with pytest.raises(NoSlot) as caught, unread.taken(viewer, size):
        pass
    return caught.value.own


def test_unread_answers_are_bounded_for_each_user_and_in_all_and_are_given_back() -> None:
    unread = UnreadBytes(in_all=100, of_one=80)
    for _ in range(2):
        with unread.taken(ADA, 70), unread.taken(BOB, 30):
            assert is_own(unread, ADA, 11)
            assert not is_own(unread, ADA, 10)
            with unread.taken(EVE, 1000):  # a user without unread answers gets one of any size
                assert not is_own(unread, Viewer("carl", "admin"), 1)
        with suppress(KeyError), unread.taken(ADA, 1000):
            raise KeyError


def test_users_of_one_customer_are_one() -> None:
    unread = UnreadBytes(in_all=100, of_one=80)
    with unread.taken(Viewer("ada", "viewer", ("acme-*",)), 70):
        assert is_own(unread, Viewer("bob", "viewer", ("acme-*",)), 11)
        with unread.taken(Viewer("eve", "viewer", ("beta-*",)), 11):
            pass


@pytest.mark.parametrize(
    ("longest", "unread", "kind", "words"),
    [
        (999, UnreadBytes(), "refused", "the answer has"),
        (9999, UnreadBytes(in_all=-1), "busy", "too many bytes of answers are unread"),
        (9999, UnreadBytes(), "", ""),
    ],
)
def test_too_long_an_answer_and_one_too_many_are_refused(
    service: ServiceContext, monkeypatch: pytest.MonkeyPatch, longest: int, unread: UnreadBytes, kind: str, words: str
) -> None:
    class Long(Verb):
        def function(self, name: str) -> verbs.Function:
            return lambda _call: "x" * 1000

    monkeypatch.setattr(answering, "VERBS", {"plan": Long("x", {}, Right.POOL, ConcurrencyLimit(1, 1), longest)})
    monkeypatch.setattr(answering, "viewer_of", lambda *_: ADA)
    service.unread = unread
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(encoded({"verb": "plan", "who": "ada", "arguments": {}}))
        answering.answer(service, theirs, frozenset((os.getuid(),)))
        answer = json.loads(ours.recv(10_000))
    assert (answer["ok"], answer.get("kind", "")) == (not kind, kind)
    assert words in answer.get("error", "")


@pytest.mark.parametrize(("limit", "size", "counts"), [(2, 1, [2, 2, 2, 1, 0]), (1000, 1_200_000, [3, 2, 0])])
def test_jobs_come_in_answers_one_after_the_other(
    service: ServiceContext, tmp_path: Path, limit: int, size: int, counts: list[int]
) -> None:
    """An answer is limited by the number of jobs and by their bytes: three jobs of a megabyte fit."""
    names = [new_id(NOW + timedelta(seconds=number)) for number in range(sum(counts))]
    asked, paths = "2026-11-21T21:00:00Z", ["x" * size]
    for name in names:
        JobStore(tmp_path).put(ServeJob(name, "restore", "web1", "ada", asked, {"paths": paths}, state="done"))
    here, present = socket.socketpair()
    seen, before = list[list[str]](), None
    with here, present:
        for _ in counts:
            given: dict[str, Any] = checked({"limit": limit, "before": before}, VERBS["jobs"].arguments)
            jobs = tasks.jobs(Call(service, Wire(here), Peer(0, 0), ADA, given, lambda: None))
            seen.append([row["job"] for row in jobs])
            before = seen[-1][-1] if jobs else None
    assert [name for answer in seen for name in answer] == names[::-1]
    assert [len(answer) for answer in seen] == counts
