"""How long a pass through the device takes, learned from the passes themselves.

Theory of operation. A pass over B sequences of lengths L (in units of a request's cost: tokens, rows) takes

    PACKED   t0 + a · sum(L) + b · sum(L²)         + c · B      sequences lie one behind the other
    PADDED   t0 + a · B · Lmax + b · B · Lmax²     + c · B      each is padded to the longest

nanoseconds: t0 is what every pass costs, a is per unit (matrix products), b per unit squared (attention: L² of each
sequence), c per sequence. None can be negative. They hold for one model on one device with one number of threads: keep
a `ServiceTime` for each. A model that does not pad is PACKED, also one whose requests all are of one length.

The coefficients are the recursive least squares of the relative error with forgetting: the normal equations are sums
that fade by `FADING` a pass, so some hundred passes count, and `nonnegative.solve` finds the minimum exactly. Times are
not Gaussian: a garbage collection or a neighbour makes a pass several times as long, nothing makes it shorter.
So each pass counts with the weight

    1 / max(predicted, took)²    the error relative to the larger: that of a pass that took for ever is 1, not infinite
    · min(1, HUBER · s / |e|)    Huber's: beyond some typical errors s the pull does not grow any more

and no single pass moves the law by more than a typical one does. What is no exception but the rule now - the machine
has become slower or faster - shows as surprises to the same side, one after the other. After `CHANGE` of them among
`RECENT` passes the law is multiplied by their median: a slower machine is slower for all shapes, so what was learned of
them stays. Anything else (other texts, a slow drift) is followed by the forgetting.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from shared.policy.batching import Waiting
from shared.policy.nonnegative import solve

REFIT_ALWAYS = 64
REFIT_EVERY = 4
"""The law follows after each of the first passes, then after every fourth: that is what costs time."""
VERSION = 1
"""Of the form of `to_dict`."""
FADING = 0.99
"""What a pass counts for, a pass later: the memory is 1 / (1 - FADING) passes."""
HUBER = 2.5
"""Typical errors beyond which a pass is a surprise."""
SURPRISE_MIN = 0.15
"""A relative error below it is never a surprise, however exact the law was before."""
RECENT = 12
CHANGE = 8
"""So many surprises to one side among so many passes are a change."""
ERROR_WEIGHT = 0.05
"""How fast the typical error follows."""
ERROR_START = 0.2
ERROR_MIN = 0.02
ERROR_MAX = 0.5
"""With a larger typical error the law is not trusted."""
PASSES_MIN = 12
"""Passes that must have been seen before the law is trusted, ..."""
SHAPES_MIN = 4
"""... shapes of different size, by powers of two of rows and of units, ..."""
ROWS_MIN = 2
"""... and different numbers of sequences: else t0 and c cannot be told apart."""
SHAPES_MAX = 256
STIFFNESS = 1e-3
"""How much a coefficient that the passes do not tell stays where it is, relative to what they tell."""


class Form(StrEnum):
    """How a model puts sequences of different lengths into one pass."""

    PACKED = "packed"
    PADDED = "padded"


@dataclass(frozen=True, slots=True)
class Shape:
    """What is in a pass: sequences, the sum of their lengths, the sum of their squares, the longest."""

    rows: int
    units: float
    squares: float
    longest: float


def length_of(waiting: Waiting) -> float:
    """Units of the longest sequence of a request; if it does not say, all its sequences are as long."""
    return waiting.longest or waiting.cost / waiting.rows


def shape_of(batch: Iterable[Waiting]) -> Shape:
    """The shape of a pass over these requests. The rows of one request are taken to be equally long but for padding."""
    rows, units, squares, longest = 0, 0, 0.0, 0.0
    for w in batch:
        rows += w.rows
        units += w.cost
        squares += w.cost * w.cost / w.rows
        longest = max(longest, length_of(w))
    return Shape(rows, units, squares, longest)


@dataclass(frozen=True, slots=True)
class Law:
    """The formula above with its coefficients, all in ns and not negative: t0 per pass, a per unit, b per unit squared,
    c per sequence. A value: to be logged, and for policies and simulations."""

    form: Form
    t0: float
    a: float
    b: float
    c: float

    def predict_ns(self, shape: Shape) -> float:
        """Time of one pass of this shape, nanoseconds."""
        _, units, squares, rows = _features(self.form, shape)
        return self.t0 + self.a * units + self.b * squares + self.c * rows


class ServiceTime:
    """Learns the law of one model on one device with one number of threads."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._moments = [[0.0] * 4 for _ in range(4)]
        self._products = [0.0] * 4
        self._coefficients = [0.0] * 4
        self._error = ERROR_START
        self._passes = 0
        self._recent: deque[float] = deque(maxlen=RECENT)
        """Of the last passes: how many times as long as predicted they took; 1 if that was no surprise."""
        self._shapes: set[tuple[int, int]] = set()
        self._rows: set[int] = set()

    def observe(self, shape: Shape, took_ns: int) -> None:
        """Learn from a clean pass: nothing failed, nothing was compiled, and no other pass shared the device.

        `took_ns` is how long the device was not free for others. What is not positive is ignored.
        """
        if took_ns <= 0 or shape.rows < 1:
            return
        took = float(took_ns)
        features = _features(self.form, shape)
        predicted = sum(x * f for x, f in zip(self._coefficients, features, strict=True))
        weight = 1.0 / max(predicted, took) ** 2
        if self._passes >= PASSES_MIN and predicted > 0:
            weight *= self._surprise(took / predicted)
        elif predicted > 0:
            self._follow_error(took / predicted - 1)
        for i, f in enumerate(features):
            f *= weight
            self._products[i] = self._products[i] * FADING + f * took
            row = self._moments[i]
            for j, g in enumerate(features):
                row[j] = row[j] * FADING + f * g
        self._passes += 1
        if self._passes < REFIT_ALWAYS or not self._passes % REFIT_EVERY:
            self._coefficients = solve(self._moments, self._products, self._coefficients, STIFFNESS)
        if len(self._shapes) < SHAPES_MAX:
            self._note((shape.rows.bit_length(), int(shape.units).bit_length()))

    def predict_ns(self, shape: Shape) -> int:
        """What a pass of this shape should take, nanoseconds; a guess while not `trusted`, 0 before the first pass."""
        return round(Law(self.form, *self._coefficients).predict_ns(shape))

    @property
    def error(self) -> float:
        """The typical error of a prediction, relative."""
        return self._error

    def trusted(self, rows_max: int) -> bool:
        """Is the law good enough to choose batches of up to `rows_max` sequences by it?"""
        return (
            self._passes >= PASSES_MIN
            and len(self._shapes) >= SHAPES_MIN
            and (rows_max == 1 or len(self._rows) >= ROWS_MIN)
            and self._error <= ERROR_MAX
        )

    def law(self, rows_max: int) -> Law | None:
        """The law as it stands; None while it is not trusted."""
        return Law(self.form, *self._coefficients) if self.trusted(rows_max) else None

    def to_dict(self) -> dict[str, Any]:
        """All that was learned, as plain numbers, strings and lists: for JSON or msgpack."""
        return {
            "version": VERSION,
            "form": self.form.value,
            "moments": [list(row) for row in self._moments],
            "products": list(self._products),
            "coefficients": list(self._coefficients),
            "error": self._error,
            "passes": self._passes,
            "shapes": [list(shape) for shape in sorted(self._shapes)],
        }

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any], form: Form) -> "ServiceTime":
        """What `to_dict` gave. Raises ValueError if it is of another version or form, or damaged: then learn anew."""
        if kept.get("version") != VERSION or kept.get("form") != form.value:
            raise ValueError(
                f"expected a service time of version {VERSION} for a {form.value} model, got version "
                f"{kept.get('version')!r}, {kept.get('form')!r}: discard it"
            )
        learned = cls(form)
        try:
            learned._moments = [_numbers(row) for row in kept["moments"]]
            learned._products = _numbers(kept["products"])
            learned._coefficients = _numbers(kept["coefficients"])
            (learned._error,) = _numbers([kept["error"]], 1)
            learned._passes = int(kept["passes"])
            for rows, units in kept["shapes"]:
                learned._note((int(rows), int(units)))
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise ValueError(f"a kept service time is damaged ({type(e).__name__}: {e}): discard it") from e
        if len(learned._moments) != 4 or learned._passes < 0 or len(learned._shapes) > SHAPES_MAX:
            raise ValueError("a kept service time is damaged (wrong sizes): discard it")
        return learned

    def _note(self, shape: tuple[int, int]) -> None:
        self._shapes.add(shape)
        self._rows.add(shape[0])

    # -- the robust part -----------------------------------------------------------------------------------------

    def _surprise(self, ratio: float) -> float:
        """The weight of a pass that took `ratio` times what was predicted; notes a change."""
        error = ratio - 1
        expected = HUBER * self._error
        self._follow_error(error)
        surprise = abs(error) > max(expected, SURPRISE_MIN)
        self._recent.append(ratio if surprise else 1.0)
        if surprise:
            same_side = [r for r in self._recent if r != 1 and (r > 1) == (ratio > 1)]
            if len(same_side) >= CHANGE:
                self._rescale(median(same_side))
                return 1.0
        return min(1.0, expected / abs(error)) if error else 1.0

    def _follow_error(self, error: float) -> None:
        # Clipped, so that what is rare and far away does not make the law look vague.
        clipped = min(abs(error), HUBER * self._error)
        self._error = max(ERROR_MIN, self._error + ERROR_WEIGHT * (clipped - self._error))

    def _rescale(self, ratio: float) -> None:
        """As if all passes so far had taken `ratio` times as long."""
        self._recent.clear()
        self._coefficients = [x * ratio for x in self._coefficients]
        self._products = [v / ratio for v in self._products]
        self._moments = [[x / ratio**2 for x in row] for row in self._moments]


def _features(form: Form, shape: Shape) -> tuple[float, float, float, float]:
    """What t0, a, b and c are multiplied with."""
    if form is Form.PACKED:
        return 1.0, shape.units, shape.squares, shape.rows
    computed = shape.rows * shape.longest
    return 1.0, computed, computed * shape.longest, shape.rows


def _numbers(values: Iterable[Any], count: int = 4) -> list[float]:
    numbers = [float(v) for v in values]
    if len(numbers) != count or not all(math.isfinite(x) and x >= 0 for x in numbers):
        raise ValueError(f"expected {count} finite numbers that are not negative, got {numbers}")
    return numbers
