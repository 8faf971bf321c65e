"""What Alembic runs for every command, in the transaction of the connection that `migrations.py` hands it."""

from alembic import context

_attributes = context.config.attributes
context.configure(
    connection=_attributes["connection"],
    version_table=_attributes["version_table"],
    # SQLite can't change a column in place; Alembic then copies the table.
    render_as_batch=_attributes["is_sqlite"],
)
context.run_migrations()
