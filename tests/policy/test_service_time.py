"""The service time: learned from noisy passes, not spoilt by outliers, and it follows what lasts."""

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy.virtual_worker import MS, NEVER, real_lengths

from shared.policy.batching import Waiting
from shared.policy.service_time import Form, Law, ServiceTime, Shape, shape_of

PACKED = Law(Form.PACKED, 7 * MS, 0.27 * MS, 300, 0.3 * MS)
PADDED = Law(Form.PADDED, 7 * MS, 0.27 * MS, 300, 0.3 * MS)
laws = pytest.mark.parametrize("truth", [PACKED, PADDED], ids=["packed", "padded"])
seeds = pytest.mark.parametrize("seed", range(5))


class Traffic:
    """Passes over texts of real lengths, as a machine runs them."""

    def __init__(self, truth: Law, seed: int) -> None:
        self.truth = truth
        self.learned = ServiceTime(truth.form)
        self._chance = random.Random(seed)
        self._lengths = real_lengths(seed)

    def shape(self, rows: int) -> Shape:
        return shape_of([Waiting("r", 1, next(self._lengths), None, 0, NEVER) for _ in range(rows)])

    def run(
        self,
        passes: int,
        *,
        rows_max: int = 12,
        noise: float = 0.1,
        outliers: float = 0.0,
        pace: Callable[[int], float] = lambda n: 1.0,
    ) -> None:
        """`pace`: how much slower the machine is in pass n; `outliers`: share of passes that take 2 to 10 times."""
        for n in range(passes):
            shape = self.shape(self._chance.randint(1, rows_max))
            took = self.truth.predict_ns(shape) * pace(n) * self._chance.uniform(1 - noise, 1 + noise)
            if self._chance.random() < outliers:
                took *= self._chance.uniform(2, 10)
            self.learned.observe(shape, round(took))

    def worst_error(self, pace: float = 1.0) -> float:
        """The mean over the relative errors for batches of one size, of the worst size."""
        return max(
            sum(
                abs(self.learned.predict_ns(shape) / (self.truth.predict_ns(shape) * pace) - 1)
                for shape in (self.shape(rows) for _ in range(50))
            )
            / 50
            for rows in (1, 2, 4, 8, 12)
        )


@laws
def test_exact_passes_give_the_coefficients(truth: Law) -> None:
    """Without noise a few passes tell them all."""
    traffic = Traffic(truth, 1)
    traffic.run(30, noise=0)
    law = traffic.learned.law(8)
    assert law
    assert (law.t0, law.a, law.b, law.c) == pytest.approx((truth.t0, truth.a, truth.b, truth.c), rel=0.01)


@laws
@seeds
def test_noise_and_outliers_do_not_spoil_the_law(truth: Law, seed: int) -> None:
    """With ±10 % noise, and every tenth pass twice to ten times as long, predictions are within 8 %."""
    traffic = Traffic(truth, seed)
    traffic.run(200, outliers=0.1)
    assert traffic.worst_error() < 0.08
    law = traffic.learned.law(8)
    assert law
    assert law.t0 == pytest.approx(truth.t0, rel=0.35)
    assert law.a == pytest.approx(truth.a, rel=0.35)


@laws
@seeds
def test_one_pass_moves_the_law_little_however_long_it_took(truth: Law, seed: int) -> None:
    """A garbage collection of a second, in a pass of 20 ms."""
    traffic = Traffic(truth, seed)
    traffic.run(100)
    shape = traffic.shape(1)
    before_ns = traffic.learned.predict_ns(shape)
    traffic.learned.observe(shape, 1000 * MS)
    traffic.run(3, noise=0)
    assert traffic.learned.predict_ns(shape) == pytest.approx(before_ns, rel=0.05)


@laws
@seeds
@pytest.mark.parametrize("pace", [2.0, 4.0, 0.5])
def test_a_lasting_change_is_followed_within_tens_of_passes(truth: Law, seed: int, pace: float) -> None:
    """The machine becomes slower, or faster: 30 passes later the law is there, for all shapes."""
    traffic = Traffic(truth, seed)
    traffic.run(200, outliers=0.05)
    traffic.run(30, outliers=0.05, pace=lambda n: pace)
    assert traffic.worst_error(pace) < 0.12


@laws
@seeds
def test_a_slow_drift_is_followed(truth: Law, seed: int) -> None:
    """One per mille a pass, until it is twice as slow: the law lags by about its memory, a hundred passes."""
    traffic = Traffic(truth, seed)
    traffic.run(100)
    traffic.run(700, pace=lambda n: 1.001**n)
    assert traffic.worst_error(1.001**700) < 0.2


@laws
@seeds
def test_what_was_learned_of_batches_outlives_a_quiet_night(truth: Law, seed: int) -> None:
    """Two thousand single texts later it still knows how long batches take."""
    traffic = Traffic(truth, seed)
    traffic.run(200)
    traffic.run(2000, rows_max=1)
    assert traffic.worst_error() < 0.2


@laws
def test_a_law_is_trusted_when_it_has_seen_different_shapes(truth: Law) -> None:
    """Single texts do not tell what a batch takes, a few passes tell nothing, and noise alone is no law."""
    traffic = Traffic(truth, 1)
    assert not traffic.learned.trusted(8)
    assert traffic.learned.law(8) is None
    traffic.run(50, rows_max=1)
    assert not traffic.learned.trusted(8)
    assert traffic.learned.trusted(1), "of a model without batches single texts are all there is"
    traffic.run(50)
    assert traffic.learned.trusted(8)

    chaos, chance = ServiceTime(truth.form), random.Random(1)
    for _ in range(300):
        chaos.observe(traffic.shape(chance.randint(1, 12)), round(10 ** chance.uniform(3, 9)))
    assert not chaos.trusted(8)


def test_a_model_without_lengths_is_learned_too() -> None:
    """Cost is rows, all of one length: what units and rows cost cannot be told apart, their sum can."""
    learned, chance = ServiceTime(Form.PACKED), random.Random(1)
    for _ in range(100):
        rows = chance.randint(1, 64)
        learned.observe(Shape(rows, rows, rows, 1), round((200_000 + 3_000 * rows) * chance.uniform(0.9, 1.1)))
    assert learned.trusted(64)
    for rows in (1, 8, 64):
        assert learned.predict_ns(Shape(rows, rows, rows, 1)) == pytest.approx(200_000 + 3_000 * rows, rel=0.08)


def test_the_shape_of_a_batch() -> None:
    """A request of several rows has rows of equal length, unless it says how long the longest is."""
    batch = [Waiting("a", 1, 10, None, 0, NEVER), Waiting("b", 2, 40, None, 0, NEVER)]
    assert shape_of(batch) == Shape(rows=3, units=50, squares=10**2 + 2 * 20**2, longest=20)
    assert shape_of([*batch, Waiting("c", 2, 30, None, 0, NEVER, longest=25)]).longest == 25
    assert PACKED.predict_ns(shape_of(batch)) == pytest.approx(7 * MS + 50 * 0.27 * MS + 900 * 300 + 3 * 0.3 * MS)
    assert PADDED.predict_ns(shape_of(batch)) == pytest.approx(7 * MS + 60 * 0.27 * MS + 1200 * 300 + 3 * 0.3 * MS)


@given(
    st.sampled_from(Form),
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 10_000), st.integers(-5, 10**12)), max_size=40),
)
def test_whatever_is_observed_the_law_is_finite_and_never_negative(
    form: Form, passes: list[tuple[int, int, int]]
) -> None:
    """Times that contradict each other, too, and those that cannot be."""
    learned = ServiceTime(form)
    for rows, units, took_ns in passes:
        learned.observe(Shape(rows, units, units * units / rows, units), took_ns)
        assert 0 <= learned.predict_ns(Shape(8, 800, 80_000, 200)) < 10**18


# -- kept across restarts ----------------------------------------------------------------------------------------------


@laws
def test_what_was_learned_is_kept(truth: Law) -> None:
    """Through JSON and back it predicts the same, and learns on in the same way."""
    traffic = Traffic(truth, 1)
    traffic.run(100, outliers=0.1)
    kept = json.loads(json.dumps(traffic.learned.to_dict()))
    again = ServiceTime.from_dict(kept, truth.form)
    assert again.to_dict() == kept
    assert again.law(8) == traffic.learned.law(8)
    shape = traffic.shape(5)
    again.observe(shape, 100 * MS)
    traffic.learned.observe(shape, 100 * MS)
    assert again.law(8) == traffic.learned.law(8)


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"version": None},
        {"form": "padded"},
        {"coefficients": [1.0, 2.0, float("nan"), 4.0]},
        {"coefficients": [1.0, 2.0, float("inf"), 4.0]},
        {"coefficients": [1.0, -2.0, 3.0, 4.0]},
        {"coefficients": [1.0]},
        {"moments": [[1.0] * 4] * 3},
        {"moments": [[float("inf")] * 4] * 4},
        {"products": "four"},
        {"error": float("nan")},
        {"passes": -1},
        {"shapes": [[1]]},
        {"shapes": None},
    ],
    ids=str,
)
def test_what_is_damaged_or_foreign_is_refused(damage: dict[str, object]) -> None:
    """Better to learn anew than to batch by nonsense."""
    traffic = Traffic(PACKED, 1)
    traffic.run(20)
    with pytest.raises(ValueError, match="discard it"):
        ServiceTime.from_dict({**traffic.learned.to_dict(), **damage}, Form.PACKED)


def test_an_empty_dict_is_refused() -> None:
    """As if it had never been kept."""
    with pytest.raises(ValueError, match="version None"):
        ServiceTime.from_dict({}, Form.PACKED)
