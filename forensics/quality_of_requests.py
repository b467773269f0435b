"""The quality gate, second half: requests without their mates, Little's law, and clocks that cannot be right."""

from collections.abc import Iterable, Sequence

from forensics.offsets import DRIFT_MAX_PPM, Contradiction, Pair
from forensics.quality import Defect, Detector, Finding, Gate, Severity, per_cent, weight

EXAMPLES_MAX = 3
SETTLING_US = 1_000_000
"""Lines about one request are written this near to each other, if nothing is lost."""
LITTLE_SHARE_MAX = 0.03
LITTLE_SAMPLES_MIN = 20
LITTLE_HELD_MIN = 1.0
"""A minute is judged if it has so many samples, and the gateway held so many requests on average."""

_REACH = """
    SELECT inst, min(if(first_seq > 1, first_us + $settling, 0)) AS from_us, max(last_us) - $settling AS to_us
    FROM raw.lives WHERE proc = '{proc}' GROUP BY inst
"""
"""When a process must have told of what it did: not around its first lines, if older ones were rotated away, nor around
its last, which may have been written before those of others."""

_REQUESTS_WITHOUT_ATTEMPTS = f"""
WITH answered AS (
    SELECT if(part = '', id, part) AS id, worker, attempt, wall_us - (mono - g5) // 1000 AS at_us
    FROM raw.req WHERE w8 <> 0 AND g5 <> 0 AND worker <> ''
), reach AS ({_REACH.format(proc="worker")}),
told AS (SELECT DISTINCT id, inst AS worker, attempt, true AS told FROM raw.wreq)
SELECT a.worker, r.inst IS NOT NULL, count(*), count(*) FILTER (told IS NULL) AS missing,
    list(a.id ORDER BY a.id) FILTER (told IS NULL)[:$examples]
FROM answered a LEFT JOIN reach r ON a.worker = r.inst LEFT JOIN told USING (id, worker, attempt)
WHERE r.inst IS NULL OR a.at_us BETWEEN r.from_us AND r.to_us
GROUP BY ALL HAVING missing > 0
"""

_ATTEMPTS_WITHOUT_REQUESTS = f"""
WITH reach AS ({_REACH.format(proc="gateway")}), taken AS (
    -- Redis took these answers, so their gateway must have ended the requests. A part of a request is named ID-NUMBER.
    SELECT DISTINCT gateway, id, regexp_replace(id, '-[0-9]+$', '') AS whole, wall_us
    FROM raw.wreq WHERE outcome IN ('DONE', 'FAILED', 'OKDUP') AND gateway <> ''
), told AS (SELECT DISTINCT id, true AS told FROM raw.req),
wholes AS (SELECT DISTINCT id AS whole, true AS whole_told FROM raw.req WHERE parts > 1)
SELECT t.gateway, r.inst IS NOT NULL, count(*), count(*) FILTER (told IS NULL AND whole_told IS NULL) AS missing,
    list(t.id ORDER BY t.id) FILTER (told IS NULL AND whole_told IS NULL)[:$examples]
FROM taken t LEFT JOIN reach r ON t.gateway = r.inst LEFT JOIN told USING (id) LEFT JOIN wholes USING (whole)
WHERE r.inst IS NULL OR t.wall_us BETWEEN r.from_us AND r.to_us
GROUP BY ALL HAVING missing > 0
"""

_BATCHES_WITHOUT_ATTEMPTS = f"""
WITH reach AS ({_REACH.format(proc="worker")}), members AS (
    SELECT inst, batch_id, unnest(members) AS id FROM raw.batch b JOIN reach r USING (inst)
    WHERE b.wall_us BETWEEN r.from_us AND r.to_us
),
told AS (SELECT DISTINCT inst, batch_id, id, true AS told FROM raw.wreq WHERE batch_id <> '')
SELECT inst, count(*), count(*) FILTER (told IS NULL) AS missing, count(DISTINCT batch_id) FILTER (told IS NULL),
    list(id ORDER BY id) FILTER (told IS NULL)[:$examples]
FROM members LEFT JOIN told USING (inst, batch_id, id)
GROUP BY ALL HAVING missing > 0
"""

_ATTEMPTS_WITHOUT_BATCHES = f"""
WITH reach AS ({_REACH.format(proc="worker")}), told AS (SELECT DISTINCT inst, batch_id, true AS told FROM raw.batch)
SELECT a.inst, count(DISTINCT batch_id), count(DISTINCT batch_id) FILTER (told IS NULL) AS missing,
    list(DISTINCT batch_id ORDER BY batch_id) FILTER (told IS NULL)[:$examples]
FROM raw.wreq a JOIN reach r USING (inst) LEFT JOIN told USING (inst, batch_id)
WHERE batch_id <> '' AND a.wall_us BETWEEN r.from_us AND r.to_us
GROUP BY ALL HAVING missing > 0
"""


def _requests_without_attempts(gate: Gate) -> Iterable[Finding]:
    parameters = {"settling": SETTLING_US, "examples": EXAMPLES_MAX}
    for worker, has_log, answered, missing, examples in gate.store.rows(_REQUESTS_WITHOUT_ATTEMPTS, parameters):
        share = missing / answered
        some = (
            f"{missing:,} of {answered:,} requests that worker {worker} answered ({per_cent(share)}) have no line of it"
        )
        yield Finding(
            Defect.REQUEST_WITHOUT_ATTEMPT,
            weight(share),
            some if has_log else f"the log of worker {worker}, which answered {missing:,} requests, is not here",
            f"whom these requests waited behind, what they shared a batch with, and what {worker} was doing",
            f"worker-{worker}",
            {"missing": missing, "of": answered, "share": share, "examples": examples},
        )


def _attempts_without_requests(gate: Gate) -> Iterable[Finding]:
    parameters = {"settling": SETTLING_US, "examples": EXAMPLES_MAX}
    for gateway, has_log, taken, missing, examples in gate.store.rows(_ATTEMPTS_WITHOUT_REQUESTS, parameters):
        share = missing / taken
        some = (
            f"{missing:,} of {taken:,} answers for gateway {gateway} ({per_cent(share)}) are to no request in its log"
        )
        yield Finding(
            Defect.ATTEMPT_WITHOUT_REQUEST,
            weight(share),
            some if has_log else f"the log of gateway {gateway}, for which there are {missing:,} answers, is not here",
            "how many requests there were, and percentiles of all: those that are missing may be the slow ones",
            f"gateway-{gateway}",
            {"missing": missing, "of": taken, "share": share, "examples": examples},
        )


def _batches_without_attempts(gate: Gate) -> Iterable[Finding]:
    parameters = {"settling": SETTLING_US, "examples": EXAMPLES_MAX}
    for worker, members, missing, batches, examples in gate.store.rows(_BATCHES_WITHOUT_ATTEMPTS, parameters):
        share = missing / members
        yield Finding(
            Defect.BATCH_WITHOUT_ATTEMPT,
            weight(share),
            f"{missing:,} of {members:,} members of worker {worker}'s batches ({per_cent(share)}), in {batches:,} "
            "batches, have no line of it",
            "what these members cost their batch, and how they ended there",
            f"worker-{worker}",
            {"missing": missing, "of": members, "batches": batches, "share": share, "examples": examples},
        )


def _attempts_without_batches(gate: Gate) -> Iterable[Finding]:
    parameters = {"settling": SETTLING_US, "examples": EXAMPLES_MAX}
    for worker, batches, missing, examples in gate.store.rows(_ATTEMPTS_WITHOUT_BATCHES, parameters):
        share = missing / batches
        yield Finding(
            Defect.ATTEMPT_WITHOUT_BATCH,
            weight(share),
            f"{missing:,} of {batches:,} batches of worker {worker} ({per_cent(share)}) have no line of their own",
            "what the device did in these batches, and whom others waited behind then",
            f"worker-{worker}",
            {"missing": missing, "of": batches, "share": share, "examples": examples},
        )


_LITTLE = """
WITH samples AS (
    SELECT inst, clock, pid, mono, wall_us, inflight, wall_us // 60000000 AS minute FROM raw.res WHERE proc = 'gateway'
), spans AS (
    -- A gateway counts a request, or each part of it, from its hand-over to the queue until the answer is known.
    SELECT inst, clock, pid, g2 AS begun, g5 AS ended, greatest(parts, 1) AS parts,
        wall_us - (mono - g5) // 1000 AS ended_us
    FROM raw.req WHERE g2 <> 0 AND g5 > g2
), reach AS (
    -- Requests that are still in flight when the log ends have no line: what they would add is not asked for.
    SELECT inst, clock, pid, max(ended) - max(least(ended - begun, 60000000000)) AS until FROM spans GROUP BY ALL
), begun AS (
    SELECT s.inst, s.clock, s.pid, s.mono, sum(x.parts) AS n FROM spans x ASOF JOIN samples s
    ON x.inst = s.inst AND x.clock = s.clock AND x.pid = s.pid AND x.begun <= s.mono GROUP BY ALL
), ended AS (
    SELECT s.inst, s.clock, s.pid, s.mono, sum(x.parts) AS n FROM spans x ASOF JOIN samples s
    ON x.inst = s.inst AND x.clock = s.clock AND x.pid = s.pid AND x.ended <= s.mono GROUP BY ALL
), counted AS (
    SELECT s.*, sum(coalesce(b.n, 0) - coalesce(e.n, 0)) OVER (PARTITION BY inst, clock, pid ORDER BY mono) AS by_lines
    FROM samples s LEFT JOIN begun b USING (inst, clock, pid, mono) LEFT JOIN ended e USING (inst, clock, pid, mono)
), minutes AS (
    SELECT inst, minute, count(*) AS samples, avg(inflight) AS held, avg(by_lines) AS by_lines
    FROM counted JOIN reach USING (inst, clock, pid) WHERE mono < until GROUP BY ALL
), rates AS (
    SELECT inst, ended_us // 60000000 AS minute, count(*) / 60 AS per_s, avg(ended - begun) / 1e6 AS mean_ms
    FROM spans GROUP BY ALL
), judged AS (
    SELECT *, held - by_lines AS short, held - by_lines > greatest($share * held, $held) AS wrong
    FROM minutes LEFT JOIN rates USING (inst, minute) WHERE samples >= $samples AND held >= $held
)
SELECT inst, count(*) FILTER (wrong), count(*), arg_max(minute, short), arg_max(held, short),
    arg_max(by_lines, short), coalesce(arg_max(per_s, short), 0), coalesce(arg_max(mean_ms, short), 0)
FROM judged GROUP BY inst HAVING count(*) FILTER (wrong) > 0
"""


def _littles_law(gate: Gate) -> Iterable[Finding]:
    """What a gateway counted each second is compared with what its lines of requests say of the same instants, so no
    rate has to be even for it: a difference is lines that are not here."""
    parameters = {"share": LITTLE_SHARE_MAX, "samples": LITTLE_SAMPLES_MIN, "held": LITTLE_HELD_MIN}
    for inst, wrong, of, minute, held, by_lines, per_s, mean_ms in gate.store.rows(_LITTLE, parameters):
        yield Finding(
            Defect.LITTLES_LAW,
            Severity.REFUSE,
            f"Little's law fails for gateway {inst} in {wrong} of {of} minutes: in the worst it held {held:.1f} "
            f"requests on average, but its lines, {per_s:,.0f}/s of {mean_ms:.1f} ms, account for {by_lines:.1f}",
            f"rates, depths and percentiles then: about {per_cent(1 - by_lines / held)} of the requests have no line",
            f"gateway-{inst}",
            {"minutes": wrong, "of": of, "worst_minute_us": minute * 60_000_000, "held": held, "by_lines": by_lines},
        )


_ONE_CLOCK = """
SELECT clock, inst, worker, count(*), count(*) FILTER (beyond > 0) AS wrong, max(beyond)
FROM (SELECT *, greatest(g3 - w1, w8 - g5) AS beyond FROM raw.req
      WHERE g3 <> 0 AND g5 <> 0 AND w8 <> 0 AND clock = worker_clock)
GROUP BY ALL HAVING wrong > 0
"""
_SUMS_ARE_RIGHT = "where between gateway and worker the time of these requests went; end-to-end times are right"


def _impossible_clocks(gate: Gate) -> Iterable[Finding]:
    """One clock by name, and yet a worker had requests before they were sent, or answers came before they left."""
    for clock, gateway, worker, requests, wrong, by_ns in gate.store.rows(_ONE_CLOCK):
        yield Finding(
            Defect.IMPOSSIBLE_CLOCK,
            weight(wrong / requests),
            f"gateway {gateway} and worker {worker} claim to share the clock {clock}, but {wrong:,} of {requests:,} "
            f"requests contradict that, by up to {by_ns / 1e6:.3f} ms (machines cloned while they ran have one name)",
            _SUMS_ARE_RIGHT,
            f"gateway-{gateway} and worker-{worker}",
            {"requests": wrong, "of": requests, "by_ns": by_ns},
        )
    for pair, wrong, by_ns in gate.store.offsets.impossibilities():
        yield Finding(
            Defect.IMPOSSIBLE_CLOCK,
            Severity.DOUBT,
            f"{wrong:,} requests were longer inside the worker than for the gateway, by up to {by_ns / 1e6:.3f} ms "
            f"more than a drift of {DRIFT_MAX_PPM} ppm explains, between {_clocks(pair)}",
            _SUMS_ARE_RIGHT,
            _clocks(pair),
            {"requests": wrong, "by_ns": by_ns},
        )


def _clocks_contradict(gate: Gate) -> Iterable[Finding]:
    by_pair: dict[Pair, list[Contradiction]] = {}
    for contradiction in gate.store.offsets.contradictions():
        by_pair.setdefault(contradiction.pair, []).append(contradiction)
    for pair, cuts in by_pair.items():
        worst = max(cuts, key=lambda c: c.by_ns)
        how = f"jumped by at least {worst.by_ns / 1e6:.3f} ms" if worst.by_ns else "changed its rate"
        more = f", and changed {len(cuts) - 1} more times" if len(cuts) > 1 else ""
        yield Finding(
            Defect.CLOCKS_CONTRADICT,
            Severity.DOUBT,
            f"the offset between {_clocks(pair)} {how} at {worst.at_ns / 1e9:.3f} s of the gateway's clock{more}: no "
            "steady drift explains the round trips before and after",
            "how the way between gateway and worker splits at that moment; end-to-end times are right",
            _clocks(pair),
            {"times": len(cuts), "at_ns": worst.at_ns, "by_ns": worst.by_ns},
        )


def _clocks(pair: Pair) -> str:
    return f"{pair.gateway_clock} and {pair.worker_clock}"


_INSIDE = (
    "recv", "pre", "gw_loop", "pull", "batch_wait", "dispatch", "collate", "forward", "post", "out_loop", "gw_wake",
    "render", "respond", "no_answer",
)  # fmt: skip
_BETWEEN = ("uplink", "deliver", "downlink")
_NEGATIVE = f"""
SELECT segment, count(*), min(ns), any_value(id)
FROM (SELECT id, offset_source, {", ".join(f"{name}_ns" for name in (*_INSIDE, *_BETWEEN))} FROM requests
      WHERE least({", ".join(f"{name}_ns" for name in (*_INSIDE, *_BETWEEN))}) < 0)
UNPIVOT (ns FOR segment IN ({", ".join(f"{name}_ns AS '{name}'" for name in (*_INSIDE, *_BETWEEN))}))
-- Clocks that are one by name only have a finding of their own.
WHERE ns < 0 AND NOT (segment IN {_BETWEEN} AND offset_source = 'same clock')
GROUP BY segment
"""


def _stamps_out_of_order(gate: Gate) -> Iterable[Finding]:
    """Within one clock no segment can be negative, and the way between two only when their bounds are wrong."""
    for segment, requests, ns, example in gate.store.rows(_NEGATIVE):
        yield Finding(
            Defect.STAMPS_OUT_OF_ORDER,
            Severity.DOUBT,
            f"{segment} is negative in {requests:,} requests, by up to {-ns / 1e6:.3f} ms, as in {example}",
            "how the time around it splits in these requests; their sums are right",
            segment,
            {"requests": requests, "by_ns": -ns, "examples": [example]},
        )


DETECTORS: Sequence[Detector] = (
    _requests_without_attempts,
    _attempts_without_requests,
    _batches_without_attempts,
    _attempts_without_batches,
    _littles_law,
    _impossible_clocks,
    _clocks_contradict,
    _stamps_out_of_order,
)
