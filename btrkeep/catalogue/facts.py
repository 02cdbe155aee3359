"""Single facts by name, in the table `about`: whose catalogue this is, what the clock said."""

from sqlalchemy import Connection, bindparam, delete, insert, select

from btrkeep.catalogue.tables import about

_ONE = select(about.c.value).where(about.c.name == bindparam("the_name"))
_DROP = delete(about).where(about.c.name == bindparam("the_name"))


def get(connection: Connection, name: str) -> str | None:
    """The fact, None when there is none of that name."""
    value: str | None = connection.scalar(_ONE, {"the_name": name})
    return value


def put(connection: Connection, name: str, value: str | None) -> None:
    """Set the fact; None takes it away."""
    connection.execute(_DROP, {"the_name": name})
    if value is not None:
        connection.execute(insert(about), {"name": name, "value": value})
