"""The root service in the test's own process, with requests of root even if the tests run as another user."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backupd.serve import answering
from backupd.serve.request_checks import ROOT
from btrkeep.serving.server import Peer, peer_of


@contextmanager
def asked_by_root() -> Iterator[None]:
    """Lets our own user count as root until the end, because only root may send requests without a session; for root nothing is
    replaced.
    """

    def root_of(connection: socket.socket) -> Peer:
        peer = peer_of(connection)
        return Peer(peer.pid, ROOT) if peer.uid == os.geteuid() else peer

    with pytest.MonkeyPatch.context() as patch:
        if os.geteuid() != ROOT:
            patch.setattr(answering, "peer_of", root_of)
        yield
