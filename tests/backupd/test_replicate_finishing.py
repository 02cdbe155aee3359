"""Hosts whose backups get their names together, in threads beside those that receive."""

import threading
import time

from backupd.replicate.finisher import Finisher, HostProgress


def guarded(host: str, work: object) -> bool:
    assert callable(work)
    try:
        work()
    except ValueError:
        return False
    return True


def fails() -> None:
    raise ValueError


def test_what_is_to_be_done_for_several_hosts_is_done_at_the_same_time() -> None:
    meet = threading.Barrier(3)
    with Finisher(guarded) as finisher:
        for host in ("a", "b", "c"):
            finisher.begin(host, lambda: (meet.wait(60), None)[1])
        finisher.wait()
        assert all(finisher.is_well(host) for host in ("a", "b", "c", "unknown"))


def test_one_host_that_fails_is_known_and_costs_the_others_nothing() -> None:
    done = list[str]()
    with Finisher(guarded) as finisher:
        finisher.begin("a", lambda: done.append("a"))
        finisher.begin("b", fails)
        assert not finisher.is_well("b")
        finisher.begin("c", lambda: done.append("c"))
        assert finisher.is_well("c")
        assert finisher.is_well("a")
    assert done == ["a", "c"]


def test_nothing_waits_for_more_hosts_for_long_and_the_end_waits_for_all() -> None:
    done = threading.Event()
    with Finisher(guarded) as finisher:
        finisher.begin("a", done.set)
        assert done.wait(60)
        finisher.begin("b", lambda: time.sleep(0.2))
        finisher.begin("b", done.clear)
    assert not done.is_set()


def test_a_host_that_hangs_holds_up_no_other_one() -> None:
    go_on = threading.Event()
    with Finisher(guarded) as finisher:
        finisher.begin("a", lambda: (go_on.wait(60), None)[1])
        for number in range(20):
            finisher.begin(f"b{number}", lambda: None)
        assert all(finisher.is_well(f"b{number}") for number in range(20))
        go_on.set()


def test_several_that_wait_leave_the_processor_alone() -> None:
    with Finisher(guarded) as finisher:
        finisher.begin("a", lambda: time.sleep(1))
        waiting = [threading.Thread(target=finisher.wait) for _ in range(4)]
        used = time.process_time()
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        assert time.process_time() - used < 0.3


def test_bytes_count_from_when_they_come_until_their_backup_has_its_name() -> None:
    host = HostProgress()
    host.expect(100)
    host.coming = 40
    assert (host.unnamed, host.left) == (40, 60)
    host.coming = 120
    host.expect(None)
    host.coming = 5
    assert (host.unnamed, host.left) == (125, 0)
    host.named = 120
    assert host.unnamed == 5
    assert not host.is_over
    host.is_received = True
    assert host.is_over
