"""What each pass should have taken, and where the rest of its time went.

Theory of operation. The law of `shared/policy/service_time.py`, t0 + a·units + b·units² + c·rows, is fitted here to the
logged passes of each model over all workers, since a worker that has always been slow must not look normal. Most
passes are normal and nothing makes a pass shorter than it should be, so the fit is a regression to a quantile a little
below the median (`TAU`; iteratively reweighted least squares, coefficients not negative) on passes without an event
over them: a disturbance of nearly half of all passes does not move it. What a pass took
beyond it is split by what the thread's own meters say, in the order of their certainty, each capped by what is left:

    GC              the process collected garbage meanwhile
    COMPILE         torch compiled graphs in it
    COLD            one of the first passes of its process, or of a shape that was not seen before
    CPU_WAIT        the thread was ready to run and had no core (the kernel's run-queue delay)
    PAGE_FAULTS     the rest, when pages came from disk
    SLOW_COMPUTE    the rest, as far as the thread computed: it burnt more CPU time than such a pass does
    BLOCKED         the rest: the thread neither computed nor wanted to (a lock, the GIL, a disk, a sleep)

All are whole nanoseconds and sum to what the pass took, together with NORMAL, which is never more than predicted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from forensics.diagnose.window import Batches, Bools, Floats, Ints
from shared.policy.nonnegative import solve

FIT_MIN = 12
"""Passes that a law needs."""
ROUNDS = 15
TAU = 0.4
COLD_PASSES = 3
LAW_ERROR_MIN = 0.10
"""Passes vary: up to this share above the law, or up to twice the typical error, a pass is normal."""


class Part(StrEnum):
    """What the time of a pass was."""

    NORMAL = "normal"
    GC = "gc"
    COMPILE = "compile"
    COLD = "cold"
    CPU_WAIT = "cpu_wait"
    PAGE_FAULTS = "page_faults"
    SLOW_COMPUTE = "slow_compute"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Law:
    """Coefficients in ns: per pass, unit, unit squared, row; `error` is the typical relative deviation of its
    passes."""

    t0: float
    a: float
    b: float
    c: float
    error: float
    passes: int
    padded: bool

    def predict(self, units: Floats, squares: Floats, rows: Floats) -> Floats:
        """Nanoseconds of passes of these shapes."""
        predicted: Floats = self.t0 + self.a * units + self.b * squares + self.c * rows
        return predicted


@dataclass(frozen=True, slots=True)
class Passes:
    """Per pass: `predicted` ns (0 without a law), and `parts`, whole ns that sum to its `took`."""

    laws: Mapping[str, Law]
    predicted: Floats
    parts: Mapping[Part, Ints]
    computed: Floats
    """Units computed, padding included."""
    useful: Floats


def explain_passes(batches: Batches, gc_ns: Ints, reference: Bools) -> Passes:
    """Split the time of every pass. `gc_ns`: for how long of it its process collected garbage. The laws are fitted
    to the passes in `reference`, as far as these suffice, else to all."""
    models = batches.names["model"]
    took = batches.took.astype(np.float64)
    units, squares, padded = _shapes(batches)
    rows = batches.numbers["rows"].astype(np.float64)
    predicted, margin, cpu_normal = np.zeros_like(took), np.zeros_like(took), np.zeros_like(took)
    laws = {}
    clean = (
        (gc_ns == 0) & (batches.numbers["splits"] == 0) & (batches.numbers["nth"] > COLD_PASSES) & batches.shape_seen
    )
    clean &= batches.numbers["compiles"] == 0
    for code, model in enumerate(models.names):
        of_model = models.codes == code
        for among in (reference & clean & of_model, clean & of_model):
            if np.count_nonzero(among) >= FIT_MIN:
                laws[model] = fit(units[among], squares[among], rows[among], took[among], bool(padded[among].any()))
                break
        else:
            continue
        law = laws[model]
        predicted[of_model] = law.predict(units[of_model], squares[of_model], rows[of_model])
        margin[of_model] = predicted[of_model] * max(LAW_ERROR_MIN, 2 * law.error)
        cpu = batches.numbers["cpu_ns"].astype(np.float64)
        cpu_normal[of_model] = _normal_cpu(cpu[among], took[among]) * predicted[of_model]
    return Passes(laws, predicted, _parts(batches, gc_ns, predicted, margin, cpu_normal), units, _useful(batches))


def fit(units: Floats, squares: Floats, rows: Floats, took: Floats, padded: bool) -> Law:
    """The law of these passes: a non-negative regression to the quantile `TAU` of the relative error.

    Least squares with weights tau / (predicted² · |relative error|), 1 - tau for negative errors, come to the quantile
    regression (after Schlossmacher 1973); a floor under the error keeps single passes from owning the fit.
    """
    features = np.stack([np.ones_like(took), units, squares, rows], axis=1)
    coefficients = [float(np.median(took)), 0.0, 0.0, 0.0]
    weights = 1 / np.maximum(took, 1.0) ** 2
    for _ in range(ROUNDS):
        weighted = features * weights[:, None]
        moments = (weighted.T @ features).tolist()
        products = (weighted.T @ took).tolist()
        coefficients = solve(moments, products, coefficients, 1e-6)
        predicted = np.maximum(features @ np.asarray(coefficients), 1.0)
        errors = took / predicted - 1
        weights = np.where(errors > 0, TAU, 1 - TAU) / (predicted**2 * np.maximum(np.abs(errors), 0.01))
    # The quantile again: the iteration has not quite come to its end, and a bias would be in every pass.
    scale = float(np.quantile(took / predicted, TAU))
    t0, a, b, c = (x * scale for x in coefficients)
    return Law(t0, a, b, c, float(np.median(np.abs(took / (predicted * scale) - 1))), len(took), padded)


def _shapes(batches: Batches) -> tuple[Floats, Floats, Bools]:
    """Units and units squared that were computed, and whether the pass padded."""
    useful, computed = (batches.numbers[n].astype(np.float64) for n in ("tokens_useful", "tokens_padded"))
    padded = computed > useful
    units = np.where(computed > 0, computed, batches.numbers["cost"].astype(np.float64))
    rows = np.maximum(batches.numbers["rows"], 1)
    # A padded pass computes `rows` sequences, each as long as the longest.
    squares = np.where(padded, units * units / rows, batches.squares)
    return units, squares, padded


def _useful(batches: Batches) -> Floats:
    useful = batches.numbers["tokens_useful"].astype(np.float64)
    return np.where(useful > 0, useful, batches.numbers["cost"].astype(np.float64))


def _normal_cpu(cpu: Floats, took: Floats) -> float:
    """CPU time of the thread in forward, as a share of what a pass takes; 0 on a device that computes by itself."""
    return float(np.median(cpu / np.maximum(took, 1.0)))


def _parts(batches: Batches, gc_ns: Ints, predicted: Floats, margin: Floats, cpu_normal: Floats) -> dict[Part, Ints]:
    took = batches.took
    known = predicted > 0
    beyond = took - predicted
    # A pass within the margin is normal as it is.
    left = np.where(known & (beyond > margin), beyond, 0.0).astype(np.int64)
    parts = {Part.NORMAL: took - left}
    numbers = batches.numbers

    def take(part: Part, most: Ints | Floats) -> None:
        nonlocal left
        taken = np.clip(np.minimum(left, most), 0, None).astype(np.int64)
        parts[part] = taken
        left = left - taken

    everything = np.iinfo(np.int64).max >> 1
    take(Part.GC, gc_ns)
    take(Part.COMPILE, np.where(numbers["compiles"] > 0, everything, 0))
    take(Part.COLD, np.where((numbers["nth"] <= COLD_PASSES) | ~batches.shape_seen, everything, 0))
    take(Part.CPU_WAIT, numbers["runq_ns"])
    take(Part.PAGE_FAULTS, np.where(numbers["majflt"] > 0, everything, 0))
    take(Part.SLOW_COMPUTE, np.where(cpu_normal > 0, numbers["cpu_ns"] - cpu_normal, everything))
    take(Part.BLOCKED, np.full(len(took), everything))
    return parts
