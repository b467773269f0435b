"""What is wrong in an infer request is refused in words that say what was expected, what came and what to do."""

import json

import numpy as np
import pytest
from oip_samples import MLP, PAIR, as_json, one_input, refusal, sent, triton_input, x_json

from gateway.oip_request import parse_infer


@pytest.mark.parametrize(
    ("data", "shape", "datatype", "words"),
    [
        ([1, 2, 3], [1, 4], "FP32", ["'x'", "has 4 elements, 3 came"]),
        ([1, 2, None, 4], [1, 4], "FP32", ["'x'", "`float`, got `null`", "$[2]"]),
        ([1, True, 3, 4], [1, 4], "FP32", ["'x'", "`float`, got `bool`", "send numbers"]),
        ([1, "2", 3, 4], [1, 4], "FP32", ["`float`, got `str`"]),
        ([1, 2, 3, 1e39], [1, 4], "FP32", ["1e+39", "does not fit FP32"]),
        ([1, 2, 3, 70000], [1, 4], "FP16", ["70000", "65504", "does not fit FP16"]),
        ([1, 2, 3, 10**400], [1, 4], "FP64", ["out of range"]),
        ([1, 0, 1, 0], [1, 4], "BOOL", ["`bool`, got `int`", "true or false"]),
        ([1, 2.5, 3, 4], [1, 4], "INT32", ["`int`, got `float`", "whole numbers"]),
        ([1, False, 3, 4], [1, 4], "INT32", ["`int`, got `bool`"]),
        ([-128, 128, 0, 0], [1, 4], "INT8", ["128 is beyond -128 to 127", "does not fit INT8"]),
        ([-1, 2, 3, 4], [1, 4], "UINT64", ["-1 is beyond 0 to 18446744073709551615"]),
        ([0, 0, 0, 2**63], [1, 4], "INT64", ["9223372036854775808", "does not fit INT64"]),
        ([1, 2, 3, 4], [1, 4], "BF16", ["'x'", "BF16", "binary"]),
        (["a", "b", 3, "d"], [1, 4], "BYTES", ["`str`, got `int`", "send strings"]),
        ([[1, 2], [3, 4, 5]], [2, 2], "FP32", ["dimension 1 of shape [2, 2] is 2", "length 3"]),
        ([[1, 2], 3, 4], [2, 2], "FP32", ["`array`, got `int`", "$[1]"]),
        ([1, 2, [3], 4], [1, 4], "FP32", ["`float`, got `array`"]),
        ([[[1, 2]]], [1, 2], "FP32", ["`float`, got `array`"]),
        ([[1, 2, 3, 4]], [2, 2], "FP32", ["dimension 0 of shape [2, 2] is 2", "length 1"]),
        ({"0": 1}, [1, 4], "FP32", ["`array`, got `object`"]),
        (None, [1, 4], "FP32", ["'x'", "no data"]),
    ],
)
def test_json_elements_that_are_not_the_tensor_are_refused(
    data: object, shape: list[object], datatype: str, words: list[str]
) -> None:
    """The text names the input, what was expected and what came."""
    message = refusal(as_json(x_json(data, shape, datatype)), None, one_input(datatype, [-1]))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "z"}, ["unknown input 'z'", "takes 'x'"]),
        ({"datatype": "INT32"}, ["'x' is 'INT32'", "takes FP32"]),
        ({"datatype": "FLOAT"}, ["'FLOAT'", "no datatype"]),
        ({"shape": [4]}, ["rank 1 (shape [4])", "takes rank 2 (shape [-1, 4]", "batch"]),
        ({"shape": [1, 5]}, ["shape [1, 5]", "takes [-1, 4]"]),
        ({"shape": [-1, 4]}, ["shape [-1, 4]", "state every dimension"]),
        ({"shape": [-(2**70), 4]}, ["shape [-11805", "takes [-1, 4]"]),
        ({"shape": [2**70, 4]}, ["more than", "elements"]),
        ({"shape": [9, 4], "data": [0] * 36}, ["batch of 9 rows", "at most 8"]),
        ({"shape": [1.0, 4]}, ["`int`, got `float`", "inputs[0].shape[0]"]),
        ({"shape": "big"}, ["`array`, got `str`"]),
        ({"data": None, "parameters": {"binary_data_size": 12}}, ["unexpected size for input", "16 bytes, 12"]),
        ({"data": None, "parameters": {"binary_data_size": 16}}, ["unexpected size for input", "0 bytes are left"]),
        ({"data": None, "parameters": {"binary_data_size": -1}}, ["binary_data_size -1"]),
        ({"data": None, "parameters": {"binary_data_size": 10**3000}}, ["binary_data_size 1000"]),
        ({"parameters": {"binary_data_size": 16}}, ["both"]),
        ({"data": None, "parameters": {"shared_memory_region": "r"}}, ["shared memory", "unsupported"]),
    ],
)
def test_an_input_that_is_not_the_models_is_refused(change: dict[str, object], words: list[str]) -> None:
    """Name, datatype, rank, dimensions, batch, sizes: each is checked and each is explained."""
    tree = x_json([1, 2, 3, 4])
    tree["inputs"][0] |= change
    message = refusal(as_json(tree))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inputs": []}, ["missing input 'x'", "none came"]),
        ({"inputs": x_json([1, 2, 3, 4])["inputs"] * 2}, ["'x' came twice"]),
        ({"id": 7}, ["`str", "got `int`", "$.id"]),
        ({"outputs": [{"name": "q"}]}, ["unknown output 'q'", "gives 'y'"]),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, ["'y' is requested twice"]),
        ({"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]}, ["shared memory", "unsupported"]),
        ({"outputs": [{"name": "y", "parameters": {"classification": -1}}]}, ["classification is -1"]),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, ["`bool", "got `int`"]),
        ({"parameters": {"triton_x": 1}}, ["'triton_x'", "reserved"]),
        ({"parameters": {"a": [1]}}, ["str`, got `array`"]),
        ({"parameters": {"a": None}}, ["str`, got `null`"]),
        ({"parameters": {"a": 2**64}}, ["'a'", "64 bits"]),
        ({"parameters": {"timeout": -1}}, ["'timeout' is -1", "microseconds"]),
        ({"parameters": {"timeout": 1.5}}, ["'timeout' is 1.5"]),
        ({"parameters": {"timeout": "1"}}, ["'timeout' is 1", "integer"]),
        ({"parameters": {"priority": True}}, ["'priority' is True"]),
        ({"parameters": {"sequence_id": 1.5}}, ["'sequence_id' is 1.5", "or a string"]),
        ({"parameters": {"sequence_end": 1}}, ["'sequence_end' is 1", "true or false"]),
        ({"parameters": {"binary_data_output": "yes"}}, ["'binary_data_output' is yes"]),
    ],
)
def test_a_request_that_is_not_of_the_protocol_is_refused(fields: dict[str, object], words: list[str]) -> None:
    """Everything around the tensors is checked and explained as well."""
    message = refusal(as_json(x_json([1, 2, 3, 4]) | fields))
    assert all(word in message for word in words), message


@pytest.mark.parametrize("output", [{"name": "half"}, {"name": "label", "parameters": {"classification": 1}}])
def test_what_cannot_be_rendered_is_refused_before_any_work(output: dict[str, object]) -> None:
    """BF16 as JSON, and classes of BYTES, fail at once and not after the model ran."""
    text = triton_input("text", np.array([[b"a"]], dtype=object), "BYTES", binary=False)
    ids = triton_input("ids", np.array([[1]], dtype=np.int32), "INT32", binary=False)
    tree = json.loads(sent([text, ids])[0]) | {"outputs": [output], "parameters": {}}
    assert f"'{output['name']}' is B" in refusal(as_json(tree), None, PAIR)
    del tree["outputs"]
    assert "'half' is BF16" in refusal(as_json(tree), None, PAIR)


def test_inputs_that_disagree_about_the_batch_are_refused() -> None:
    """Two rows of text and one of ids cannot be one request."""
    text = triton_input("text", np.array([[b"a"], [b"b"]], dtype=object), "BYTES", binary=True)
    ids = triton_input("ids", np.array([[1]], dtype=np.int32), "INT32", binary=True)
    message = refusal(*sent([text, ids]), PAIR)
    assert "'text' has 2 rows, 'ids' 1" in message


@pytest.mark.parametrize("header", ["-1", "+1", "1.0", "", "0x10", "ten", "9" * 5000, "²", "1 0"])
def test_a_header_that_is_no_length_is_refused(header: str) -> None:
    """Only decimal digits are a length; the text repeats what came."""
    assert "Inference-Header-Content-Length is '" in refusal(as_json(x_json([1, 2, 3, 4])), header)


def test_lengths_that_disagree_with_the_body_are_refused() -> None:
    """Header beyond the body, one byte too long or short, leftover bytes, and a truncated tail."""
    body, header = sent([triton_input("x", np.ones((1, 4), "f4"), "FP32", binary=True)])
    assert header is not None
    assert f"is {len(body) + 1}, the whole body (decompressed) has {len(body)}" in refusal(body, str(len(body) + 1))
    assert "not valid JSON" in refusal(body, str(int(header) + 1))
    assert "not valid JSON" in refusal(body, str(int(header) - 1))
    assert "unexpected additional input data" in refusal(body + b"\0", header)
    assert "unexpected size for input" in refusal(body[:-1], header)


def test_broken_elements_of_binary_tensors_are_refused() -> None:
    """A BYTES length beyond its tensor, bytes after the last element, and a BOOL that is 2."""
    for content, words in [(b"\5\0\0\0abc", "announces 5 bytes"), (b"\0\0\0\0\0", "unexpected additional input data")]:
        tree = x_json(None, [1, 1], "BYTES")
        tree["inputs"][0]["parameters"] = {"binary_data_size": len(content)}
        text = as_json(tree)
        assert words in refusal(text + content, str(len(text)), one_input("BYTES", [1]))
    assert "other than 0 and 1" in refusal(b"\1\2", "0", one_input("BOOL", [2]))


@pytest.mark.parametrize("place", ["id", "later", "name"])
def test_text_that_is_not_utf8_is_refused_wherever_it_stands(place: str) -> None:
    """msgspec does not look into fields it skips, so the whole text is checked."""
    body = as_json(x_json([1, 2, 3, 4], id="?", later="?")).replace(b'"?"', b'"\xff"')
    if place == "name":
        body = as_json(x_json([1, 2, 3, 4])).replace(b'"x"', b'"\xff"')
    assert "not valid UTF-8" in refusal(body)


@pytest.mark.parametrize("depth", [101, 500, 2000, 10**5])
@pytest.mark.parametrize("field", ["later", "data", "inputs"])
def test_deep_nesting_is_refused(field: str, depth: int) -> None:
    """Whatever the depth and the place, a 400 and never a RecursionError."""
    nested = b"[" * depth + b"]" * depth
    body = as_json(x_json([1, 2, 3, 4]) | {"later": 0})
    body = body.replace(
        {"later": b"0}", "data": b"[1, 2, 3, 4]", "inputs": body}[field], nested + b"}" * (field == "later")
    )
    refusal(body)


def test_nesting_up_to_the_limit_and_brackets_in_text_pass() -> None:
    """Exactly 100 levels are allowed, and a bracket within a string is no level."""
    body = as_json(x_json([1, 2, 3, 4], later=0)).replace(b'"later": 0', b'"later": ' + b"[" * 99 + b"]" * 99)
    assert parse_infer(body, None, MLP).rows == 1
    assert parse_infer(as_json(x_json([1, 2, 3, 4], later='["' * 500)), None, MLP).rows == 1


def test_a_clients_own_words_are_shortened_in_the_text() -> None:
    """A name of a million characters does not come back in the error."""
    tree = x_json([1, 2, 3, 4])
    tree["inputs"][0]["name"] = "n" * 10**6
    assert len(refusal(as_json(tree))) < 400
