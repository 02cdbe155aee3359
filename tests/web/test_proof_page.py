"""The page Proof. Without it a user would take a backup that nobody ever read, restored or copied for a proven one."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from btrkeep.catalogue import Catalogue, ComparedBackup, Damage, VerifiedBackup
from btrkeep.config import HostConfig
from btrkeep.config.published import FACT, PublishedCopy
from btrkeep.config.settings import DrillSettings, VerifySettings
from btrkeep.decisions.copy_status import COPIES, KnownCopies, copies_text
from btrkeep.decisions.drills import DrillKind, DrillOutcome, DrillResult, note_drill
from btrkeep.decisions.proofs import HostProofs, ProofKind, Proofs, ProofState, read_proofs
from btrkeep.decisions.verification import BackupsInDoubt, FinishedScrub, note_in_doubt, note_scrub
from btrkeep.units import backup_name
from tests.web.made import DAY, EVENING, NOW, backup, client, write
from web.source import RequestContext

NAME = backup_name(EVENING)
OLD = backup_name(EVENING - 90 * DAY)


@pytest.fixture(autouse=True)
def _morning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestContext, "now", NOW)


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    """Three hosts with a backup of yesterday evening, and one of 90 days ago."""
    hosts = ("db1", "web1", "web2")
    backups = [backup(host, EVENING - days * DAY, subvolume_id=300 + days) for host in hosts for days in (0, 90)]
    with write(tmp_path / "state", [HostConfig(host, host[:-1]) for host in hosts], backups) as catalogue:
        yield catalogue


def decided(
    catalogue: Catalogue,
    verify: float | None = None,
    drill: float | None = None,
    copies: Mapping[str, PublishedCopy] = {},
) -> Proofs:
    last = dict.fromkeys(("db1", "web1", "web2"), EVENING)
    return read_proofs(catalogue, VerifySettings(max_age=verify), DrillSettings(max_age=drill), copies, last, NOW)


def host(proofs: Proofs, name: str) -> HostProofs:
    return next(row for row in proofs.hosts if row.host == name)


def read(catalogue: Catalogue, host: str, days: float, files: int = 7) -> None:
    at = NOW - days * DAY
    catalogue.put_verifications([VerifiedBackup(host, NAME, at, at, files, 0, at)])


def test_what_was_never_proven_is_never_ok(catalogue: Catalogue) -> None:
    for proofs in (decided(catalogue), decided(catalogue, verify=1e9, drill=1e9)):
        states = {proof.state for row in proofs.hosts for proof in row.proofs} | {proof.state for proof in proofs.pool}
        assert ProofState.OK not in states
        assert {row.state for row in proofs.hosts} == {ProofState.NEVER}


def test_only_a_proof_within_a_configured_limit_is_ok(catalogue: Catalogue) -> None:
    read(catalogue, "web1", 3)
    assert host(decided(catalogue), "web1").of(ProofKind.VERIFIED).state == ProofState.DONE, "no limit is set"
    web1 = host(decided(catalogue, verify=7 * 86400), "web1")
    assert (web1.state, web1.of(ProofKind.VERIFIED).limit) == (ProofState.OK, 7 * 86400)
    assert host(decided(catalogue, verify=2 * 86400), "web1").state == ProofState.LATE
    never = host(decided(catalogue, verify=7 * 86400), "web2").of(ProofKind.VERIFIED)
    assert (never.state, never.at) == (ProofState.LATE, None), "its oldest backup is older than the limit"
    words = decided(catalogue, verify=2 * 86400).pool[0].words
    assert words == "1 host too long ago, 2 hosts never", "each host is counted once"


def test_a_scrub_counts_for_hosts_that_it_has_read_and_for_no_other(catalogue: Catalogue) -> None:
    note_scrub(catalogue, FinishedScrub(EVENING - 2 * DAY, EVENING - DAY, True, 400))
    proofs = decided(catalogue, verify=7 * 86400)
    assert {row.of(ProofKind.SCRUBBED).state for row in proofs.hosts} == {ProofState.OK}
    assert {row.of(ProofKind.VERIFIED).state for row in proofs.hosts} == {ProofState.NEVER}
    assert {row.state for row in proofs.hosts} == {ProofState.OK}
    note_scrub(catalogue, FinishedScrub(EVENING - 2 * DAY, EVENING - DAY, False, 400))
    proofs = decided(catalogue)
    assert {row.of(ProofKind.SCRUBBED).state for row in proofs.hosts} == {ProofState.NEVER}
    assert [proof.state for proof in proofs.pool if proof.kind == ProofKind.SCRUBBED] == [ProofState.BAD]


def test_what_could_not_be_checked_is_unknown(catalogue: Catalogue) -> None:
    read(catalogue, "web1", 1)
    note_drill(catalogue, DrillResult("web1", NAME, NOW - DAY, DrillOutcome.UNFINISHED))
    catalogue.put_comparisons([ComparedBackup("web2", NAME, NOW - DAY, 5, 0, 5, 0)])
    note_in_doubt(catalogue, BackupsInDoubt(NOW - DAY, frozenset({("db1", NAME)})))
    proofs = decided(catalogue, verify=7 * 86400)
    for name, kind in (("web1", ProofKind.DRILLED), ("web2", ProofKind.COMPARED), ("db1", ProofKind.VERIFIED)):
        assert host(proofs, name).of(kind).state == ProofState.UNKNOWN, name
    assert host(proofs, "web1").state == ProofState.UNKNOWN


def test_damage_failed_drills_and_differences_are_bad_and_come_first(catalogue: Catalogue) -> None:
    read(catalogue, "web1", 1)
    note_drill(catalogue, DrillResult("web1", NAME, NOW - 2 * DAY, DrillOutcome.PROVEN, kind=DrillKind.BOOT))
    note_drill(catalogue, DrillResult("web1", NAME, NOW - DAY, DrillOutcome.FAILED, text="x", kind=DrillKind.BOOT))
    catalogue.put_comparisons([ComparedBackup("web2", NAME, NOW - DAY, 9, 7, 1, 1)])
    proofs = decided(catalogue)
    states = [(row.host, row.state) for row in proofs.hosts]
    late = ("db1", ProofState.LATE)  # one host was read, and no data of this one for longer than the usual limit
    assert states == [("web1", ProofState.BAD), ("web2", ProofState.BAD), late]
    assert host(proofs, "web1").of(ProofKind.BOOTED).state == ProofState.BAD
    catalogue.put_damages([Damage("db1", name, "/etc/passwd", 0, 0, "verify", NOW) for name in (NAME, OLD)])
    bad = host(decided(catalogue), "db1").of(ProofKind.DAMAGED)
    assert (bad.state, bad.words) == (ProofState.BAD, "2 backups damaged")


def test_a_repaired_copy_is_found_by_its_record(catalogue: Catalogue) -> None:
    catalogue.put_damages([Damage("db1", OLD, "/etc/passwd", 0, 0, "verify", NOW - 3 * DAY)])
    made = backup("db1", EVENING - 89 * DAY, finished=NOW - 2 * DAY, base=OLD, detail={"repaired": {"of_uuid": "u", "files": 1}})
    catalogue.put_backup(made)
    proofs = decided(catalogue)
    assert host(proofs, "db1").of(ProofKind.REPAIRED).at == NOW - 2 * DAY
    assert host(proofs, "web1").of(ProofKind.REPAIRED).at is None


def test_a_copy_counts_by_its_newest_backup_and_by_its_limit(catalogue: Catalogue) -> None:
    catalogue.set_fact(COPIES, copies_text(KnownCopies({}, {"disk": {"web1": NAME}, "away": {"web1": OLD, "web2": OLD}})))
    copied = host(decided(catalogue), "web1").of(ProofKind.COPIED)
    assert (copied.state, copied.at, copied.limit) == (ProofState.DONE, EVENING, None)
    limited = decided(catalogue, copies={name: PublishedCopy(name, 3600.0, False, kind="push") for name in ("disk", "away")})
    states = {row.host: (row.of(ProofKind.COPIED).state, row.of(ProofKind.COPIED).at) for row in limited.hosts}
    assert states["web1"] == (ProofState.LATE, EVENING), "away is behind"
    assert states["web2"] == (ProofState.LATE, EVENING - 90 * DAY)
    assert states["db1"] == (ProofState.NEVER, None)
    current = decided(catalogue, copies={"disk": PublishedCopy("disk", 3600.0, False, kind="push")})
    assert host(current, "web1").of(ProofKind.COPIED).state == ProofState.OK


def rows_of(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="/hosts/([^"]+)"', page)


def web(catalogue: Catalogue, tmp_path: Path, hosts: tuple[str, ...] | None = None) -> FlaskClient:
    catalogue.close()
    return client(tmp_path / "state", "operator", hosts)


def test_the_page_lists_the_worst_first_and_says_where_no_limit_is_set(catalogue: Catalogue, tmp_path: Path) -> None:
    read(catalogue, "web1", 3)
    catalogue.put_damages([Damage("web2", NAME, "/etc/passwd", 0, 0, "verify", NOW)])
    page = web(catalogue, tmp_path).get("/proof").text
    assert rows_of(page) == ["web2", "db1", "web1"]
    assert "no limit set" in page
    assert '<span class="state state-bad">1 backup damaged</span>' in page
    assert "state-ok" not in page.partition('id="main"')[2], "no limit is set, so nothing is green"
    assert "state-done" not in page, "which is green"


def test_the_page_is_searched_filtered_and_sorted(catalogue: Catalogue, tmp_path: Path) -> None:
    read(catalogue, "web1", 3)
    catalogue.put_damages([Damage("web2", NAME, "/etc/passwd", 0, 0, "verify", NOW)])
    browser = web(catalogue, tmp_path)
    for query, hosts in (
        ("?q=web", ["web2", "web1"]),
        ("?group=db", ["db1"]),
        ("?state=problems", ["web2", "db1"]),
        ("?state=late", ["db1"]),
        ("?sort=host", ["db1", "web1", "web2"]),
        ("?sort=verified", ["web2", "db1", "web1"]),
        ("?q=nothing", []),
        ("?page=99&state=<b>", ["web2", "db1", "web1"]),
    ):
        assert rows_of(browser.get(f"/proof{query}").text) == hosts, query


def test_a_limited_user_sees_the_own_hosts_and_nothing_about_the_pool(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.put_damages([Damage("web2", NAME, "/etc/passwd", 0, 0, "verify", NOW)])
    note_scrub(catalogue, FinishedScrub(EVENING - 2 * DAY, EVENING - DAY, False, 400))
    page = web(catalogue, tmp_path, ("db*",)).get("/proof").text.partition('id="main"')[2]
    assert rows_of(page) == ["db1"]
    for secret in ("web", "The pool", "Problems 1", "damaged</span>", "not all files"):
        assert secret not in page


def test_a_limit_of_the_configuration_reaches_the_page(catalogue: Catalogue, tmp_path: Path) -> None:
    read(catalogue, "web1", 3)
    published = json.loads(catalogue.get_fact(FACT) or "{}")
    catalogue.set_fact(FACT, json.dumps({**published, "verify_max_age": 7 * 86400.0}))
    page = web(catalogue, tmp_path).get("/proof").text
    assert "Limit for verified and scrubbed together: 7d." in page
    assert 'class="state state-ok">' in page


def test_the_hosts_of_a_large_site_are_on_pages(tmp_path: Path) -> None:
    hosts = [f"h{number:03}" for number in range(60)]
    with write(tmp_path / "state", [HostConfig(name) for name in hosts], [backup(name, EVENING) for name in hosts]):
        pass
    browser = client(tmp_path / "state")
    pages = [rows_of(browser.get(f"/proof?page={page}").text) for page in (1, 2, 3)]
    assert [name for page in pages for name in page] == hosts
