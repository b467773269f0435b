"""The lives of processes, from their lines: when each was there, what of its log is missing, how it ended."""

from forensics.schema import RECORDS

_PROCESS = ("clock", "pid", "proc", "inst")
_NAMES = ", ".join(_PROCESS)
_HELLO = tuple(c.quoted for c in RECORDS["hello"])
_STARTS = f"""
    SELECT * EXCLUDE (mono), if(lag(mono) OVER (PARTITION BY {_NAMES} ORDER BY mono) IS NULL, 0, mono) AS since
    FROM (SELECT DISTINCT {_NAMES}, mono, {", ".join(_HELLO)} FROM raw.hello)
"""
"""The first life begins with the log, since a few lines may come before the hello; any other with its hello."""

NAMES_COME_BACK = f"SELECT count(*) > count(DISTINCT ({_NAMES})) FROM (SELECT DISTINCT {_NAMES}, mono FROM raw.hello)"
"""True when a process has more than one hello."""


def table_of_lives(*, names_come_back: bool) -> str:
    """The statement that makes `lives`. Only where names come back must each line be looked at to tell of which life it
    is, and that takes three times as long."""
    same, same_hello = (" AND ".join(f"l.{name} = {other}.{name}" for name in _PROCESS) for other in ("s", "h"))
    begun = f"ASOF LEFT JOIN starts s ON {same} AND l.mono >= s.since" if names_come_back else ""
    life = (
        ", ".join(f"l.{name}" for name in _PROCESS) + f", {'coalesce(s.since, 0)' if names_come_back else '0'} AS since"
    )
    return f"""
    CREATE TABLE raw.lives AS
    WITH starts AS ({_STARTS}), counted AS (
        SELECT {life}, min(host) AS host, min(wall_us) AS first_us, max(wall_us) AS last_us, min(seq) AS first_seq,
            max(seq) AS last_seq, count(DISTINCT seq) AS lines, count(*) - count(DISTINCT seq) AS repeated
        FROM raw.every_line l {begun} GROUP BY ALL
    ), said AS (
        SELECT {_NAMES}, mono, reason, 0 AS dropped FROM raw.bye
        UNION SELECT {_NAMES}, mono, NULL, (attrs ->> 'lines')::BIGINT FROM raw.evt WHERE kind = 'log_drop'
    ), told AS (
        SELECT {life}, max(reason) AS bye, sum(dropped)::BIGINT AS dropped FROM said l {begun} GROUP BY ALL
    )
    SELECT l.*, last_seq - first_seq + 1 - lines AS lost, coalesce(s.dropped, 0) AS dropped, s.bye,
        h.since IS NOT NULL AS hello, {", ".join(f"h.{name}" for name in _HELLO)}
    FROM counted l LEFT JOIN told s ON {same} AND l.since = s.since
    LEFT JOIN starts h ON {same_hello} AND l.since = h.since
    """
