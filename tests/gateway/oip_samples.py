"""Models, and requests as tritonclient or a hand writes them, for the tests of the infer parser."""

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.http._utils import _get_inference_request

from gateway.oip_request import parse_infer
from shared.errors import BadRequest, ErrorKind
from shared.wire import ModelDescriptor, ModelTensor

MLP = ModelDescriptor("mlp", "1", "pytorch", 8, [ModelTensor("x", "FP32", [4])], [ModelTensor("y", "FP32", [2])])
PAIR = ModelDescriptor(
    "pair",
    "1",
    "pytorch",
    8,
    [ModelTensor("text", "BYTES", [1]), ModelTensor("ids", "INT32", [-1])],
    [ModelTensor("label", "BYTES", [1]), ModelTensor("score", "FP32", [3]), ModelTensor("half", "BF16", [2])],
)


def one_input(datatype: str, shape: list[int], *, batch: int = 8) -> ModelDescriptor:
    return ModelDescriptor("m", "1", "pytorch", batch, [ModelTensor("x", datatype, shape)], [])


def sent(
    inputs: list[InferInput], *, outputs: list[InferRequestedOutput] | None = None, request_id: str = "", **extra: Any
) -> tuple[bytes, str | None]:
    """The body and header tritonclient sends."""
    options: dict[str, Any] = {
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
        "priority": 0,
        "timeout": None,
        "custom_parameters": None,
    } | extra
    body, json_bytes = _get_inference_request(inputs, request_id, outputs, **options)
    return body, None if json_bytes is None else str(json_bytes)


def triton_input(name: str, array: np.ndarray, datatype: str, *, binary: bool) -> InferInput:
    tensor = InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def as_json(tree: object) -> bytes:
    return json.dumps(tree).encode()


def x_json(data: object, shape: list[object] | None = None, datatype: str = "FP32", **fields: object) -> dict[str, Any]:
    """A request of one input x, as JSON text would hold it."""
    return {"inputs": [{"name": "x", "shape": shape or [1, 4], "datatype": datatype, "data": data}], **fields}


def refusal(body: bytes, header: str | None = None, model: ModelDescriptor = MLP) -> str:
    with pytest.raises(BadRequest) as caught:
        parse_infer(body, header, model)
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    return caught.value.message
