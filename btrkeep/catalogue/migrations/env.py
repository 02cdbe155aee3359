"""Run by Alembic, within the transaction that btrkeep.catalogue.migrate has begun on the connection it hands over."""

from alembic import context

from btrkeep.catalogue.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
