"""Which number format a model computes in: what is measured decides, and the error has a bound."""

import statistics

import pytest
import torch
from torch import Tensor

from worker import passes
from worker.models import formats
from worker.models.interface import ModelLoadError


class Clock:
    """Moves only when a computation says so."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def takes(self, *lengths_ns: int, off: float = 0.0) -> formats.Forward:
        """A computation that takes so long, in turns; its answers are those of any other, and `off` of them."""
        calls = 0

        def forward(batch: Tensor) -> Tensor:
            nonlocal calls
            self.ns += lengths_ns[calls % len(lengths_ns)]
            calls += 1
            return batch + off * torch.tensor([1.0, -1.0])

        return forward


BATCHES = [torch.ones(2, 2), torch.tensor([[3.0, 4.0]])]


def choice(exact_ns: int, quick_ns: int, *, off: float = 0.0) -> formats.Verdict:
    clock = Clock()
    return formats.choose(clock.takes(exact_ns), clock.takes(quick_ns, off=off), BATCHES, now_ns=clock.now_ns)


def test_what_is_measured_to_be_quicker_is_taken() -> None:
    """And the reason has the figures."""
    verdict = choice(200, 100)
    assert verdict.format == formats.BFLOAT16
    assert verdict.reason == "bfloat16 is 2.00 times as fast as float32, cosine 1.00000"


@pytest.mark.parametrize("quick_ns", [100, 95, 300])
def test_exact_answers_are_not_given_up_for_noise(quick_ns: int) -> None:
    """Slower, equal, or quicker by less than a tenth: float32."""
    assert choice(100, quick_ns).format == formats.FLOAT32


def test_answers_that_are_not_alike_are_refused_however_quick() -> None:
    """One row below the bound is enough."""
    verdict = choice(1000, 1, off=0.1)
    assert verdict.format == formats.FLOAT32
    assert "less than 0.999" in verdict.reason
    assert choice(1000, 1, off=float("nan")).format == formats.FLOAT32


def test_one_slow_pass_decides_nothing() -> None:
    """The median of the rounds counts: a neighbour on the core may disturb one of them."""
    clock = Clock()
    disturbed = clock.takes(50, 50, 50, 50, 5_000, 50, 50, 50, 50, 50, 50, 50, 50, 50)
    assert formats.choose(clock.takes(100), disturbed, BATCHES, now_ns=clock.now_ns).format == formats.BFLOAT16


def test_the_number_of_torch_threads_is_put_back() -> None:
    """Also after an error."""
    before = torch.get_num_threads()

    def fails(batch: Tensor) -> Tensor:
        assert torch.get_num_threads() == 1
        raise RuntimeError("as planned")

    with pytest.raises(RuntimeError, match="as planned"):
        formats.choose(fails, fails, BATCHES)
    assert torch.get_num_threads() == before


def test_support_is_what_the_processor_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either of the two sets of instructions will do."""
    for name in ("avx512_bf16", "amx_bf16"):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda name=name: {name: True}, raising=False)
        assert formats.has_bfloat16("cpu")


@pytest.mark.parametrize("value", ["half", 16, True])
def test_other_formats_are_refused(value: str | int) -> None:
    """By name."""
    with pytest.raises(ModelLoadError, match="float32, bfloat16 or auto"):
        formats.wanted_format({"dtype": value})
    assert formats.wanted_format({}) == formats.FLOAT32


def test_a_stretch_finishes_the_pass_that_has_begun_and_counts_its_time() -> None:
    """Three passes of 40 begin within 100; the rate is three in 120, not two in 100."""
    clock = Clock()
    once = clock.takes(40)
    found = passes.stretch(lambda: once(BATCHES[0]), begin_at_ns=0, length_ns=100, now_ns=clock.now_ns)
    assert (found.began_ns, found.ended_ns, found.durations_ns) == (0, 120, [40, 40, 40])
    assert found.cpu_ns >= 0


def test_candidates_take_turns_and_their_first_pass_does_not_count() -> None:
    """The first one may take for ever."""
    clock = Clock()
    first, second = clock.takes(9_999, 1, 2, 3), clock.takes(9_999, 4, 5, 6)
    candidates = {"a": lambda: first(BATCHES[0]), "b": lambda: second(BATCHES[0])}
    taken_ns = passes.interleaved(candidates, rounds=3, now_ns=clock.now_ns)
    assert taken_ns == {"a": [1, 2, 3], "b": [4, 5, 6]}
    assert statistics.median(taken_ns["a"]) == 2
