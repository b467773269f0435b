"""Triples a number and adds one; some numbers it cannot stand."""

import os
import signal
import threading
from pathlib import Path

from torch import Tensor

from tailrace import Model, ModelRetry

KILLS, RAISES, LATER, NEVER, HANGS, INFINITE, STUBBORN = 1001, 1002, 1003, 1004, 1005, 1006, 1007
TRIES = {LATER: 3, STUBBORN: 4, NEVER: 1_000_000}


def tried(number: int) -> int:
    """How often a number has been tried, this time too: by all workers that serve this folder together."""
    with Path(__file__).with_name(f"{number}.tries").open("ab") as tries:
        tries.write(b".")
        return tries.tell()


class Temper(Model):
    """`n` INT64 [1] -> `answer` FP64 [1]."""

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
            if (seen := tried(number)) < TRIES[number]:
                raise ModelRetry(f"try {seen} was too early")
        answer = batch["n"].double() * 3 + 1
        answer[batch["n"] == INFINITE] = float("inf")
        return answer
