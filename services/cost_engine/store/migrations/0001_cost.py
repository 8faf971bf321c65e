"""Prices, intervals, usage windows, costs by hour and day, budgets' alerts."""

from alembic import op

from services.cost_engine.store import timescale

revision = "0001_cost"
down_revision = None

_TABLES = {
    "price": """
        provider TEXT NOT NULL, region TEXT NOT NULL, zone TEXT NOT NULL, instance_type TEXT NOT NULL,
        capacity_type TEXT NOT NULL, source TEXT NOT NULL, valid_from_ns BIGINT NOT NULL, valid_to_ns BIGINT,
        nano_usd_per_hour BIGINT NOT NULL CHECK (nano_usd_per_hour > 0), fetched_at_ns BIGINT NOT NULL,
        PRIMARY KEY (instance_type, provider, region, zone, capacity_type, source, valid_from_ns)""",
    "node_interval": """
        node_uid TEXT NOT NULL, start_ns BIGINT NOT NULL, end_ns BIGINT, seen_ns BIGINT NOT NULL,
        name TEXT NOT NULL, gpu_count INTEGER NOT NULL, advertised INTEGER NOT NULL, provider TEXT NOT NULL,
        region TEXT NOT NULL, zone TEXT NOT NULL, instance_type TEXT NOT NULL, capacity_type TEXT NOT NULL,
        pool TEXT NOT NULL, gpu_model TEXT NOT NULL,
        PRIMARY KEY (node_uid, start_ns)""",
    "pod": """
        uid TEXT NOT NULL PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, labels TEXT NOT NULL,
        workload TEXT NOT NULL, optimized INTEGER NOT NULL, first_seen_ns BIGINT NOT NULL""",
    "pod_interval": """
        pod_uid TEXT NOT NULL, node_uid TEXT NOT NULL, start_ns BIGINT NOT NULL, end_ns BIGINT,
        seen_ns BIGINT NOT NULL, units BIGINT NOT NULL, devices INTEGER NOT NULL, mechanism TEXT NOT NULL,
        recovered INTEGER NOT NULL,
        PRIMARY KEY (pod_uid, node_uid)""",
    "gap": """
        node_uid TEXT NOT NULL, pod_uid TEXT NOT NULL, start_ns BIGINT NOT NULL, end_ns BIGINT NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (node_uid, pod_uid, start_ns)""",
    "usage_cursor": """
        node_uid TEXT NOT NULL, spool_id TEXT NOT NULL, sequence BIGINT NOT NULL, last_end_ns BIGINT NOT NULL,
        missed BIGINT NOT NULL, moved BIGINT NOT NULL,
        PRIMARY KEY (spool_id)""",
    "engine": "id INTEGER NOT NULL PRIMARY KEY, epoch_ns BIGINT NOT NULL, term BIGINT NOT NULL",
    "progress": "id INTEGER NOT NULL PRIMARY KEY, marked_ns BIGINT NOT NULL",
    "dirty_hour": """
        hour_ns BIGINT NOT NULL, node_uid TEXT NOT NULL, marked BIGINT NOT NULL,
        PRIMARY KEY (hour_ns, node_uid)""",
    "budget_alert": """
        budget_uid TEXT NOT NULL, period_start_ns BIGINT NOT NULL, alert TEXT NOT NULL, budget TEXT NOT NULL,
        threshold_percent INTEGER NOT NULL, severity TEXT NOT NULL, crossed_ns BIGINT NOT NULL,
        spend_nano BIGINT NOT NULL, limit_nano BIGINT NOT NULL,
        PRIMARY KEY (budget_uid, period_start_ns, alert)""",
    "alert_delivery": """
        budget_uid TEXT NOT NULL, period_start_ns BIGINT NOT NULL, alert TEXT NOT NULL, channel TEXT NOT NULL,
        delivered_ns BIGINT NOT NULL,
        PRIMARY KEY (budget_uid, period_start_ns, alert, channel)""",
}
_USAGE = """
    start_ns BIGINT NOT NULL, end_ns BIGINT NOT NULL, node_uid TEXT NOT NULL, pod_uid TEXT NOT NULL,
    device TEXT NOT NULL, milli INTEGER NOT NULL, held_ns BIGINT NOT NULL, measured_ns BIGINT NOT NULL,
    used_ns BIGINT NOT NULL, share_ns BIGINT NOT NULL, energy_mj BIGINT, memory_peak_bytes BIGINT,
    PRIMARY KEY (start_ns, pod_uid, device)"""
_COST = """
    bucket_ns BIGINT NOT NULL, node_uid TEXT NOT NULL, owner TEXT NOT NULL, price TEXT NOT NULL,
    node TEXT NOT NULL, namespace TEXT NOT NULL, pool TEXT NOT NULL, capacity_type TEXT NOT NULL,
    instance_type TEXT NOT NULL, quality TEXT NOT NULL, mechanism TEXT NOT NULL,
    cost BIGINT NOT NULL, used BIGINT NOT NULL, idle BIGINT NOT NULL, unknown BIGINT NOT NULL,
    unallocated BIGINT NOT NULL, baseline BIGINT NOT NULL, on_demand BIGINT NOT NULL, unit_ms BIGINT NOT NULL,
    unpriced_ns BIGINT NOT NULL, energy_mj BIGINT NOT NULL, as_of_ns BIGINT NOT NULL,
    PRIMARY KEY (bucket_ns, node_uid, owner, price)"""
_INDEXES = {
    "node_interval_end": "node_interval (end_ns)",
    "pod_interval_node": "pod_interval (node_uid, start_ns)",
    "cost_hour_owner": "cost_hour (owner, bucket_ns)",
}


def upgrade() -> None:
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    for name, columns in _TABLES.items():
        op.execute(f"CREATE TABLE {name} ({columns})")
    for name in ("cost_hour", "cost_day"):
        op.execute(f"CREATE TABLE {name} ({_COST})")
    if is_sqlite:
        op.execute(f"CREATE TABLE usage_window ({_USAGE}) WITHOUT ROWID")
    elif timescale.is_installed(connection):
        op.execute(f"CREATE TABLE usage_window ({_USAGE})")
        for statement in timescale.SETUP:
            op.execute(statement)
    else:
        op.execute(f"CREATE TABLE usage_window ({_USAGE}) PARTITION BY RANGE (start_ns)")
        op.execute("CREATE TABLE usage_window_rest PARTITION OF usage_window DEFAULT")
    for name, columns in _INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON {columns}")


def downgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite" and timescale.is_installed(connection):
        for statement in timescale.TEARDOWN:
            op.execute(statement)
    for name in ("usage_window", "cost_hour", "cost_day", *reversed(_TABLES)):
        op.execute(f"DROP TABLE {name}")
