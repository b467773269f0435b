"""The rules that a diagnosis must beat: what the tools of the field do, with a table from what differs to a cause.

B0 always names the cause that is most frequent. B1 takes the metric that is farthest from its usual value. B2 takes the
attribute whose share among the slow requests differs most from that among the others, as BubbleUp and Grafana's
comparison do. B3 ranks attributes by divergence and entropy and fuses the ranks, as Sentry does. The tables are ours
and as kind as can be: what each rule finds is given the cause that it most often means.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from bench.lineup import attributes
from bench.lineup.adapter import Finding, Verdict
from bench.lineup.labels import Labels
from forensics.segments_sql import SEGMENTS
from forensics.store import Store

SLOW_SHARE = 0.02
"""The slowest fiftieth of the requests is what is compared with the others."""
MAD_TO_SD = 1.4826
ENTROPY_WEIGHT, DIVERGENCE_WEIGHT, OFFSET = 0.2, 0.8, 60
Rule = Callable[[Store], Verdict]

CAUSE_OF_METRIC: Mapping[str, str] = {
    "arrivals": "A6", "repeated": "G5", "again": "G1", "bytes_in": "B4", "runq": "D2", "majflt": "E3", "padding": "A2",
    "members": "A6", "lingered": "A3", "new_shapes": "C4", "cpu_a_token": "D4", "largest_batch": "A5",
    "workers": "G1", "gc_worker": "B1", "gc_gateway": "B2", "loop_lag_gateway": "B3", "loop_lag_worker": "B6",
    "model_load_worker": "C3", "model_load_gateway": "C3", "reconnect_worker": "F4", "reconnect_gateway": "F4",
    "reclaim_worker": "G1", "reclaim_gateway": "G1", "worker_lost_worker": "G1", "worker_lost_gateway": "G1",
    "redis_stood_still_worker": "F1", "redis_stood_still_gateway": "F1", "machine_cpu": "D2", "gateway_cpu": "B4",
    "worker_cpu": "A6", "psi_io": "E3", "iowait": "E3", "nivcsw": "D1",
    "recv": "B4", "pre": "B4", "gw_loop": "B3", "uplink": "F1", "stream_wait": "A6", "lost_attempt": "G1",
    "deliver": "F4", "pull": "B4", "batch_wait": "A3", "dispatch": "B5", "collate": "B1", "forward": "A1",
    "post": "B1", "out_loop": "B6", "downlink": "F1", "gw_wake": "B3", "render": "B3", "respond": "B4",
    "no_answer": "A6", "unexplained": "F4",
}  # fmt: skip
"""What it usually means when a metric is unusual."""

CAUSE_OF_ATTRIBUTE: Mapping[str, str] = {
    "gc_worker": "B1", "gc_gateway": "B2", "late_gateway": "B3", "repeated": "G5", "again": "G1", "failed": "A6",
    "bytes_log2": "A1", "padding": "A2", "shape_seen": "C4", "young": "C3", "major_faults": "E3", "members": "A6",
    "waited_for_core": "D2", "slower_than_predicted": "D4", "worker": "H3", "close_reason": "A3",
}  # fmt: skip
"""The same for an attribute; of `largest`, the segment with most of the time, the metric of its value counts."""


def majority(labels: Iterable[Labels]) -> Rule:
    """B0: the most frequent cause, always."""
    counts = Counter(found.expected for found in labels if found.is_fault)
    cause = min(counts, key=lambda c: (-counts[c], c)) if counts else ""
    return lambda _store: _verdict(cause)


def largest_z(store: Store) -> Verdict:
    """B1: the metric with the largest robust z-score of any second."""
    worst, name, second = 0.0, "", 0
    worst_segment, segment = 0.0, ""
    for metric, values in attributes.by_second(store).items():
        middle = float(np.median(values))
        # A metric that never moves has no spread: a tenth of its level, or one unit, is then as good as nothing.
        spread = max(MAD_TO_SD * float(np.median(np.abs(values - middle))), 0.1 * abs(middle), 1.0)
        z = float(np.max(np.abs(values - middle))) / spread
        if z > worst:
            worst, name, second = z, metric, int(np.argmax(np.abs(values - middle)))
        if metric in SEGMENTS and z > worst_segment:
            worst_segment, segment = z, metric
    at_us = attributes.first_us(store)
    return _verdict(CAUSE_OF_METRIC.get(name, ""), segment, 0 if at_us is None else at_us + second * 1_000_000)


def largest_difference(store: Store) -> Verdict:
    """B2: the attribute value whose share differs most between the slow requests and the others."""
    best = ("", "", 0.0)
    all_compared = _compared(store)
    for name, by_value in all_compared.items():
        for value, (inside, outside) in by_value.items():
            if abs(inside - outside) > best[2]:
                best = (name, value, abs(inside - outside))
    return _verdict(_cause(best[0], best[1]), _place(all_compared))


def fused_ranks(store: Store) -> Verdict:
    """B3: reciprocal rank fusion of the divergence of an attribute and of its entropy among the slow requests."""
    all_compared = _compared(store)
    compared = {name: by_value for name, by_value in all_compared.items() if len(by_value) > 1}
    if not compared:
        return _verdict("")
    divergence = {name: _divergence(by_value) for name, by_value in compared.items()}
    entropy = {name: _entropy([inside for inside, _ in by_value.values()]) for name, by_value in compared.items()}
    by_divergence = sorted(compared, key=lambda name: -divergence[name])
    by_entropy = sorted(compared, key=lambda name: entropy[name])
    score = {
        name: DIVERGENCE_WEIGHT / (OFFSET + by_divergence.index(name))
        + ENTROPY_WEIGHT / (OFFSET + by_entropy.index(name))
        for name in compared
    }
    name = max(sorted(score), key=lambda n: score[n])
    value = max(compared[name], key=lambda v: compared[name][v][0] - compared[name][v][1])
    return _verdict(_cause(name, value), _place(all_compared))


RULES: Mapping[str, Rule] = {
    "B1 largest z-score": largest_z,
    "B2 largest difference": largest_difference,
    "B3 fused ranks": fused_ranks,
}


def _compared(store: Store) -> dict[str, Mapping[str, tuple[float, float]]]:
    e2e_ms, columns = attributes.of_requests(store)
    if len(e2e_ms) < 2:
        return {}
    slow = e2e_ms >= np.quantile(e2e_ms, 1 - SLOW_SHARE)
    if slow.all():
        return {}
    return {name: attributes.shares(values, slow) for name, values in columns.items()}


def _cause(name: str, value: str) -> str:
    return CAUSE_OF_METRIC.get(value, "") if name == "largest" else CAUSE_OF_ATTRIBUTE.get(name, "")


def _place(compared: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """The segment that is most often the largest of the slow requests."""
    largest = compared.get("largest", {})
    return max(largest, key=lambda segment: largest[segment][0], default="")


def _verdict(cause: str, segment: str = "", at_us: int = 0) -> Verdict:
    if not cause:
        return Verdict((Finding("unknown", segment=segment),)) if segment else Verdict()
    return Verdict((Finding(cause, 1.0, cause[:1], segment, at_us),))


def _divergence(by_value: Mapping[str, tuple[float, float]]) -> float:
    """Kullback and Leibler's, of the others from the slow ones; what one side lacks counts as one in a million."""
    pairs = [(max(inside, 1e-6), max(outside, 1e-6)) for inside, outside in by_value.values()]
    return sum(outside * math.log(outside / inside) for inside, outside in pairs)


def _entropy(shares: Iterable[float]) -> float:
    return -sum(share * math.log(share) for share in shares if share > 0)
