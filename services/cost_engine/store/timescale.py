"""Everything that is only for TimescaleDB: used where the server has the extension, and nowhere else.

The raw windows become a hypertable with a chunk a day, compressed after two days; a continuous aggregate
keeps hourly sums of use for dashboards that query the database itself. Bills never read it. Retention is a
policy of the server instead of our own loop.
"""

from sqlalchemy import Connection, text

DAY_NS = 86_400_000_000_000
HOUR_NS = 3_600_000_000_000

SETUP = (
    f"SELECT create_hypertable('usage_window', 'start_ns', chunk_time_interval => BIGINT '{DAY_NS}')",
    "CREATE FUNCTION cost_now_ns() RETURNS BIGINT LANGUAGE SQL STABLE AS "
    "'SELECT (extract(epoch FROM now()) * 1000000000)::BIGINT'",
    "SELECT set_integer_now_func('usage_window', 'cost_now_ns')",
    "ALTER TABLE usage_window SET (timescaledb.compress, timescaledb.compress_segmentby = 'node_uid', "
    "timescaledb.compress_orderby = 'start_ns')",
    f"SELECT add_compression_policy('usage_window', compress_after => BIGINT '{2 * DAY_NS}')",
    "CREATE MATERIALIZED VIEW usage_hour WITH (timescaledb.continuous) AS "
    f"SELECT time_bucket(BIGINT '{HOUR_NS}', start_ns) AS hour_ns, node_uid, pod_uid, "
    "SUM(held_ns) AS held_ns, SUM(measured_ns) AS measured_ns, SUM(share_ns) AS share_ns "
    "FROM usage_window GROUP BY 1, 2, 3 WITH NO DATA",
    "SELECT add_continuous_aggregate_policy('usage_hour', "
    f"start_offset => BIGINT '{2 * DAY_NS}', end_offset => BIGINT '{HOUR_NS}', "
    "schedule_interval => INTERVAL '10 minutes')",
)
TEARDOWN = (
    "DROP MATERIALIZED VIEW usage_hour",
    "DROP TABLE usage_window CASCADE",
    "CREATE TABLE usage_window (start_ns BIGINT)",
    "DROP FUNCTION cost_now_ns()",
)
RETENTION = (
    "SELECT add_retention_policy('usage_window', drop_after => BIGINT '{retention_ns}', "
    "if_not_exists => TRUE)"
)


def is_installed(connection: Connection) -> bool:
    found = connection.execute(text("SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'"))
    return found.first() is not None


def set_retention(connection: Connection, retention_ns: int) -> None:
    connection.execute(text(RETENTION.format(retention_ns=int(retention_ns))))
