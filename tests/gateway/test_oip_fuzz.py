"""Whatever bytes arrive, the parsers answer with a value or a TailraceError, never with anything else."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.oip_reply import empty_reply, render_infer
from gateway.oip_request import parse_infer
from gateway.openai import parse_embeddings, to_requests
from shared.errors import TailraceError
from shared.tensors import from_bytes
from shared.wire import ModelDescriptor, ModelTensor, encode_request

MODEL = ModelDescriptor(
    "m",
    "1",
    "pytorch",
    4,
    [ModelTensor("x", "FP32", [-1]), ModelTensor("t", "BYTES", [-1]), ModelTensor("b", "BOOL", [2])],
    [ModelTensor("y", "FP32", [-1]), ModelTensor("u", "BYTES", [1])],
)
EMBEDDER = ModelDescriptor(
    "e", "1", "pytorch", 4, [ModelTensor("t", "BYTES", [1])], [ModelTensor("v", "FP32", [2])], "embedding"
)
VALID = json.dumps(
    {
        "id": "a",
        "inputs": [
            {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1.5, 2], [3, 4]]},
            {"name": "t", "shape": [2, 1], "datatype": "BYTES", "parameters": {"binary_data_size": 11}},
            {"name": "b", "shape": [2, 2], "datatype": "BOOL", "data": [True, False, True, True]},
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True, "classification": 3}}, {"name": "u"}],
        "parameters": {"timeout": 5, "k": "v"},
    }
).encode()
TAIL = b"\2\0\0\0ab\1\0\0\0c"

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def survives(body: bytes, header: str | None) -> None:
    """Parse, and if that works, use the result as the gateway would."""
    try:
        call = parse_infer(body, header, MODEL)
    except TailraceError as error:
        error.message.encode()  # must be fit for a reply
        return
    encode_request(call.request)
    for tensor in call.request.inputs:
        assert from_bytes(tensor.data, tensor.datatype, tensor.shape, name=tensor.name).shape[0] == call.rows
    render_infer(call, MODEL, empty_reply(MODEL))


def test_the_unmutated_request_is_valid() -> None:
    """The seed of the mutations below is accepted, so that they start from deep inside the parser."""
    assert parse_infer(VALID + TAIL, str(len(VALID)), MODEL).rows == 2


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.none() | st.integers(-2, 210).map(str) | st.text(max_size=6))
def test_arbitrary_bytes_never_break_the_parser(body: bytes, header: str | None) -> None:
    """Noise in body and header is a 400."""
    survives(body, header)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_a_mutated_request_never_breaks_the_parser(data: st.DataObject) -> None:
    """Bytes of a valid request replaced, inserted or removed, with a header that may be off."""
    body = bytearray(VALID + TAIL)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3)
            | st.sampled_from([b"[", b"]", b"{", b'"', b"null", b"-", b"e999", b"9" * 30, b"\\ud800", b"0"])
        )
    survives(
        bytes(body),
        data.draw(st.sampled_from([str(len(VALID)), str(len(VALID) + len(body) - len(VALID + TAIL)), None])),
    )


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_a_request_with_any_value_anywhere_never_breaks_the_parser(data: st.DataObject) -> None:
    """Any JSON value in any place of the tree."""
    tree = json.loads(VALID)
    spot: object = tree
    path = []
    while isinstance(spot, dict | list) and spot and data.draw(st.booleans()):
        path.append(data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else list(range(len(spot))))))
        spot = spot[path[-1]]  # type: ignore[call-overload]
    value = data.draw(trees)
    if path:
        holder = tree
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = value
    else:
        tree = value
    text = json.dumps(tree).encode()
    survives(text + TAIL, str(len(text)))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 3, -1, 2**31, 2**62, 2**64, 10**40]), max_size=4),
    st.sampled_from(["FP32", "BYTES", "BOOL"]),
    st.integers(0, 40),
)
def test_no_shape_is_too_absurd(shape: list[int], datatype: str, size: int) -> None:
    """Zero, negative and astronomic dimensions are refused before anything is allocated or overflows."""
    name = {"FP32": "x", "BYTES": "t", "BOOL": "b"}[datatype]
    tree = json.loads(VALID)
    tree["inputs"] = [
        {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}},
        *(entry for entry in tree["inputs"] if entry["name"] != name and "data" in entry),
    ]
    text = json.dumps(tree).encode()
    survives(text + bytes(size), str(len(text)))


@settings(max_examples=300, deadline=None)
@given(
    trees | st.fixed_dictionaries({"model": scalars, "input": trees}, optional={"dimensions": scalars, "user": scalars})
)
def test_any_json_never_breaks_the_embeddings_parser(tree: object) -> None:
    """The OpenAI side keeps the same promise."""
    try:
        requests = to_requests(parse_embeddings(json.dumps(tree).encode()), EMBEDDER)
    except TailraceError as error:
        error.message.encode()
        return
    assert sum(request.inputs[0].shape[0] for request in requests) >= 1


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_never_break_the_embeddings_parser(body: bytes) -> None:
    """Noise is a 400 here too."""
    try:
        parse_embeddings(body)
    except TailraceError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_float32_survives_json_bit_by_bit(values: list[float]) -> None:
    """JSON out of the reply and into a request again: the same float32."""
    array = np.array([values], dtype="<f4")
    tree = {"inputs": [{"name": "x", "shape": list(array.shape), "datatype": "FP32", "data": array[0].tolist()}]}
    model = ModelDescriptor("m", "1", "p", 4, [ModelTensor("x", "FP32", [-1])], [ModelTensor("x", "FP32", [-1])])
    call = parse_infer(json.dumps(tree).encode(), None, model)
    reply = empty_reply(model)
    reply = type(reply)(call.request.inputs)
    again = {"inputs": json.loads(render_infer(call, model, reply).body)["outputs"]}
    assert bytes(parse_infer(json.dumps(again).encode(), None, model).request.inputs[0].data) == array.tobytes()
