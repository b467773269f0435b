"""Triples a number and adds one, after a tenth of a second."""

import time

from torch import Tensor

from worker.models.interface import Model

PASS_S = 0.1


class Slow(Model):
    """`n` INT64 [1] -> `answer` INT64 [1]."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        time.sleep(PASS_S)
        return batch["n"] * 3 + 1
