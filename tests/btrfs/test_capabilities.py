"""A process's permissions depend on its capabilities, not on its user."""

import json
import os
import subprocess

import pytest

from btrkeep.decisions.findings import NEEDS, missing_privileges, privilege_findings
from btrkeep.procfs import Capabilities, parse_capabilities, read_capabilities
from tests.beds import TOP
from tests.beds.nights import Nights

INITIAL = "         0          0 4294967295\n"
NAMESPACE = "         0     100000      65536\n"
ALL = frozenset(need.capability for need in NEEDS)


def status(bits: int) -> str:
    return f"Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t{bits:016x}\nCapBnd:\t000001ffffffffff\n"


def test_the_names_of_bits_are_those_of_the_kernels_header() -> None:
    assert parse_capabilities(status(1 << 21), INITIAL) == Capabilities(frozenset({"CAP_SYS_ADMIN"}))
    assert parse_capabilities(status(1 << 27 | 1 << 31 | 1), INITIAL) == Capabilities(
        frozenset({"CAP_MKNOD", "CAP_SETFCAP", "CAP_CHOWN"})
    )
    assert parse_capabilities("Name:\tx\n", INITIAL) is None
    assert parse_capabilities(status((1 << 41) - 1), INITIAL) is not None


def test_a_user_namespace_has_no_rights_over_the_machines_filesystems() -> None:
    capabilities = parse_capabilities(status((1 << 41) - 1), NAMESPACE)
    assert capabilities is not None
    assert capabilities.namespace
    assert [need.capability for need in missing_privileges(capabilities)] == ["CAP_SYS_ADMIN", "CAP_MKNOD"]
    texts = [privilege_finding.text for privilege_finding in privilege_findings(capabilities, root=True)]
    assert any("user namespace" in text for text in texts)


@pytest.mark.parametrize("lacking", sorted(ALL - {"CAP_DAC_READ_SEARCH"}))
def test_the_one_that_is_missing_is_named_with_its_purpose_and_root_is_not_told_to_be_root(lacking: str) -> None:
    (finding,) = privilege_findings(Capabilities(ALL - {lacking}), root=True)
    assert finding.text.startswith(f"root has no {lacking} here, which is needed to ")
    assert "as root" not in finding.hint
    assert lacking in finding.hint
    (finding,) = privilege_findings(Capabilities(ALL - {lacking}), root=False)
    assert finding.hint == "run this as root"


def test_reading_is_also_permitted_by_the_capability_to_override() -> None:
    assert missing_privileges(Capabilities(ALL - {"CAP_DAC_READ_SEARCH"})) == ()
    assert list(privilege_findings(Capabilities(ALL), root=True)) == []
    assert list(privilege_findings(None, root=True)) == []


def test_those_of_this_process_are_what_the_kernel_permits_it() -> None:
    capabilities = read_capabilities()
    assert capabilities is not None
    assert capabilities.has("CAP_CHOWN") == (os.geteuid() == 0)


@pytest.mark.btrfs
@pytest.mark.root
def test_root_without_a_capability_hears_which_from_check_doctor_run_expire_and_scrub(make_btrfs: object) -> None:
    nights = Nights(make_btrfs(size="300M"))  # type: ignore[operator]
    (nights.source / "a").write_text("1")
    nights.host("web1", nights.source)
    nights.run()

    def without(capability: str, *words: str) -> "subprocess.CompletedProcess[str]":
        drop = ("setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}")
        command = [*drop, str(TOP / ".venv/bin/backupd"), "--config", str(nights.config), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    answer = json.loads(without("sys_admin", "check", "--json").stdout)
    (privileges,) = (row for row in answer if row["subject"] == "privileges")
    assert privileges["level"] == "error"
    assert "CAP_SYS_ADMIN" in privileges["message"]
    for words in (("run", "--all"), ("expire",), ("scrub",)):
        done = without("sys_admin", *words)
        assert (done.returncode, "CAP_SYS_ADMIN" in done.stderr) == (4, True), (words, done.stderr)
    for words in (("doctor",), ("usage",), ("progress",), ("run", "--all"), ("check",)):
        done = without("sys_admin", *words)
        assert "CAP_SYS_ADMIN" in done.stdout + done.stderr, words
        assert "run this as root" not in done.stdout + done.stderr, words
    done = without("chown", "run", "--all")
    assert (done.returncode, "CAP_CHOWN" in done.stderr) == (4, True)
    assert len(nights.json("list")) == 1
    mknod = json.loads(without("mknod", "check", "--json").stdout)
    assert [row["level"] for row in mknod if "CAP_MKNOD" in row["message"]] == ["warning"]
