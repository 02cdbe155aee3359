"""The random words of sessions and tokens, of which only digests are kept."""

import hashlib
import secrets

TOKEN_PREFIX = "btrkeep_"  # noqa: S105  no secret


def new_word() -> str:
    """Returns a session's random word. It never begins like a token, which would be looked up among the tokens."""
    while (word := secrets.token_urlsafe(32)).startswith(TOKEN_PREFIX):
        pass
    return word


def digest(word: str) -> bytes:
    """Returns the digest to store for a session's or token's random word. The word is random enough to need no slow hash."""
    return hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()
