"""What the logs cannot tell, and why: each defect of a log as a finding with its numbers.

A diagnosis is as good as its logs, so every question is first put to this gate. A finding says what is wrong, how much
of it there is, and what therefore cannot be said; nothing is repaired. What the lines and the processes show is here,
what the requests and the clocks show in `quality_of_requests.py`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from forensics.store import Store

SHARE_MAX = 0.005
"""If more than this share is missing, what rests on it is refused."""
ALIVE_US = 5_000_000
"""A process writes a sample every second: one that was silent for longer stood still, is dead, or said goodbye."""


class Severity(StrEnum):
    """How much a finding weighs."""

    REFUSE = "refuse"
    """What rests on it must not be told at all."""
    DOUBT = "doubt"
    """It can be told, and this must be told with it."""
    NOTE = "note"
    """Good to know; nothing is wrong."""


class Defect(StrEnum):
    """What can be wrong with a log."""

    LOST_LINES = "lost_lines"
    DROPPED_LINES = "dropped_lines"
    TORN_LINES = "torn_lines"
    BAD_LINES = "bad_lines"
    REPEATED_LINES = "repeated_lines"
    NO_BEGINNING = "no_beginning"
    NO_GOODBYE = "no_goodbye"
    SILENCE = "silence"
    WALL_CLOCK_STEPPED = "wall_clock_stepped"
    REQUEST_WITHOUT_ATTEMPT = "request_without_attempt"
    ATTEMPT_WITHOUT_REQUEST = "attempt_without_request"
    BATCH_WITHOUT_ATTEMPT = "batch_without_attempt"
    ATTEMPT_WITHOUT_BATCH = "attempt_without_batch"
    LITTLES_LAW = "littles_law"
    IMPOSSIBLE_CLOCK = "impossible_clock"
    CLOCKS_CONTRADICT = "clocks_contradict"
    STAMPS_OUT_OF_ORDER = "stamps_out_of_order"


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect: `what` is wrong, and what the logs `cannot` say therefore; `where` names a process or two clocks."""

    defect: Defect
    severity: Severity
    what: str
    cannot: str
    where: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The finding as a value ready for JSON."""
        return {
            "defect": self.defect.value,
            "severity": self.severity.value,
            "what": self.what,
            "cannot": self.cannot,
            "where": self.where,
            "numbers": dict(self.numbers),
        }


class Gate(NamedTuple):
    """What a detector looks at. `now_us`: who wrote until now still runs."""

    store: Store
    now_us: int
    newest_us: int
    """When the newest line was written, wall clock."""


Detector = Callable[[Gate], Iterable[Finding]]


def check(store: Store, *, now_us: int) -> list[Finding]:
    """Every defect found, the gravest first; an empty list for logs that are whole."""
    from forensics.quality_of_requests import DETECTORS as of_requests

    newest_us = store.value("SELECT max(last_us) FROM raw.lives")
    gate = Gate(store, max(now_us, newest_us), newest_us)
    found = [finding for detect in (*DETECTORS, *of_requests) for finding in detect(gate)]
    weights = list(Severity)
    return sorted(found, key=lambda f: (weights.index(f.severity), list(Defect).index(f.defect), f.where))


def weight(share: float) -> Severity:
    """How much it weighs that this share of something is missing."""
    return Severity.REFUSE if share > SHARE_MAX else Severity.DOUBT


def per_cent(share: float) -> str:
    """A share in words: "0.31 %"."""
    return f"{100 * share:.2g} %"


def _lost_lines(gate: Gate) -> Iterable[Finding]:
    rows = gate.store.rows(
        "SELECT proc || '-' || inst, sum(lost)::BIGINT, sum(lines)::BIGINT, sum(dropped)::BIGINT FROM raw.lives "
        "GROUP BY ALL HAVING sum(lost) > 0 OR sum(dropped) > 0"
    )
    for process, lost, lines, dropped in rows:
        share = lost / (lost + lines)
        by_itself = f"; it dropped {dropped:,} itself, since its writer could not keep up" if dropped else ""
        yield Finding(
            Defect.DROPPED_LINES if dropped >= lost else Defect.LOST_LINES,
            weight(share),
            f"{lost:,} of {lost + lines:,} lines of {process} are missing, by the gaps of their numbers{by_itself}",
            f"what {process} did meanwhile, and how many requests there were: any line may be among them",
            process,
            {"lost": lost, "lines": lines, "dropped": dropped, "share": share},
        )


def _unread_lines(gate: Gate) -> Iterable[Finding]:
    lines = gate.store.value("SELECT sum(lines)::BIGINT FROM raw.lives")
    rows = gate.store.rows(
        "SELECT kind, count(*), count(DISTINCT file), min(file), min(text) FROM raw.unread GROUP BY kind"
    )
    for kind, count, files, file, text in rows:
        share = count / (count + lines)
        grave = Severity.NOTE if share <= SHARE_MAX else Severity.DOUBT
        if kind == "torn":
            yield Finding(
                Defect.TORN_LINES,
                grave,
                f"{count:,} lines in {files} files are cut off, as when a process is killed while it writes ({file})",
                "what these lines would have told: the last moments of those processes",
                file,
                {"lines": count, "files": files, "share": share},
            )
        else:
            yield Finding(
                Defect.BAD_LINES,
                grave,
                f"{count:,} lines in {files} files are no records of this version, such as {text[:60]!r} in {file}",
                "what these lines tell: they are foreign, damaged, or of a newer version",
                file,
                {"lines": count, "files": files, "share": share},
            )


def _repeated_lines(gate: Gate) -> Iterable[Finding]:
    rows = gate.store.rows(
        "SELECT proc || '-' || inst, sum(repeated)::BIGINT FROM raw.lives GROUP BY ALL HAVING sum(repeated) > 0"
    )
    if rows:
        repeated = sum(count for _, count in rows)
        yield Finding(
            Defect.REPEATED_LINES,
            Severity.REFUSE,
            f"{repeated:,} lines of {len(rows)} processes were read twice: a log and a copy of it, as of {rows[0][0]}",
            "any count, rate or percentile: requests are there more than once; name each log once",
            rows[0][0],
            {"lines": repeated, "processes": len(rows)},
        )


def _no_beginning(gate: Gate) -> Iterable[Finding]:
    rows = gate.store.rows(
        "SELECT proc || '-' || inst, first_seq, make_timestamp(first_us) FROM raw.lives "
        "WHERE first_seq > 1 AND NOT hello"
    )
    for process, first_seq, first_at in rows:
        yield Finding(
            Defect.NO_BEGINNING,
            Severity.NOTE,
            f"the log of {process} begins with line {first_seq:,}: what came before was rotated away, or is not here",
            f"anything of {process} before {first_at:%Y-%m-%d %H:%M:%S} UTC, its versions included",
            process,
            {"first_seq": first_seq},
        )


def _no_goodbye(gate: Gate) -> Iterable[Finding]:
    rows = gate.store.rows(
        "SELECT proc || '-' || inst, last_us, make_timestamp(last_us) FROM raw.lives "
        "WHERE bye IS NULL AND ? - last_us > ?",
        [gate.now_us, ALIVE_US],
    )
    for process, last_us, last_at in rows:
        yield Finding(
            Defect.NO_GOODBYE,
            Severity.DOUBT,
            f"{process} did not say goodbye; its last line is of {last_at:%Y-%m-%d %H:%M:%S} UTC: it was killed, or "
            "its log is a copy from while it ran",
            f"how the requests ended that {process} held then",
            process,
            {"last_us": last_us},
        )


def _silence(gate: Gate) -> Iterable[Finding]:
    rows = gate.store.rows(
        "WITH samples AS (SELECT proc, inst, wall_us, mono, mono - lag(mono) OVER (PARTITION BY clock, pid, proc, inst "
        "ORDER BY mono) AS gap FROM raw.res) SELECT proc || '-' || inst, count(*), max(gap), "
        "make_timestamp(arg_max(wall_us - gap // 1000, gap)) FROM samples WHERE gap > ? GROUP BY ALL",
        [ALIVE_US * 1_000],
    )
    for process, count, gap_ns, since in rows:
        yield Finding(
            Defect.SILENCE,
            Severity.DOUBT,
            f"{process} wrote no sample for {gap_ns / 1e9:.1f} s from {since:%Y-%m-%d %H:%M:%S} UTC on"
            + (f", and {count - 1} more times" if count > 1 else "")
            + ": it, or its machine, stood still, or lines are missing",
            f"what {process} used and did in that time",
            process,
            {"longest_ns": gap_ns, "times": count},
        )


def _wall_clock_stepped(gate: Gate) -> Iterable[Finding]:
    rows = gate.store.rows(
        "SELECT proc || '-' || inst, count(*), arg_max(ns, abs(ns)), make_timestamp(arg_max(wall_us, abs(ns))) FROM "
        "(SELECT *, (attrs ->> 'ns')::BIGINT AS ns FROM raw.evt WHERE kind = 'clock_step') GROUP BY ALL"
    )
    for process, count, ns, at in rows:
        yield Finding(
            Defect.WALL_CLOCK_STEPPED,
            Severity.NOTE,
            f"the wall clock of {process} stepped by {ns / 1e6:+.1f} ms at {at:%Y-%m-%d %H:%M:%S} UTC"
            + (f", the largest of {count} steps" if count > 1 else ""),
            "the time of day to better than that, also against other hosts; durations do not depend on it",
            process,
            {"steps": count, "largest_ns": ns},
        )


DETECTORS: Sequence[Detector] = (
    _lost_lines,
    _unread_lines,
    _repeated_lines,
    _no_beginning,
    _no_goodbye,
    _silence,
    _wall_clock_stepped,
)
