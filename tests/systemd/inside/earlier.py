"""The database of users as the dashboard itself had it in earlier versions, in the folder given: alice, who is logged in."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from web.auth.model import LoginSession, User
from web.auth.passwords import hashed
from web.auth.random_words import digest
from web.auth.store import Store

store, now = Store(Path(sys.argv[1])), datetime.now(UTC)
alice = User("alice", "operator", None, hashed("four words to remember"), now, now)
store.add_user(alice)
store.add_session(LoginSession(digest("a word of before"), "alice", now, now, "192.0.2.7", ""), alice.hash)
with store.writing() as connection:
    connection.execute("INSERT INTO secret VALUES ('cookies', ?)", (b"k" * 32,))
