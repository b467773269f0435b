"""The models that are served in a lineup: real kernels whose cost per token and per pass is what a background asks for.

`Work` is how much is computed; `calibration.py` finds the numbers that make it take so long on this machine. A scenario
that needs another model subclasses `Tokens` in its own file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv1d, gelu, linear
from torch.nn.utils.rnn import pad_sequence

from worker.models.interface import LoadContext, Model, ModelReply, ModelRequest

OPTIONS_FILE = "options.json"
WIDTH = 128
HIDDEN = 256
OUT = 8
VOCABULARY = 4096
FIXED_SIDE = 128
CONV_WIDTH = 9
SEED = 20261130


@dataclass(frozen=True, slots=True)
class Packed:
    """Tokens of all requests one behind the other: `ids` int64 [tokens], and how many are each request's."""

    ids: Tensor
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class Padded:
    """Requests side by side: `ids` int64 [requests, tokens_max], 0 where there is nothing."""

    ids: Tensor
    lengths: list[int]


class Tokens(Model):
    """`tokens` INT64 [-1] -> `y` FP32 [8]. One row a request."""

    def load(self, context: LoadContext) -> None:
        self.options: dict[str, Any] = json.loads((context.directory / OPTIONS_FILE).read_text())
        self.kind: str = self.options["kind"]
        self.tokens_max: int = self.options["tokens_max"]
        self.layers: int = self.options["layers"]
        self.fixed_repeats: int = self.options["fixed_repeats"]
        self.weigh()

    def weigh(self) -> None:
        """Make up the weights, the same ones everywhere."""
        generator = torch.Generator().manual_seed(SEED)

        def made_up(*shape: int, std: float = 0.05) -> Tensor:
            return torch.empty(shape).normal_(std=std, generator=generator)

        self.embedding = made_up(VOCABULARY, WIDTH)
        first = (HIDDEN, WIDTH, CONV_WIDTH) if self.kind == "conv" else (HIDDEN, WIDTH)
        second = (WIDTH, HIDDEN, 1) if self.kind == "conv" else (WIDTH, HIDDEN)
        # The layers share their weights: what is to be had is their work, and it stays in the cache.
        self.layer = made_up(*first), made_up(*second)
        self.out = made_up(OUT, WIDTH)
        # So that powers of it neither vanish nor overflow: denormal numbers would be slow.
        self.fixed = made_up(FIXED_SIDE, FIXED_SIDE, std=FIXED_SIDE**-0.5)

    def length_of(self, request: ModelRequest) -> int:
        """Tokens of a request that are computed."""
        return max(1, min(self.tokens_max, int(request.inputs["tokens"].shape[-1])))

    def cost(self, request: ModelRequest) -> int:
        return self.length_of(request)

    def collate(self, requests: Sequence[ModelRequest]) -> Packed | Padded:
        ids = [self._ids(request) for request in requests]
        lengths = [len(i) for i in ids]
        if self.kind == "packed":
            return Packed(torch.cat(ids), lengths)
        return Padded(pad_sequence(ids, batch_first=True), lengths)

    def _ids(self, request: ModelRequest) -> Tensor:
        row = request.inputs["tokens"].reshape(-1)[: self.tokens_max]
        return torch.from_numpy((row % VOCABULARY).astype(np.int64)) if len(row) else torch.zeros(1, dtype=torch.int64)

    def tokens(self, requests: Sequence[ModelRequest], batch: Packed | Padded) -> tuple[int, int]:
        return sum(batch.lengths), batch.ids.numel()

    def forward(self, batch: Packed | Padded) -> Tensor:
        self.overhead()
        x = self.compute(torch.nn.functional.embedding(batch.ids, self.embedding))
        if isinstance(batch, Padded):
            return linear(x.mean(1), self.out)
        parts = [part.mean(0) for part in torch.split(x, batch.lengths)]
        return linear(torch.stack(parts), self.out)

    def overhead(self) -> None:
        """What every pass costs, whatever is in it."""
        y = self.fixed
        for _ in range(self.fixed_repeats):
            y = y @ self.fixed

    def compute(self, x: Tensor) -> Tensor:
        """The layers, on float32 [tokens, WIDTH] or [requests, tokens, WIDTH]; the same shape comes back."""
        first, second = self.layer
        if self.kind == "conv":
            x = x.transpose(1, 2)
            for _ in range(self.layers):
                x = x + conv1d(gelu(conv1d(x, first, padding=CONV_WIDTH // 2)), second)
            return x.transpose(1, 2)
        for _ in range(self.layers):
            x = x + linear(gelu(linear(x, first)), second)
        return x

    def split(self, outputs: Any, requests: Sequence[ModelRequest], batch: Any) -> list[ModelReply]:
        return [ModelReply({"y": row[None].numpy()}) for row in outputs]
