"""A model whose answers can be checked: it hashes its input. Some requests make it fail, some kill its process."""

import hashlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from shared import wire
from shared.wire import ModelTensor
from worker.device import Device, Executed
from worker.meter import Usage
from worker.models.interface import Model, ModelConfig, ModelReply, ModelRequest, ModelRetry

LARGE_ELEMENTS = 3000


class Kind(IntEnum):
    """What a request does to the model."""

    PLAIN = 0
    LARGE = 1
    """Its answer does not fit into the reply stream."""
    FAILS = 2
    """The model raises."""
    KILLS = 3
    """The process dies in the pass."""
    LOSES_DEVICE = 4
    """The device is lost."""
    MALFORMED = 5
    """The payload cannot be read."""
    BUSY = 6
    """The model asks for another try, mostly."""


def payload_of(number: int, salt: int, kind: Kind, rows: int) -> bytes:
    """The encoded body of a request."""
    if kind is Kind.MALFORMED:
        return b"\xc1 no message"
    x = np.tile(np.array([number, salt, int(kind)], np.int64), (rows, 1))
    return wire.encode_request(wire.RequestBody([wire.Tensor("x", "INT64", list(x.shape), memoryview(x.tobytes()))]))


def answer_to(number: int, salt: int, kind: Kind) -> list[int]:
    """A row of the right answer."""
    digest = hashlib.blake2b(b"%d.%d" % (number, salt), digest_size=7).digest()
    value = int.from_bytes(digest, "little")
    return [value] * (LARGE_ELEMENTS if kind is Kind.LARGE else 1)


def config_of(max_batch_size: int, linger_us: int) -> ModelConfig:
    """What the model's model.toml would say."""
    return ModelConfig(
        name="toy",
        version="1",
        platform="pytorch_python",
        inputs=(ModelTensor("x", "INT64", [3]),),
        outputs=(ModelTensor("y", "INT64", [-1]),),
        path=Path("toy"),
        max_batch_size=max_batch_size,
        linger_us=linger_us,
    )


class ToyModel(Model):
    """`dies` is told when a request kills the process; `chance` decides what fails for a while only."""

    def __init__(self, config: ModelConfig, dies: Callable[[], object], chance: Callable[[], float]) -> None:
        self._config = config
        self._dies = dies
        self._chance = chance

    @property
    def config(self) -> ModelConfig:
        return self._config

    def cost(self, request: ModelRequest) -> int:
        return request.rows

    def batch_key(self, request: ModelRequest) -> None:
        return None

    def collate(self, requests: Sequence[ModelRequest]) -> list[tuple[int, int, Kind, int]]:
        return [_read(request) for request in requests]

    def forward(self, batch: Any) -> Any:
        kinds = {kind for _, _, kind, _ in batch}
        if Kind.KILLS in kinds:
            self._dies()
        if Kind.LOSES_DEVICE in kinds:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if Kind.FAILS in kinds:
            raise ValueError("this request cannot be computed")
        if Kind.BUSY in kinds and self._chance() < 0.7:
            raise ModelRetry("try again later")
        return batch

    def split(self, outputs: Any, requests: Sequence[ModelRequest], batch: Any) -> list[ModelReply]:
        return [
            ModelReply({"y": np.array([answer_to(number, salt, kind)] * rows, np.int64)})
            for number, salt, kind, rows in outputs
        ]


class ToyDevice(Device):
    """The CPU, without threads and without a look at the machine. `begins` is told what is computed."""

    def __init__(self, slots: int, begins: Callable[[list[int]], None]) -> None:
        super().__init__("cpu", threads=1)
        self.slots = slots
        self._begins = begins
        self._local.meter = SimpleNamespace(read=Usage, runq_ns=lambda: 0)

    def execute(
        self, model: Model, config: ModelConfig, requests: Sequence[ModelRequest], wanted: Sequence[Sequence[str]]
    ) -> Executed:
        self._begins([_read(request)[0] for request in requests])
        return super().execute(model, config, requests, wanted)


def _read(request: ModelRequest) -> tuple[int, int, Kind, int]:
    number, salt, kind = (int(v) for v in request.inputs["x"][0])
    return number, salt, Kind(kind), request.rows
