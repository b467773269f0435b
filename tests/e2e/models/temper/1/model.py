"""Triples a number and adds one; some numbers it cannot stand."""

import os
import signal
import threading
from collections import Counter

from torch import Tensor

from tailrace import Model, ModelRetry

KILLS, RAISES, LATER, NEVER, HANGS, INFINITE, STUBBORN = 1001, 1002, 1003, 1004, 1005, 1006, 1007
TRIES = {LATER: 3, STUBBORN: 4, NEVER: 1_000_000}


class Temper(Model):
    """`n` INT64 [1] -> `answer` FP64 [1]."""

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        numbers = batch["n"].flatten().tolist()
        if KILLS in numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANGS in numbers:
            threading.Event().wait()
        if RAISES in numbers:
            raise ValueError(f"{RAISES} is not to my taste")
        for number in TRIES.keys() & set(numbers):
            if len(numbers) > 1:
                raise ModelRetry("in company it is too early, too")
            self.seen[number] += 1
            if self.seen[number] < TRIES[number]:
                raise ModelRetry(f"try {self.seen[number]} was too early")
        answer = batch["n"].double() * 3 + 1
        answer[batch["n"] == INFINITE] = float("inf")
        return answer
