"""Notes with a text."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "notes",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("amount", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("notes")
