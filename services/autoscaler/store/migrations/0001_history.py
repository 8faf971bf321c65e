"""Samples of utilization and demand, and the scaling actions that were taken."""

from alembic import op

revision = "0001_history"
down_revision = None


def upgrade() -> None:
    op.execute(
        "CREATE TABLE autoscaler_sample (name TEXT NOT NULL, time_s BIGINT NOT NULL,"
        " value DOUBLE PRECISION NOT NULL, PRIMARY KEY (name, time_s))"
    )
    op.execute(
        "CREATE TABLE autoscaler_action (time_s DOUBLE PRECISION NOT NULL, policy TEXT NOT NULL,"
        " document TEXT NOT NULL, PRIMARY KEY (time_s, policy))"
    )


def downgrade() -> None:
    op.execute("DROP TABLE autoscaler_action")
    op.execute("DROP TABLE autoscaler_sample")
