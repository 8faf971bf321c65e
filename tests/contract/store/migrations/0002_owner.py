"""Notes get an owner."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("notes") as table:
        table.add_column(sa.Column("owner", sa.String(200), nullable=False, server_default="nobody"))


def downgrade() -> None:
    with op.batch_alter_table("notes") as table:
        table.drop_column("owner")
