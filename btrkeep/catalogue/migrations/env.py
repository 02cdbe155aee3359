"""Run by Alembic, within the transaction that btrkeep.catalogue.upgrade has begun on the connection it hands over."""

from alembic import context
from sqlalchemy import MetaData

# How keys and checks are called to which a migration gives no name.
metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_key",
        "fk": "%(table_name)s_of_%(referred_table_name)s",
        "ck": "%(table_name)s_%(constraint_name)s_known",
    }
)
context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
