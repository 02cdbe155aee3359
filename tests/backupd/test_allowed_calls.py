"""The list of system calls that a confined rsync may make, compared with libseccomp, and the arguments of its remote shell."""

import ctypes
import ctypes.util

import pytest

from backupd.rsync.cell import _BOTH, _ONLY_X86, _RECEIVE, _RECEIVE_ONLY_X86, seccomp_filter
from backupd.rsync.confined import expected_words
from btrkeep.config import HostConfig

X86_64, AARCH64 = 0xC000003E, 0xC00000B7


def test_the_numbers_are_those_of_libseccomp() -> None:
    output = ctypes.util.find_library("seccomp")
    if not output:
        pytest.skip("left out: numbers of system calls (libseccomp is not installed)")
    number = ctypes.CDLL(output).seccomp_syscall_resolve_name_arch
    number.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    shared, own = _BOTH | _RECEIVE, _ONLY_X86 | _RECEIVE_ONLY_X86
    assert {name: (number(X86_64, name.encode()), number(AARCH64, name.encode())) for name in shared} == shared
    assert {name: number(X86_64, name.encode()) for name in own} == own


@pytest.mark.parametrize("program", [{}, {"receives": True}, {"applies": True}])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_every_jump_of_the_filter_lands_within_it(machine: str, program: dict[str, bool]) -> None:
    data = seccomp_filter(machine, **program)
    assert data is not None
    for at in range(0, len(data), 8):
        code, taken, not_taken = int.from_bytes(data[at : at + 2], "little"), data[at + 2], data[at + 3]
        if code & 7 == 5:
            assert at // 8 + 1 + max(taken, not_taken) < len(data) // 8


def test_a_machine_whose_calls_are_not_known_has_no_filter() -> None:
    assert seccomp_filter("m68k") is None


@pytest.mark.parametrize(
    ("address", "words"), [("web1", ("web1",)), ("root@web1", ("-l", "root", "web1")), ("a@[fe80::1]", ("-l", "a", "fe80::1"))]
)
def test_the_words_for_the_remote_shell_are_those_of_the_host(address: str, words: tuple[str, ...]) -> None:
    assert expected_words(HostConfig("web1", address=address)) == (*words, "rsync", "--server", "--sender")
    assert expected_words(HostConfig("web1", address=address, rsync_path="sudo rsync"))[-3] == "sudo rsync"
