"""The bounds between clocks, from and to tables: what `offsets.py` needs of a million requests, and its answer.

Of each tenth of a second only the tightest bounds leave the database, as `Block.narrow` keeps them.
"""

import duckdb

from forensics.offsets import BLOCK_NS, BUCKET_NS, DRIFT_MAX_PPM, Bound, Impossible, Offsets, Pair, Told

_ROUND_TRIPS = f"""
    SELECT clock, worker_clock, g3, g5, w8 - g5 AS low, w1 - g3 AS high, g5 // {BLOCK_NS} AS block,
        (w8 - w1) - (g5 - g3) - (abs(g5 - g3) * {DRIFT_MAX_PPM} + 999999) // 1000000 AS beyond
    FROM raw.req WHERE g3 <> 0 AND g5 <> 0 AND w8 <> 0 AND clock <> worker_clock
"""
"""Every answered request that crossed clocks; `beyond` is positive when it contradicts itself."""

_BLOCKS = f"""
WITH trips AS MATERIALIZED ({_ROUND_TRIPS}),
lows AS (
    SELECT clock, worker_clock, block, g5 // {BUCKET_NS} AS bucket, count(*) AS n, max({{'ns': low, 'at': g5}}) AS low
    FROM trips WHERE beyond <= 0 GROUP BY ALL),
highs AS (
    SELECT clock, worker_clock, block, g3 // {BUCKET_NS} AS bucket, min({{'ns': high, 'at': g3}}) AS high
    FROM trips WHERE beyond <= 0 GROUP BY ALL)
SELECT clock, worker_clock, block, n, low.ns, low.at, NULL, NULL FROM lows
UNION ALL SELECT clock, worker_clock, block, 0, NULL, NULL, high.ns, high.at FROM highs
"""


def make_offsets(connection: duckdb.DuckDBPyConnection, offsets: Offsets) -> None:
    """Note all that the records tell in `offsets`, and make the table `offsets` of its bounds."""
    for clock, worker_clock, block, n, low, low_at, high, high_at in connection.execute(_BLOCKS).fetchall():
        bounds = (Bound(low, low_at), None) if low is not None else (None, Bound(high, high_at))
        offsets.narrow(Pair(clock, worker_clock), block, *bounds, requests=n)
    _note_the_impossible(connection, offsets)
    _note_what_was_told(connection, offsets)
    connection.execute(
        "CREATE TABLE raw.offsets (gateway_clock VARCHAR, worker_clock VARCHAR, bucket BIGINT, lo_ns BIGINT, "
        "hi_ns BIGINT, source VARCHAR)"
    )
    found = [(*pair, bucket, o.lo_ns, o.hi_ns, o.source.value) for pair, bucket, o in offsets.buckets()]
    if found:
        # One statement with six lists: a statement a row would take a second for a thousand.
        columns = ", ".join(f"unnest(?::{kind}[])" for kind in ("VARCHAR", "VARCHAR", *["BIGINT"] * 3, "VARCHAR"))
        connection.execute(
            f"INSERT INTO raw.offsets SELECT {columns}", [list(column) for column in zip(*found, strict=True)]
        )


def _note_the_impossible(connection: duckdb.DuckDBPyConnection, offsets: Offsets) -> None:
    query = f"SELECT clock, worker_clock, count(*), max(beyond) FROM ({_ROUND_TRIPS}) WHERE beyond > 0 GROUP BY ALL"
    for clock, worker_clock, requests, by_ns in connection.execute(query).fetchall():
        offsets.impossible(Impossible(Pair(clock, worker_clock), requests, by_ns))


def _note_what_was_told(connection: duckdb.DuckDBPyConnection, offsets: Offsets) -> None:
    query = "SELECT clock, mono_a, unnest(peers, recursive := false) AS peer FROM raw.clk"
    for clock, at_ns, peer in connection.execute(query).fetchall():
        offsets.told(Pair(clock, peer["clock"]), Told(at_ns, peer["lo"], peer["hi"], peer["n"]))
