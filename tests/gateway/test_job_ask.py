"""What a job remembers of its request is enough to answer as infer would have, and its key covers what it must."""

import itertools
import json

import numpy as np
import pytest

from gateway.job_ask import digest_of, encode_ask, render_result
from gateway.oip_reply import render_infer
from gateway.oip_request import parse_infer
from shared.errors import ErrorKind, TailraceError
from shared.keys import Queue
from shared.wire import ModelDescriptor, ModelTensor, ReplyBody, Tensor

MODEL = ModelDescriptor("m", "3", "p", 8, [ModelTensor("x", "FP32", [1])], [ModelTensor("y", "FP32", [3])])
ANSWER = ReplyBody([Tensor("y", "FP32", [2, 3], memoryview(np.arange(6, dtype=np.float32).tobytes()))], {"tokens": 5})
INPUT = {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"id": "mine"},
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
        {"outputs": [{"name": "y", "parameters": {"classification": 2}}]},
    ],
)
def test_a_result_is_rendered_as_infer_would_have(more: dict[str, object]) -> None:
    """From the bytes that the job kept, without the model's description."""
    asked = parse_infer(json.dumps({"inputs": [INPUT], **more}).encode(), None, MODEL)
    kept = encode_ask(asked, MODEL)
    assert render_result(kept, Queue("m", "3"), ANSWER) == render_infer(asked, MODEL, ANSWER)


def test_an_error_is_raised_as_infer_would_have() -> None:
    """With its kind."""
    kept = encode_ask(parse_infer(json.dumps({"inputs": [INPUT]}).encode(), None, MODEL), MODEL)
    with pytest.raises(TailraceError) as failed:
        render_result(kept, Queue("m", "3"), ReplyBody(error_code="model_error", error="no"))
    assert failed.value.kind is ErrorKind.MODEL_ERROR


def test_a_key_covers_route_body_and_where_the_json_ends() -> None:
    """Any other of them is another request; nothing can be moved from one to the other."""
    requests = [
        ("m", "", None, b"body"),
        ("m", "1", None, b"body"),
        ("m", "1", "4", b"body"),
        ("m", "1", "3", b"body"),
        ("m", "1", None, b"body "),
        ("m", "1", None, b"4\nbody"),
        ("n", "1", None, b"body"),
    ]
    digests = [digest_of(*request) for request in requests]
    assert all(a != b for a, b in itertools.combinations(digests, 2))
    assert digests == [digest_of(*request) for request in requests]
