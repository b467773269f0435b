"""The pass of one request, split: what it would have taken alone, its batch-mates, padding, and what was out of the
ordinary. The same split as `attribution.py` makes for all requests at once, from the records in memory."""

from collections.abc import Mapping, Sequence

import numpy as np

from forensics.diagnose.attribution import split_normal
from forensics.diagnose.service import Part, explain_passes
from forensics.diagnose.window import Batches
from shared.events import Batch, Evt


def own_pass(
    batch: Batch, cost: int, rows: int, took_ns: int, passes: Sequence[Batch], pauses: Sequence[Evt]
) -> Mapping[str, int]:
    """Nanoseconds of `took_ns`, the request's time in its pass; they sum to it, and are empty without a law.

    `passes` are passes of the same model near it, `batch` among them, from which the law is learned; `pauses` are the
    collections of its worker. `cost` and `rows` are the request's own.
    """
    of_model = [b for b in passes if (b.model, b.version) == (batch.model, batch.version)]
    columns = Batches.of(of_model)
    at = next(i for i, b in enumerate(of_model) if b is batch)
    gc_ns = np.zeros(len(of_model), dtype=np.int64)
    gc_ns[at] = sum(max(0, min(p.end, batch.w7) - max(p.start, batch.w4)) for p in pauses)
    explained = explain_passes(columns, gc_ns, np.ones(len(of_model), dtype=np.bool_))
    if not explained.laws:
        return {}
    whole_ns = max(1, batch.w7 - batch.w4)
    # A request's answer may be encoded before those of its mates: of everything, as much as it was there for.
    beyond = {p.value: int(explained.parts[p][at]) * took_ns // whole_ns for p in Part if p is not Part.NORMAL}
    normal = np.array([took_ns - sum(beyond.values())], dtype=np.int64)
    number = np.array([at])
    own, padding = split_normal(
        columns, explained, normal, number, np.array([float(max(cost, 1))]), np.array([float(max(rows, 1))])
    )
    split = {"own_compute": int(own[0]), "padding": int(padding[0])}
    return {**split, "batch_mates": int(normal[0]) - sum(split.values()), **{k: ns for k, ns in beyond.items() if ns}}
