"""Triton's own client reads our replies, by name, whatever their order and form."""

import json
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferResult

from gateway.oip_reply import RenderedReply, empty_reply, render_infer
from gateway.oip_request import InferCall, OutputWish
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.tensors import DTYPES, encode_bytes_elements
from shared.wire import ModelDescriptor, ModelTensor, ReplyBody, RequestBody, Tensor

MODEL = ModelDescriptor(
    "m",
    "3",
    "pytorch",
    8,
    [],
    [ModelTensor("y", "FP32", [-1]), ModelTensor("n", "INT64", [2]), ModelTensor("t", "BYTES", [1])],
)


def call(*wishes: OutputWish, default_binary: bool = False, client_id: str = "") -> InferCall:
    return InferCall(client_id, RequestBody([]), 2, None, 0, 0, wishes, default_binary)


def tensor(name: str, datatype: str, array: np.ndarray) -> Tensor:
    return Tensor(name, datatype, list(array.shape), memoryview(array.tobytes()))


def texts(name: str, elements: Sequence[bytes]) -> Tensor:
    return Tensor(name, "BYTES", [len(elements), 1], memoryview(encode_bytes_elements(elements)))


def read(reply: RenderedReply) -> InferResult:
    """As tritonclient reads it."""
    return InferResult.from_response_body(reply.body, header_length=reply.json_length)


Y = np.array([[0.1, -2.5], [1e-45, 3.4028235e38]], dtype="<f4")
N = np.array([[1, -(2**63)], [2**63 - 1, 0]], dtype="<i8")
BODY = ReplyBody([tensor("y", "FP32", Y), tensor("n", "INT64", N), texts("t", ["é".encode(), b""])], {"tokens": 5})


@pytest.mark.parametrize("binary", [True, False])
def test_all_outputs_come_in_the_models_order_when_none_is_listed(binary: bool) -> None:
    """Binary and JSON replies decode to the same arrays."""
    reply = render_infer(call(default_binary=binary), MODEL, BODY)
    result = read(reply)
    assert [output["name"] for output in result.get_response()["outputs"]] == ["y", "n", "t"]
    assert result.as_numpy("y").tobytes() == Y.tobytes()
    assert result.as_numpy("n").tolist() == N.tolist()
    assert [
        element if isinstance(element, bytes) else element.encode() for element in result.as_numpy("t").ravel()
    ] == [
        "é".encode(),
        b"",
    ]
    assert reply.content_type == ("application/octet-stream" if binary else "application/json")
    assert (reply.json_length is None) is (not binary)


def test_requested_outputs_come_in_requested_order_each_in_its_form() -> None:
    """JSON between two binary outputs does not disturb the offsets."""
    wishes = (OutputWish("t", True, 0), OutputWish("y", False, 0), OutputWish("n", True, 0))
    result = read(render_infer(call(*wishes), MODEL, BODY))
    assert [output["name"] for output in result.get_response()["outputs"]] == ["t", "y", "n"]
    assert result.as_numpy("n").tolist() == N.tolist()
    assert result.as_numpy("y").tobytes() == Y.tobytes()
    assert result.as_numpy("t").tolist() == [["é".encode()], [b""]]


def test_the_keys_come_in_tritons_order() -> None:
    """id only if the request had one, the version as a string, parameters only if there are any."""
    tree = json.loads(render_infer(call(client_id="käse"), MODEL, BODY).body)
    assert list(tree) == ["id", "model_name", "model_version", "parameters", "outputs"]
    assert (tree["id"], tree["model_version"], tree["parameters"]) == ("käse", "3", {"tokens": 5})
    assert list(tree["outputs"][0]) == ["name", "datatype", "shape", "data"]
    bare = json.loads(render_infer(call(), MODEL, ReplyBody(BODY.outputs)).body)
    assert list(bare) == ["model_name", "model_version", "outputs"]


@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_every_datatype_is_read_back(datatype: str) -> None:
    """Binary for all; JSON for all but BF16."""
    array = np.array([[0, 1], [1, 1]]).astype(ml_dtypes.bfloat16 if datatype == "BF16" else DTYPES[datatype])
    body = ReplyBody([tensor("y", datatype, array)])
    for binary in (True, False):
        if datatype == "BF16" and not binary:
            with pytest.raises(BadRequest, match=r"'y' is BF16.*as binary"):
                render_infer(call(default_binary=False), MODEL, body)
        else:
            assert read(render_infer(call(default_binary=binary), MODEL, body)).as_numpy("y").tolist() == array.tolist()


def test_float32_is_printed_short_and_from_any_alignment() -> None:
    """0.1 is 0.1 and not 0.10000000149011612, also when the data begins at an odd address."""
    odd = memoryview(b"\0" + Y.tobytes())[1:]
    text = render_infer(call(), MODEL, ReplyBody([Tensor("y", "FP32", [2, 2], odd)])).body
    assert b'"data":[0.1,-2.5,1e-45,3.4028235e+38]' in text.replace(b"3.4028235e38", b"3.4028235e+38")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_what_is_not_finite_is_refused_in_json_and_fine_in_binary(datatype: str, value: float) -> None:
    """JSON has no NaN; the text names the output and the way out."""
    body = ReplyBody([tensor("y", datatype, np.array([[1, value]], dtype=DTYPES[datatype]))])
    with pytest.raises(BadRequest, match=r"'y' holds NaN or infinity.*as binary"):
        render_infer(call(), MODEL, body)
    assert str(read(render_infer(call(default_binary=True), MODEL, body)).as_numpy("y")[0, 1]) == str(value)


def test_the_word_null_is_not_a_number() -> None:
    """An id or a text that says null does not look like NaN."""
    body = ReplyBody([tensor("y", "FP32", Y), texts("t", [b"null", b"nullable"])])
    assert b"null" in render_infer(call(client_id="null"), MODEL, body).body


def test_bytes_that_are_not_text_are_refused_in_json() -> None:
    """The text names the output and the way out."""
    with pytest.raises(BadRequest, match=r"'t' holds bytes that are not UTF-8.*as binary"):
        render_infer(call(), MODEL, ReplyBody([texts("t", [b"\xff"])]))


@pytest.mark.parametrize("binary", [True, False])
def test_classes_come_highest_first_with_six_decimals(binary: bool) -> None:
    """value:index, of equal values the lower index first, at most as many as there are."""
    scores = ReplyBody([tensor("y", "FP32", np.array([[0.25, 0.5, 0.25], [1, -1, 1]], dtype="f4"))])
    top = read(render_infer(call(OutputWish("y", binary, 2)), MODEL, scores))
    assert top.get_response()["outputs"][0]["datatype"] == "BYTES"
    words = [[e if isinstance(e, str) else e.decode() for e in row] for row in top.as_numpy("y").tolist()]
    assert words == [["0.500000:1", "0.250000:0"], ["1.000000:0", "1.000000:2"]]
    every = read(render_infer(call(OutputWish("y", binary, 10**30)), MODEL, scores))
    assert every.as_numpy("y").shape == (2, 3)


def test_classes_of_integers_are_printed_whole_and_unsigned_ones_sort() -> None:
    """No decimals for integers; 0 is the lowest unsigned value; without a batch the shape is [N]."""
    body = ReplyBody([tensor("y", "UINT8", np.array([0, 255, 7], dtype="u1"))])
    flat = ModelDescriptor("m", "1", "pytorch", 0, [], [ModelTensor("y", "UINT8", [3])])
    assert read(render_infer(call(OutputWish("y", True, 3)), flat, body)).as_numpy("y").tolist() == [
        b"255:1",
        b"7:2",
        b"0:0",
    ]


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "BYTES"])
def test_classes_of_other_datatypes_are_refused(datatype: str) -> None:
    """Triton has no classes for these; a model may give what it did not declare."""
    output = texts("y", [b"a"]) if datatype == "BYTES" else Tensor("y", datatype, [1, 1], memoryview(b"\0\0"))
    with pytest.raises(BadRequest, match=f"'y' is {datatype}"):
        render_infer(call(OutputWish("y", True, 1)), MODEL, ReplyBody([output]))


@pytest.mark.parametrize("binary", [True, False])
def test_an_empty_batch_is_answered_with_empty_outputs(binary: bool) -> None:
    """No bytes, no header, shapes that begin with 0; also as classes."""
    reply = render_infer(call(default_binary=binary), MODEL, empty_reply(MODEL))
    assert (reply.json_length, reply.content_type) == (None, "application/json")
    shapes = {output["name"]: output["shape"] for output in json.loads(reply.body)["outputs"]}
    assert shapes == {"y": [0, 0], "n": [0, 2], "t": [0, 1]}
    if not binary:
        assert read(reply).as_numpy("n").shape == (0, 2)
    classes = render_infer(call(OutputWish("n", binary, 1)), MODEL, empty_reply(MODEL))
    assert json.loads(classes.body)["outputs"][0]["shape"] == [0, 1]


def test_the_error_a_worker_answered_is_raised() -> None:
    """Its kind and text arrive unchanged."""
    with pytest.raises(TailraceError, match="out of memory") as caught:
        render_infer(call(), MODEL, ReplyBody(error_code="model_error", error="out of memory"))
    assert caught.value.kind is ErrorKind.MODEL_ERROR


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([tensor("n", "INT64", N)], "no output 'y'"),
        ([Tensor("y", "FP32", [2, 2], memoryview(b"abc"))], "takes 16 bytes, with 3 bytes"),
        ([Tensor("y", "FP8", [1], memoryview(b"a"))], "unknown datatype FP8"),
    ],
)
def test_a_model_that_answers_wrongly_is_at_fault(outputs: list[Tensor], words: str) -> None:
    """Not the client's error: a 500 that names the model."""
    with pytest.raises(TailraceError, match=words) as caught:
        render_infer(call(OutputWish("y", True, 0)), MODEL, ReplyBody(outputs))
    assert caught.value.kind is ErrorKind.MODEL_ERROR
    assert "model 'm' version 3" in caught.value.message
