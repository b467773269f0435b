"""While a request waits for its answer the gateway keeps one copy of it: the payload, for when Redis loses it."""

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.waiting import soon

from bench.oip import Tensor, infer_body
from gateway.bodies import BodyBudget
from gateway.call import Call
from gateway.claims import Claims
from gateway.inference import Inference
from gateway.tenants import ANYONE
from gateway.trace import Trace
from shared import wire
from shared.settings import GatewaySettings

MODEL = wire.ModelDescriptor(
    "m", "1", "pytorch_python", 8, [wire.ModelTensor("x", "FP32", [-1])], [wire.ModelTensor("y", "FP32", [-1])]
)
NUMBERS = np.arange(1000, dtype=np.float32).reshape(1, -1)


class Body(bytes):
    """A body that says when nobody has it any more."""

    gone = False

    def __del__(self) -> None:
        Body.gone = True


class Reading(Inference):
    """Takes its body from the test, not from a connection."""

    body: bytes

    async def _read(self, request: Any, call: Call) -> bytes:
        body, self.body = self.body, b""
        return body


def inference(handed_over: list[dict[str, Any]], answer: "asyncio.Future[wire.Reply]") -> Reading:
    """One whose submitter keeps what it is given, and answers when the test does."""

    def submit(**what: Any) -> Any:
        handed_over.append(what)
        return SimpleNamespace(answer=answer, g5=1)

    return Reading(
        GatewaySettings(),
        SimpleNamespace(resolve=lambda name, version: MODEL),  # type: ignore[arg-type]
        SimpleNamespace(submit=submit, abandon=lambda p: None),  # type: ignore[arg-type]
        SimpleNamespace(tenant_of=lambda headers: ANYONE),  # type: ignore[arg-type]
        BodyBudget(1 << 30),
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        Claims(None, lambda model: set(), longest_s=60),
    )


@pytest.mark.parametrize("key", ["", "once"])
async def test_the_body_is_let_go_once_it_is_handed_over(key: str) -> None:
    """A body of 64 KiB that is kept beside its payload doubles what a waiting request takes."""
    handed_over: list[dict[str, Any]] = []
    answer: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
    asked = inference(handed_over, answer)
    body, headers = infer_body([Tensor("x", "FP32", NUMBERS.shape, NUMBERS)], binary=True)
    asked.body, Body.gone = Body(body), False
    request: Any = SimpleNamespace(headers=headers | ({"Idempotency-Key": key} if key else {}))
    call = Call("id", Trace("0" * 32, "0" * 16, "", "01", ""), 1 << 62, values={"model": "m"})
    running = asyncio.create_task(asked.infer(request, call))
    while not handed_over:
        await asyncio.sleep(0)
    assert Body.gone
    [tensor] = wire.decode_request(handed_over[0]["payload"]).inputs
    assert bytes(tensor.data) == NUMBERS.tobytes()
    answer.set_result(wire.Reply(wire.ReplyBody([wire.Tensor("y", "FP32", [1, 1], memoryview(bytes(4)))]), None))
    assert b'"y"' in (await soon(running)).body


@pytest.mark.parametrize("size", [1 << 10, 10_000, 64 << 10])
def test_a_payload_takes_no_more_memory_than_it_has_bytes(size: int) -> None:
    """The encoder grows its buffer by half each time, and would leave what it did not use behind the payload."""
    body = wire.RequestBody([wire.Tensor("x", "FP32", [size // 4], memoryview(bytes(size)))])
    wire.encode_request(body)
    tracemalloc.start()
    try:
        payload = wire.encode_request(body)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(payload) <= held_bytes < len(payload) + 200
