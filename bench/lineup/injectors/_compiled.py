"""A model that is compiled for each shape it meets, as `torch.compile(dynamic=False)` does.

The compiler is our own: it takes its time, and gives back what dynamo traced, with each computation that is there twice
done once. So no C++ compiler is needed, it takes the same time everywhere, and what it gives back is faster.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from bench.lineup.mechanisms import burn
from bench.lineup.serving import Padded, Tokens
from worker.models.interface import LoadContext, ModelRequest

LAYERS = 2


class Compiled(Tokens):
    """`options.extra`: `compile_ms` a compilation, `recompile_limit`, `repeats` of the work if it is not compiled."""

    def load(self, context: LoadContext) -> None:
        super().load(context)
        self._compile_ms = 0.0  # the warm-up does not count
        self._thread = threading.local()
        # Few layers, so that tracing takes no longer than it is told; each does the work of several.
        self.turns = max(1, round(self.layers / LAYERS))
        repeats = round(self.options["repeats"])

        def core(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
            y = x
            for _ in range(LAYERS):
                parts = [linear(gelu(linear(y, first)), second) for _ in range(repeats)]
                y = y + sum(parts) / repeats
            return y

        self._core = torch.compile(core, backend=self._compile, dynamic=False)
        self._known: list[int] = [round(size) for size in self.options["known"]]
        # What is compiled holds for a number of threads; ours is that of the device.
        usual = torch.get_num_threads()
        torch.set_num_threads(self.options["threads"])
        with torch.inference_mode():
            for rows in ROWS:
                for size in self._known:
                    self.compute(torch.zeros(rows, size, self.embedding.shape[1]))
        torch.set_num_threads(usual)
        self._compile_ms = self.options["compile_ms"]

    def collate(self, requests: Sequence[ModelRequest]) -> Padded:
        """Padded in both directions, so that few shapes come up."""
        batch = super().collate(requests)
        assert isinstance(batch, Padded)
        rows = next((n for n in ROWS if n >= len(requests)), len(requests))
        ids = torch.nn.functional.pad(batch.ids, (0, 0, 0, rows - len(requests)))
        return Padded(ids, batch.lengths)

    def split(self, outputs: Any, requests: Sequence[ModelRequest], batch: Any) -> Any:
        return super().split(outputs[: len(requests)], requests, batch)

    def compute(self, x: Tensor) -> Tensor:
        if not hasattr(self._thread, "is_set"):
            _set_limit(round(self.options["recompile_limit"]))
            self._thread.is_set = True
        for _ in range(self.turns):
            x = self._core(x, *self.layer)
        return x

    def _compile(self, module: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        burn(int(self._compile_ms * 1e6))
        _once(module.graph)
        module.recompile()
        return module.forward


ROWS = (1, 2, 4)
"""Batches have so many rows, or are filled up to that."""


def _set_limit(recompile_limit: int) -> None:
    """How many graphs a function may have; each thread has a setting of its own."""
    import torch._dynamo as dynamo

    dynamo.config.recompile_limit = recompile_limit
    dynamo.config.accumulated_recompile_limit = 100_000


def _once(graph: torch.fx.Graph) -> None:
    """Do equal computations once: common subexpression elimination."""
    seen: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        key = (node.op, node.target, node.args, tuple(sorted(node.kwargs.items())))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.erase_node(node)
        else:
            seen[key] = node
