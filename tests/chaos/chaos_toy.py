"""A model whose answers can be checked: it hashes its input. Some requests make it fail, some only at first."""

import hashlib
import threading
import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np

from shared import tensors, wire
from shared.keys import Queue
from shared.wire import ModelTensor
from worker.models.interface import Model, ModelConfig, ModelInputError, ModelReply, ModelRequest, ModelRetry

QUEUE = Queue("toy", "1")
LARGE_TIMES = 300
"""So often is the digest repeated in a large answer, which is then too long for the reply stream."""

CONFIG = ModelConfig(
    name=QUEUE.model,
    version=QUEUE.version,
    platform="pytorch_python",
    inputs=(ModelTensor("n", "INT64", [2]),),
    outputs=(ModelTensor("digest", "UINT8", [-1]),),
    path=Path("toy"),
    max_batch_size=16,
)


class Kind(IntEnum):
    """What a request does to the model."""

    PLAIN = 0
    LARGE = 1
    FLAKY = 2
    """The model asks for another try, once."""
    WRONG = 3
    """The client is at fault, says the model."""
    RAISES = 4


class Toy(Model):
    """`n` INT64 [2], a number and its kind -> `digest` UINT8 [-1]. A pass takes `pass_s`."""

    def __init__(self, pass_s: float) -> None:
        self._pass_s = pass_s
        self._failed: set[int] = set()
        self._lock = threading.Lock()

    @property
    def config(self) -> ModelConfig:
        return CONFIG

    def batch_key(self, request: ModelRequest) -> None:
        return None

    def collate(self, requests: Sequence[ModelRequest]) -> list[tuple[int, Kind]]:
        return [(int(n), Kind(kind)) for request in requests for n, kind in request.inputs["n"]]

    def forward(self, batch: list[tuple[int, Kind]]) -> list[bytes]:  # type: ignore[override]
        time.sleep(self._pass_s)
        for number, kind in batch:
            if kind is Kind.WRONG:
                raise ModelInputError(f"{number} is wrong")
            if kind is Kind.RAISES:
                raise RuntimeError(f"{number} is more than I can bear")
            if kind is Kind.FLAKY:
                with self._lock:
                    if number not in self._failed:
                        self._failed.add(number)
                        raise ModelRetry("not now")
        return [digest(number, kind) for number, kind in batch]

    def split(
        self, outputs: list[bytes], requests: Sequence[ModelRequest], batch: list[tuple[int, Kind]]
    ) -> list[ModelReply]:
        return [ModelReply({"digest": np.frombuffer(d, np.uint8)[None]}) for d in outputs]


def digest(number: int, kind: Kind) -> bytes:
    """The right answer."""
    once = hashlib.blake2b(b"%d" % number).digest()
    return once * (LARGE_TIMES if kind is Kind.LARGE else 1)


def question(number: int, kind: Kind) -> bytes:
    """The encoded payload of a request."""
    n = np.array([[number, int(kind)]], np.int64)
    return wire.encode_request(wire.RequestBody([wire.Tensor("n", "INT64", [1, 2], memoryview(n.tobytes()))]))


def is_right(body: wire.ReplyBody, number: int, kind: Kind) -> bool:
    """True for the answer to this request and no other."""
    (output,) = body.outputs
    found = tensors.from_bytes(output.data, output.datatype, output.shape, name="digest")
    return bool(found.tobytes() == digest(number, kind))
