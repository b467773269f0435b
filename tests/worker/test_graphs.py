"""CUDA graphs by rows: filled up, cut, used only where they are quicker and right. What captures is stood in for."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from worker import graphs
from worker.graphs import RowGraphs, Tensors

EXAMPLE = {"x": torch.tensor([[1.0, 2.0]])}


def forward(batch: Any) -> Tensors:
    """Rows do not look at each other."""
    return {"y": batch["x"] * 3}


def capture(call: Callable[[], Tensors]) -> tuple[graphs.Replay, Tensors]:
    """As CUDA does it: every replay writes into the same outputs."""
    outputs = dict(call())

    def replay() -> None:
        for name, value in call().items():
            outputs[name].copy_(value)

    return replay, outputs


def times(*ms: float) -> Callable[[Callable[[], object]], float]:
    """What measurements say, one after the other; each does the call."""
    said: Iterator[float] = iter(ms)

    def measure(call: Callable[[], object]) -> float:
        call()
        return next(said)

    return measure


def captured(*rows: int, call: Callable[[Any], Tensors] = forward, ms: tuple[float, ...] = ()) -> RowGraphs:
    """Graphs that are quicker than plain calls, unless `ms` says otherwise."""
    measure = times(*(ms or (1.0, 2.0) * len(rows)))
    return graphs.capture_all(call, EXAMPLE, rows, capture=capture, measure=measure, label="m/1")


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_a_batch_is_filled_up_and_its_answers_are_cut(rows: int) -> None:
    """Three rows go through the graph of four."""
    x = torch.arange(rows * 2, dtype=torch.float32).reshape(rows, 2)
    answers = captured(1, 2, 4).run({"x": x})
    assert answers is not None
    assert torch.equal(answers["y"], x * 3)


def test_answers_outlive_the_next_replay() -> None:
    """All replays write to the same memory; the copy to the host of the one before may still be under way."""
    graph = captured(2)
    first = graph.run({"x": torch.ones(2, 2)})
    graph.run({"x": torch.zeros(2, 2)})
    assert first is not None
    assert torch.equal(first["y"], torch.full((2, 2), 3.0))


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.ones(5, 2)},
        {"x": torch.ones(2, 3)},
        {"x": torch.ones(2, 2, dtype=torch.float64)},
        {"other": torch.ones(2, 2)},
        {},
        [torch.ones(2, 2)],
    ],
)
def test_what_no_graph_is_for_is_left_to_a_plain_call(batch: Any) -> None:
    """More rows than the largest has, other shapes, other types, another kind of batch."""
    assert captured(1, 4).run(batch) is None


def test_a_graph_that_is_not_quicker_is_not_used() -> None:
    """Each number of rows is measured by itself."""
    kept = captured(1, 4, ms=(1.0, 2.0, 2.0, 2.0))
    assert len(kept) == 1
    assert kept.run({"x": torch.ones(1, 2)}) is not None
    assert kept.run({"x": torch.ones(2, 2)}) is None


def test_a_graph_that_answers_otherwise_is_not_used() -> None:
    """As of a model that does something else at every call, which a replay cannot."""
    calls = 0

    def moody(batch: Any) -> Tensors:
        nonlocal calls
        calls += 1
        return {"y": batch["x"] * calls}

    assert len(captured(2, call=moody)) == 0
