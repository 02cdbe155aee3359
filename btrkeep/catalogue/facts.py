"""Single facts by name, in the table `about`: whose catalogue this is, what the clock said."""

from btrkeep.catalogue.sqlite import Session

_ONE = "SELECT value FROM about WHERE name = :name"
_DROP = "DELETE FROM about WHERE name = :name"
_PUT = "INSERT INTO about (name, value) VALUES (:name, :value)"


def get(session: Session, name: str) -> str | None:
    """The fact, None when there is none of that name."""
    value: str | None = session.value(_ONE, {"name": name})
    return value


def put(session: Session, name: str, value: str | None) -> None:
    """Set the fact; None takes it away."""
    session.run(_DROP, {"name": name})
    if value is not None:
        session.run(_PUT, {"name": name, "value": value})
