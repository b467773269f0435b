"""What Triton's own client encodes is understood exactly."""

import ml_dtypes
import numpy as np
import pytest
from oip_samples import MLP, PAIR, as_json, one_input, refusal, sent, triton_input, x_json
from tritonclient.http import InferRequestedOutput

from gateway.oip_request import InferCall, OutputWish, parse_infer
from shared.tensors import DTYPES, from_bytes
from shared.wire import ModelDescriptor, Tensor


def array_of(tensor: Tensor) -> np.ndarray:
    return from_bytes(tensor.data, tensor.datatype, tensor.shape, name=tensor.name)


SAMPLES = {name: np.array([[0, 1, 1, 0], [1, 0, 1, 1]]).astype(dtype) for name, dtype in DTYPES.items()}
SAMPLES["BF16"] = np.array([[0.5, 1, -2, 3], [1, 2, 3, 4]], dtype=ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("datatype", "binary"),
    [(name, True) for name in sorted(DTYPES)] + [(name, False) for name in sorted(DTYPES) if name != "BF16"],
)
def test_every_datatype_arrives_as_the_bytes_numpy_holds(datatype: str, binary: bool) -> None:
    """JSON and binary encodings of one array become the same little-endian bytes."""
    array = SAMPLES[datatype]
    body, header = sent([triton_input("x", array, datatype, binary=binary)])
    call = parse_infer(body, header, one_input(datatype, [4]))
    assert call.rows == 2
    assert bytes(call.request.inputs[0].data) == array.tobytes()
    assert call.request.inputs[0].shape == [2, 4]


def test_a_binary_input_is_a_view_and_not_a_copy() -> None:
    """No byte of a binary tensor is copied by the parser."""
    body, header = sent([triton_input("x", np.ones((1, 4), "f4"), "FP32", binary=True)])
    assert parse_infer(body, header, MLP).request.inputs[0].data.obj is body


@pytest.mark.parametrize("text_binary", [True, False])
@pytest.mark.parametrize("ids_binary", [True, False])
def test_a_mix_of_json_and_binary_inputs_is_understood(text_binary: bool, ids_binary: bool) -> None:
    """Two inputs, the first BYTES with a non-ASCII element, in any mix of encodings and in either order."""
    text = np.array([["größe".encode()], [b""]], dtype=object)
    ids = np.array([[7, -8, 9], [1, 2, 3]], dtype=np.int32)
    inputs = [
        triton_input("text", text, "BYTES", binary=text_binary),
        triton_input("ids", ids, "INT32", binary=ids_binary),
    ]
    for order in (inputs, inputs[::-1]):
        call = parse_infer(*sent(order), PAIR)
        assert [tensor.name for tensor in call.request.inputs] == ["text", "ids"]
        assert array_of(call.request.inputs[0]).tolist() == text.tolist()
        assert array_of(call.request.inputs[1]).tolist() == ids.tolist()
        assert call.rows == 2


def test_an_empty_batch_is_legal() -> None:
    """Shape [0, 4] is accepted, binary and JSON, and has 0 rows."""
    body, header = sent([triton_input("x", np.zeros((0, 4), "f4"), "FP32", binary=True)])
    assert header == str(len(body))
    assert parse_infer(body, header, MLP).rows == 0
    assert parse_infer(as_json(x_json([], [0, 4])), None, MLP).rows == 0


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6, 7, 8], [[1, 2, 3, 4], [5, 6, 7, 8]]])
def test_json_data_may_be_flat_or_nested_to_the_shape(data: object) -> None:
    """Both spellings of one tensor are the same tensor."""
    call = parse_infer(as_json(x_json(data, [2, 4])), None, MLP)
    assert array_of(call.request.inputs[0]).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_three_dimensions_with_an_empty_one_may_be_nested() -> None:
    """Nesting is checked level by level, also where a level has no elements."""
    model = one_input("INT64", [-1, 2])
    assert parse_infer(as_json(x_json([[[1, 2]], [[3, 4]]], [2, 1, 2], "INT64")), None, model).rows == 2
    assert parse_infer(as_json(x_json([[], []], [2, 0, 2], "INT64")), None, model).rows == 2
    assert "dimension 2" in refusal(as_json(x_json([[[1, 2]], [[3]]], [2, 1, 2], "INT64")), None, model)


def test_without_outputs_the_client_expects_all_in_binary() -> None:
    """tritonclient sends binary_data_output when no outputs are listed, even with JSON inputs."""
    call = parse_infer(*sent([triton_input("x", np.ones((1, 4), "f4"), "FP32", binary=False)]), MLP)
    assert (call.default_binary, call.wishes, call.request.outputs, call.request.parameters) == (True, (), [], {})


def test_wishes_keep_the_order_and_the_form_of_each_output() -> None:
    """Binary, JSON and classification are kept for each output; an output that says nothing follows the default."""
    text = triton_input("text", np.array([[b"a"]], dtype=object), "BYTES", binary=True)
    ids = triton_input("ids", np.array([[1]], dtype=np.int32), "INT32", binary=True)
    outputs = [
        InferRequestedOutput("score", binary_data=False, class_count=2),
        InferRequestedOutput("half"),
        InferRequestedOutput("label", binary_data=False),
    ]
    call = parse_infer(*sent([text, ids], outputs=outputs), PAIR)
    assert call.wishes == (
        OutputWish("score", False, 2),
        OutputWish("half", True, 0),
        OutputWish("label", False, 0),
    )
    assert call.request.outputs == ["score", "half", "label"]
    listed = x_json([1, 2, 3, 4], outputs=[{"name": "y"}], parameters={"binary_data_output": True})
    assert parse_infer(as_json(listed), None, MLP).wishes == (OutputWish("y", True, 0),)
    assert parse_infer(as_json(x_json([1, 2, 3, 4], outputs=[{"name": "y"}])), None, MLP).wishes[0].binary is False


def test_the_protocols_parameters_are_taken_and_the_others_passed_on() -> None:
    """Id, timeout, priority and sequence are fields of the call; the caller's own parameters go to the model."""
    custom = {"temperature": 0.5, "greedy": True, "style": "terse", "beams": 3}
    body, header = sent(
        [triton_input("x", np.ones((1, 4), "f4"), "FP32", binary=True)],
        request_id="bestellung-7",
        sequence_id="s-1",
        sequence_start=True,
        priority=1,
        timeout=2500,
        custom_parameters=custom,
    )
    call = parse_infer(body, header, MLP)
    assert call.request.parameters == custom
    assert (call.client_id, call.timeout_us, call.priority, call.sequence_id) == ("bestellung-7", 2500, 1, "s-1")


def test_a_zero_timeout_is_no_timeout() -> None:
    """Triton reads 0 as the server's own limit."""
    call = parse_infer(as_json(x_json([1, 2, 3, 4], parameters={"timeout": 0})), None, MLP)
    assert (call.timeout_us, call.priority, call.sequence_id, call.client_id) == (None, 0, 0, "")


def test_unknown_fields_and_input_parameters_are_ignored() -> None:
    """What the protocol does not know does no harm, and null stands for absent."""
    tree = x_json([1, 2, 3, 4], id=None, outputs=None, parameters=None, later={"a": [1]})
    tree["inputs"][0]["parameters"] = {"colour": {"r": 1}}
    assert parse_infer(as_json(tree), None, MLP).rows == 1


def test_a_model_without_a_batch_takes_its_shape_as_declared() -> None:
    """With max_batch_size 0 the first dimension is like any other and the call is one row."""
    call = parse_infer(as_json(x_json([1, 2, 3], [3])), None, one_input("FP32", [-1], batch=0))
    assert (call.rows, call.request.inputs[0].shape) == (1, [3])
    assert parse_infer(
        as_json({"inputs": [dict(x_json([5])["inputs"][0], shape=[])]}), None, one_input("FP32", [], batch=0)
    )


def raw(body: bytes, model: ModelDescriptor) -> InferCall:
    return parse_infer(body, "0", model)


def test_a_raw_body_is_the_one_input_of_a_model() -> None:
    """Header 0: batch 1, outputs binary, the variable dimension from the size, BYTES one element."""
    numbers = np.arange(6, dtype="<f4").tobytes()
    call = raw(numbers, one_input("FP32", [-1, 2]))
    assert (call.request.inputs[0].shape, call.default_binary, call.rows) == ([1, 3, 2], True, 1)
    assert bytes(call.request.inputs[0].data) == numbers
    assert array_of(raw(b"hello", one_input("BYTES", [-1])).request.inputs[0]).tolist() == [[b"hello"]]
    assert raw(numbers[:16], one_input("FP32", [4], batch=0)).request.inputs[0].shape == [4]
    assert "takes 16 bytes, 15 came" in refusal(numbers[:15], "0", MLP)
    assert "multiple of 8" in refusal(numbers[:15], "0", one_input("FP32", [-1, 2]))
    assert "one variable dimension" in refusal(numbers, "0", one_input("FP32", [-1, -1]))
    assert "exactly one input" in refusal(numbers, "0", PAIR)
    assert "one BYTES element" in refusal(numbers, "0", one_input("BYTES", [2]))
