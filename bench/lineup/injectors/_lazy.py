"""A model that prepares itself in its first passes instead of when it is loaded."""

from typing import Any

from torch import Tensor

from bench.lineup.mechanisms import burn
from bench.lineup.serving import Tokens
from worker.models.interface import LoadContext

SHARES = (1.0, 0.4, 0.15)
"""Of the whole preparation, by pass: weights, then kernels, then what is left."""


class Lazy(Tokens):
    """`options.extra.cold_ms`: what the first pass takes besides."""

    def load(self, context: LoadContext) -> None:
        super().load(context)
        self.passes = 0
        self.cold_ms: float = self.options["cold_ms"]

    def forward(self, batch: Any) -> Tensor:
        if self.passes < len(SHARES):
            burn(int(SHARES[self.passes] * self.cold_ms * 1e6))
        self.passes += 1
        return super().forward(batch)
