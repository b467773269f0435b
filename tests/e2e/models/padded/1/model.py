"""Attention over the words of a text, computed on a padded batch: right, and wasteful where lengths differ."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tailrace import Model, ModelReply, ModelRequest

WORDS_MAX, DIM, VOCABULARY, OUT = 256, 64, 4096, 8


def ids_of(request: ModelRequest) -> list[int]:
    """A number for each word."""
    words = request.inputs["text"].ravel()[0].decode().split()[:WORDS_MAX] or [""]
    return [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]


class Padded(Model):
    """`text` BYTES [1] -> `y` FP32 [8]. One text a request."""

    def __init__(self) -> None:
        torch.manual_seed(4)
        self.embed = nn.Embedding(VOCABULARY, DIM, padding_idx=0)
        self.attend = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.out = nn.Linear(DIM, OUT)

    def cost(self, request: ModelRequest) -> int:
        return len(ids_of(request))

    def collate(self, requests: Sequence[ModelRequest]) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.tensor(ids_of(r)) for r in requests], batch_first=True)

    def tokens(self, requests: Sequence[ModelRequest], batch: Tensor) -> tuple[int, int]:
        return int((batch != 0).sum()), batch.numel()

    def forward(self, batch: Tensor) -> Tensor:
        nothing = batch == 0
        x = self.embed(batch)
        x = x + self.attend(x, x, x, key_padding_mask=nothing, need_weights=False)[0]
        x = x.masked_fill(nothing.unsqueeze(-1), 0).sum(1) / (~nothing).sum(1, keepdim=True)
        return self.out(x)

    def split(self, outputs: Tensor, requests: Sequence[ModelRequest], batch: Tensor) -> list[ModelReply]:
        return [ModelReply({"y": row[None].numpy()}) for row in outputs]
