"""Slow answers of the root service: one is computed at a time, and given to all who request it at the same time."""

import threading
import time
from itertools import count
from types import SimpleNamespace

import pytest

from backupd.serve.service_context import AnswerCache
from btrkeep.serving.protocol import RequestRefused


def test_what_was_worked_out_is_given_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, made, clock = AnswerCache(kept=30), count(1), [1000.0]
    monkeypatch.setattr("backupd.serve.service_context.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def get(key: str) -> int:
        return cache.get("doctor", key, lambda: next(made), lambda: False)

    assert [get("a"), get("a"), get("b"), get("a")] == [1, 1, 2, 1]
    clock[0] += 29
    assert get("a") == 1
    clock[0] += 2
    assert get("a") == 3


def test_one_of_a_kind_goes_on_at_a_time_and_the_next_gets_its_answer() -> None:
    cache, at_work, most = AnswerCache(), [], []

    def compute() -> str:
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.2)
        at_work.pop()
        return "found"

    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(cache.get("plan", 1, compute, lambda: False))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (got, most) == (["found"] * 4, [1])


def test_a_failure_is_not_cached_and_a_client_that_disconnects_stops_waiting() -> None:
    cache = AnswerCache()

    def fail() -> None:
        raise RequestRefused("no")

    for _ in range(2):
        with pytest.raises(RequestRefused, match="no"):
            cache.get("plan", 1, fail, lambda: False)
    assert cache.get("plan", 1, lambda: 5, lambda: False) == 5
    begun, go_on = threading.Event(), threading.Event()

    def compute() -> int:
        begun.set()
        go_on.wait(60)
        return 2

    held = threading.Thread(target=cache.get, args=("plan", 2, compute, lambda: False))
    held.start()
    assert begun.wait(60)
    with pytest.raises(RequestRefused) as refused:
        cache.get("plan", 3, lambda: 7, lambda: True)
    assert refused.value.kind == "busy"
    go_on.set()
    held.join()
