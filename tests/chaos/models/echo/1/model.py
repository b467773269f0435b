"""Scrambles a number, after as many milliseconds as the request says."""

import time

from torch import Tensor

from worker.models.interface import Model

FACTOR, PRIME = 1_103_515_245, 2_147_483_647


class Echo(Model):
    """`n` INT64 [2], a number and ms -> `answer` INT64 [1]. A batch takes as long as its slowest request."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        time.sleep(float(batch["n"][:, 1].max()) / 1000)
        return batch["n"][:, :1] * FACTOR % PRIME
