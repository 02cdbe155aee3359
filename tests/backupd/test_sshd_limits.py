"""How the sshd of an address limits the connections of a run, by its own settings, and the line that changes it."""

import pytest

from backupd.rsync.host_answers import SshdLimits, parse_sshd_limits, sshd_advice
from btrkeep.errors import OperatorError

# Lines of `sshd -T` of OpenSSH 10 (a public report; the list of exempt addresses is from its manual), and of 9.2 here.
DEBIAN_13 = b"""\
port 22
maxauthtries 6
maxstartups 10:30:100
persourcemaxstartups none
persourcenetblocksize 32:128
persourcepenaltyexemptlist none
persourcepenalties crash:90 authfail:5 noauth:1 grace-exceeded:10 refuseconnection:10 max:600 min:15 overflow:permissive
"""
DEBIAN_12 = b"port 22\nmaxstartups 10:30:100\npersourcemaxstartups none\npersourcenetblocksize 32:128\n"


def advice(text: bytes, at_once: int = 2, address: str = "192.0.2.5") -> list[str]:
    return [line for _, line in sshd_advice(parse_sshd_limits(text), at_once, address)]


def test_penalties_are_advised_against_with_the_line_that_exempts_this_server() -> None:
    assert advice(DEBIAN_13) == ["PerSourcePenaltyExemptList 192.0.2.5"]
    assert advice(DEBIAN_12) == []
    assert advice(DEBIAN_13.replace(b"persourcepenalties crash", b"persourcepenalties no #")[:-1].split(b" #")[0]) == []
    assert advice(DEBIAN_13, address="") == ["PerSourcePenaltyExemptList ADDRESS-OF-THIS-SERVER"]


@pytest.mark.parametrize(
    ("exempt", "expected"),
    [
        ("192.0.2.5", []),
        ("10.0.0.0/8,192.0.2.0/24", []),
        ("10.0.0.0/8", ["PerSourcePenaltyExemptList 10.0.0.0/8,192.0.2.5"]),  # sshd takes the first such line only
        ("2001:db8::/32, strange", ["PerSourcePenaltyExemptList 2001:db8::/32,strange,192.0.2.5"]),
    ],
)
def test_a_list_of_exempt_addresses_is_kept(exempt: str, expected: list[str]) -> None:
    assert advice(DEBIAN_13.replace(b"exemptlist none", b"exemptlist " + exempt.encode())) == expected


@pytest.mark.parametrize(
    ("startups", "at_once", "expected"),
    [
        ("10:30:100", 10, []),
        ("10:30:100", 11, ["MaxStartups 22"]),
        ("1:100:1", 2, ["MaxStartups 4"]),
        ("10:0:100", 60, []),  # none is refused at random
        ("4", 5, ["MaxStartups 10"]),
    ],
)
def test_more_connections_than_may_log_in_at_once(startups: str, at_once: int, expected: list[str]) -> None:
    text = DEBIAN_12.replace(b"10:30:100", startups.encode())
    assert advice(text, at_once) == expected


def test_a_limit_for_each_address_counts_too() -> None:
    assert advice(DEBIAN_12.replace(b"persourcemaxstartups none", b"persourcemaxstartups 2"), 3) == ["PerSourceMaxStartups 6"]


@pytest.mark.parametrize("answer", [b"", b"rrsync: only rsync", b"maxstartups ten\n", b"sshd: no hostkeys available -- exiting.\n"])
def test_an_answer_that_is_none_is_no_advice(answer: bytes) -> None:
    with pytest.raises(OperatorError):
        parse_sshd_limits(answer)


def test_lines_of_a_login_shell_come_before_it() -> None:
    assert parse_sshd_limits(b"welcome to web1\n" + DEBIAN_13) == SshdLimits(10, None, has_penalties=True)


@pytest.mark.parametrize(
    "line",
    [
        b"persourcepenaltyexemptlist " + b"192.0.2.9," * 1000,
        b"persourcepenaltyexemptlist 192.0.2.9,`id`",
        b"persourcepenaltyexemptlist 192.0.2.9,\x1b[2J",
        b"persourcemaxstartups " + b"1" * 4000,
        b"maxstartups -" + b"9" * 4000 + b":30:100",
    ],
)
def test_a_host_does_not_write_the_advice(line: bytes) -> None:
    with pytest.raises(OperatorError, match="settings of its sshd"):
        parse_sshd_limits(DEBIAN_13 + line + b"\n")
