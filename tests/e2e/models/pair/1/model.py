"""Greets by name and adds two numbers: every answer can be told from every other."""

from typing import Any

import numpy as np

from worker.models.interface import Model


class Pair(Model):
    """`name` BYTES [1], `numbers` INT32 [2] -> `greeting` BYTES [1], `sum` INT32 [1]."""

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        names = batch["name"]
        greetings = np.empty(names.shape, dtype=object)
        for i, name in enumerate(names.ravel()):
            greetings.flat[i] = b"hello " + name
        total = batch["numbers"].sum(dim=1, keepdim=True)
        return {"greeting": greetings, "sum": total.to(batch["numbers"].dtype)}
