"""Passwords, stored as hashes of argon2."""

import threading

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from btrkeep.errors import UsageError

SHORTEST, LONGEST = 10, 1024
"""Characters."""
_HASHER = PasswordHasher(time_cost=3, memory_cost=64 << 10, parallelism=1)  # KiB; a tenth of a second
# The password of an unknown user is compared with this, so that it takes equally long. A test checks that.
NOBODY = "$argon2id$v=19$m=65536,t=3,p=1$p/476i3Wf2Qx3qQfxrtURg$5S4J3dRcJjeXJm0I4Rn9ZPsVxkDU+H2bRJZVXIplH+Y"
_AT_ONCE = threading.BoundedSemaphore(2)  # each takes 64 MiB, and anyone can trigger it


def hashed(password: str) -> str:
    """Returns the hash to store for a password. Raises UsageError if it is too short or too long."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise UsageError(
            f"a password has at least {SHORTEST} characters, and at most {LONGEST}",
            "choose four or five words that you can remember",
        )
    with _AT_ONCE:
        return _HASHER.hash(password.encode("utf-8", "surrogatepass"))


def is_right(text: str | None, password: str) -> bool:
    """Returns True if `text` is the hash of the password. Without `text` it takes the same time, and returns False."""
    if len(password) > LONGEST:
        password = ""
    with _AT_ONCE:
        try:
            _HASHER.verify(text or NOBODY, password.encode("utf-8", "surrogatepass"))
        except (VerificationError, InvalidHashError):
            return False
    return text is not None


def is_outdated(text: str) -> bool:
    """Returns True if the hash has other parameters than those in use, so that the next login renews it."""
    return _HASHER.check_needs_rehash(text)
