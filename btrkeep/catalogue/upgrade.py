"""The migrations, run by Alembic: the only module that needs SQLAlchemy, and imported only when there is something to migrate."""

import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from btrkeep.catalogue.sqlite import BUSY_TIMEOUT, meaning_of


def upgrade(path: Path, migrations: Path) -> None:
    """Upgrades to the newest schema, in one transaction.

    Raises OperatorError, and RuntimeError when rows would be left that refer to nothing.
    """

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None)

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    try:
        with create_engine("sqlite://", creator=connect, poolclass=NullPool).connect() as connection:
            config.attributes["connection"] = connection
            # A migration may have to build a table anew; with foreign keys on, dropping the old one would delete what refers to it.
            # This has no effect within a transaction, so it comes before.
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            command.upgrade(config, "head")
            if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                raise RuntimeError(f"the migration left a row of {broken[0]} that refers to nothing")
            connection.commit()
    except DBAPIError as error:
        meaning = meaning_of(error.orig, path) if isinstance(error.orig, sqlite3.Error) else None
        raise (meaning or error) from error
