"""CUDA graphs: the kernels of a pass, captured once for each of some numbers of rows, and replayed in one launch.

To launch the kernels of a small model takes longer than to compute them. A model that says so (`[cuda] graph_rows`)
has its batches filled up with rows of zeros to the next of these numbers, and replayed. Its batch must be a dict of
tensors, and its outputs tensors by name, all with the batch dimension first, and no row may look at another one. When
it is loaded each graph is compared with plain calls; what is not quicker, or answers otherwise, is not used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shared import humanlog

Tensors = Mapping[str, torch.Tensor]
Replay = Callable[[], None]
Capture = Callable[[Callable[[], Tensors]], tuple[Replay, Tensors]]
"""Captures a call: what replays it, and the outputs that each replay writes."""
Measure = Callable[[Callable[[], object]], float]
"""How long a call takes, ms."""

WARM_UP_CALLS = 3
"""Before a capture: kernels are chosen and memory is taken in the first ones."""
TIMED_CALLS = 20
RTOL, ATOL = 1e-3, 1e-5
"""How far the outputs of a replay may be from those of a plain call; fewer rows may take other kernels."""


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: Tensors
    outputs: Tensors
    replay: Replay


class RowGraphs:
    """The graphs of one model by their number of rows. Not for two threads at once."""

    def __init__(self, graphs: Mapping[int, _Graph]) -> None:
        self._graphs = dict(sorted(graphs.items()))

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, batch: Any) -> Tensors | None:
        """The outputs for a batch on the device, or None when no graph is for it."""
        if not self._graphs or not isinstance(batch, dict) or not batch:
            return None
        rows = len(next(iter(batch.values())))
        size = next((size for size in self._graphs if size >= rows), 0)
        if not size:
            return None
        graph = self._graphs[size]
        for name, static in graph.inputs.items():
            given = batch.get(name)
            if given is None or given.dtype != static.dtype or given.shape != (rows, *static.shape[1:]):
                return None
        for name, static in graph.inputs.items():
            static[:rows].copy_(batch[name], non_blocking=True)
            static[rows:].zero_()
        graph.replay()
        # The next replay writes over them.
        return {name: output[:rows].clone() for name, output in graph.outputs.items()}


def capture_all(
    forward: Callable[[Any], Tensors], example: Tensors, rows: Sequence[int], *, capture: Capture, measure: Measure,
    label: str,
) -> RowGraphs:  # fmt: skip
    """Graphs for so many rows each, from a batch of at least one row on the device. Raises what `forward` raises."""
    kept: dict[int, _Graph] = {}
    for size in sorted(rows):
        inputs = {name: tensor[:1].repeat(size, *[1] * (tensor.dim() - 1)) for name, tensor in example.items()}
        for _ in range(WARM_UP_CALLS):
            plain = forward(inputs)
        # A model may write into its inputs, so plain outputs are of a copy.
        plain = forward({name: tensor.clone() for name, tensor in inputs.items()})
        replay, outputs = capture(lambda inputs=inputs: forward(inputs))  # type: ignore[misc]  # bound at once
        graph = RowGraphs({size: _Graph(inputs, outputs, replay)})
        batch = {name: tensor.clone() for name, tensor in inputs.items()}
        why = _why_not(graph, batch, plain)
        if not why:
            replayed_ms, called_ms = measure(lambda: graph.run(batch)), measure(lambda: forward(batch))  # noqa: B023
            if replayed_ms >= called_ms:
                why = f"a replay takes {replayed_ms:.3f} ms, a plain call {called_ms:.3f} ms"
        if why:
            humanlog.get().info("a CUDA graph is not used", model=label, rows=size, reason=why)
        else:
            kept[size] = _Graph(inputs, outputs, replay)
            humanlog.get().info("a CUDA graph is used", model=label, rows=size, ms=round(replayed_ms, 3))
    return RowGraphs(kept)


def _why_not(graph: RowGraphs, batch: dict[str, torch.Tensor], plain: Tensors) -> str:
    replayed = graph.run(batch)
    if replayed is None or replayed.keys() != plain.keys():
        return "its batch is no dict of tensors with rows"
    for name, tensor in plain.items():
        if not torch.allclose(replayed[name], tensor, rtol=RTOL, atol=ATOL, equal_nan=True):
            return f"its output '{name}' is another one than that of a plain call"
    return ""


def capture_on(stream: torch.cuda.Stream) -> Capture:
    """Captures on a stream of a CUDA device."""

    def capture(call: Callable[[], Tensors]) -> tuple[Replay, Tensors]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs = call()
        return graph.replay, outputs

    return capture


def measure_on(stream: torch.cuda.Stream) -> Measure:
    """Times calls by events of a stream."""

    def measure(call: Callable[[], object]) -> float:
        begun = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        done = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begun.record(stream)
        for _ in range(TIMED_CALLS):
            call()
        done.record(stream)
        done.synchronize()
        return float(begun.elapsed_time(done)) / TIMED_CALLS

    return measure
