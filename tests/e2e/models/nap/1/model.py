"""Sleeps as long as it is told, and says how often it was asked since its worker began."""

import time

import torch
from torch import Tensor

from worker.models.interface import Model


class Nap(Model):
    """`ms` INT64 [1] -> `count` INT64 [1]: the number of each request, from 1. A pass takes its longest `ms`."""

    def __init__(self) -> None:
        self._count = 0

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        ms = batch["ms"]
        time.sleep(ms.max().item() / 1000)
        first, self._count = self._count + 1, self._count + len(ms)
        return torch.arange(first, first + len(ms)).reshape(-1, 1)
