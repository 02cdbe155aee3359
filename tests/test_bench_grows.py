"""The benchmark of growth with the number of hosts: its pure parts, and once through in a tiny size. Its figures mean nothing here."""

from bench import make_catalogue


def test_a_made_catalogue_has_no_subvolume_id_twice_however_many_hosts_it_has() -> None:
    evenings = list(enumerate(make_catalogue.nights(4)))
    hosts = (0, 1, 2999, 3000, 3001, 6000, 9000, 27_999)
    ids = [make_catalogue.backup_of(host, night, evening).subvolume_id for night, evening in evenings for host in hosts]
    assert len(set(ids)) == len(ids)
