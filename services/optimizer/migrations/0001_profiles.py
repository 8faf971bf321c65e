"""Runs, how they ended, cursors, models and advice."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "optimizer_cursors",
        sa.Column("spool_id", sa.String(64), primary_key=True),
        sa.Column("node_uid", sa.String(253), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("kept_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "optimizer_runs",
        sa.Column("pod_uid", sa.String(253), primary_key=True),
        sa.Column("workload", sa.Text, nullable=False),
        sa.Column("signature", sa.String(64), nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("seen_until", sa.BigInteger, nullable=False),
        sa.Column("sums", sa.Text, nullable=False),
    )
    op.create_table(
        "optimizer_outcomes",
        sa.Column("pod_uid", sa.String(253), primary_key=True),
        sa.Column("signature", sa.String(64), nullable=False, index=True),
        sa.Column("ended_at", sa.BigInteger, nullable=False, index=True),
        sa.Column("workload", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("features", sa.Text),
        sa.Column("label", sa.String(40)),
    )
    op.create_table(
        "optimizer_models",
        sa.Column("kept_at", sa.BigInteger, primary_key=True),
        sa.Column("model", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "optimizer_sketches",
        sa.Column("signature", sa.String(64), primary_key=True),
        sa.Column("quantity", sa.String(40), primary_key=True),
        sa.Column("runs", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False, index=True),
        sa.Column("sketch", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "optimizer_advice",
        sa.Column("owner_key", sa.String(64), primary_key=True),
        sa.Column("given_at", sa.BigInteger, nullable=False),
        sa.Column("advice", sa.Text, nullable=False),
    )


def downgrade() -> None:
    for table in ("advice", "sketches", "models", "outcomes", "runs", "cursors"):
        op.drop_table(f"optimizer_{table}")
