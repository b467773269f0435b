"""What is sent: the gateway's own parser must take it, and its size and contents must be as asked for."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.connections import target_of
from bench.errors import CannotMeasure
from bench.oip import ModelSpec, TensorSpec, infer_body, model_spec
from bench.workload import (
    REQUESTS_BYTES_MAX,
    TEXT_REQUESTS_MAX,
    Maker,
    Request,
    Sender,
    Shape,
    from_file,
    looks_like_inference,
    made_up,
)
from gateway.oip_request import InferCall, parse_infer
from shared.tensors import DATATYPES, from_bytes
from shared.wire import ModelDescriptor, ModelTensor

TARGET = target_of("http://example.org:8000/base")
BOTH = pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])


def model(*inputs: TensorSpec, rows_max: int | None = 8) -> ModelSpec:
    return ModelSpec("m", "", inputs, (TensorSpec("y", "FP32", (-1, 2)),), rows_max)


def descriptor(spec: ModelSpec) -> ModelDescriptor:
    """The same model as the gateway knows it: shapes without the batch."""
    inputs = [ModelTensor(t.name, t.datatype, list(t.shape[1 if spec.rows_max else 0 :])) for t in spec.inputs]
    return ModelDescriptor("m", "1", "pytorch", spec.rows_max or 0, inputs, [ModelTensor("y", "FP32", [2])])


def sender(spec: ModelSpec, *, binary: bool = False) -> Sender:
    return Sender(TARGET, spec, binary, {"x-tenant": "t"})


def taken(request: Request, spec: ModelSpec) -> InferCall:
    """The request as the gateway understands it."""
    head, _, body = request.message.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert lines[0] == "POST /base/v2/models/m/infer HTTP/1.1"
    assert headers["Host"] == "example.org:8000"
    assert headers["x-tenant"] == "t"
    assert int(headers["Content-Length"]) == len(body)
    return parse_infer(body, headers.get("Inference-Header-Content-Length"), descriptor(spec))


@BOTH
@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_inputs_of_every_datatype_are_valid(datatype: str, binary: bool) -> None:
    """BF16 cannot be JSON, so a model that has it is always asked in binary."""
    spec = model(TensorSpec("x", datatype, (-1, 3, -1)), TensorSpec("mask", "BOOL", (-1, 1)))
    assert spec.must_be_binary is (datatype == "BF16")
    binary = binary or spec.must_be_binary
    request = made_up(Maker(spec, Shape(rows=2, free=5), 1), sender(spec, binary=binary))[0]
    call = taken(request, spec)
    assert (call.rows, request.rows) == (2, 2)
    (x, mask) = call.request.inputs
    assert (x.datatype, x.shape, mask.shape) == (datatype, [2, 3, 5], [2, 1])
    assert from_bytes(x.data, datatype, x.shape, name="x").size == 30


def test_a_model_without_a_batch_gets_its_shape_as_it_is() -> None:
    """A leading -1 is then a size like any other."""
    spec = model(TensorSpec("x", "FP32", (-1, 4)), rows_max=0)
    call = taken(made_up(Maker(spec, Shape(free=7), 1), sender(spec))[0], spec)
    assert (call.rows, call.request.inputs[0].shape) == (1, [7, 4])


def test_integers_are_small_enough_for_any_vocabulary_and_numbers_are_normal() -> None:
    """Random 64-bit integers would be token ids that no model has."""
    spec = model(TensorSpec("ids", "INT64", (-1, 500)), TensorSpec("x", "FP32", (-1, 500)))
    ids, x = Maker(spec, Shape(integers_below=50), 1).tensors(8)
    assert isinstance(ids.elements, np.ndarray)
    assert isinstance(x.elements, np.ndarray)
    assert (int(ids.elements.min()), int(ids.elements.max())) == (0, 49)
    assert float(x.elements.astype(float).std()) == pytest.approx(1, abs=0.05)


def test_integers_stay_within_a_narrow_type() -> None:
    """--integers-below 1000 for an INT8."""
    (t,) = Maker(model(TensorSpec("x", "INT8", (-1, 999))), Shape(integers_below=1000), 1).tensors(1)
    assert isinstance(t.elements, np.ndarray)
    assert 100 < int(t.elements.max()) <= 127


def test_texts_are_words_with_log_normal_counts() -> None:
    """Median 12, a few of them long: the mixture that batching and padding have to cope with."""
    maker = Maker(model(TensorSpec("text", "BYTES", (-1, 1))), Shape(), 1)
    counts = sorted(
        len(text.split()) for t in maker.tensors(4000) if isinstance(t.elements, list) for text in t.elements
    )
    assert statistics.median(counts) == pytest.approx(12, abs=1)
    assert counts[3960] == pytest.approx(200, rel=0.3)
    assert counts[0] >= 1


@BOTH
def test_the_seed_decides_everything(binary: bool) -> None:
    """Two runs with one seed send the same bytes."""
    spec = model(TensorSpec("x", "FP16", (-1, 4)), TensorSpec("text", "BYTES", (-1, 1)))
    one, same, other = (
        [r.message for r in made_up(Maker(spec, Shape(), seed), sender(spec, binary=binary))] for seed in (1, 1, 2)
    )
    assert one == same != other
    assert len(set(one)) == len(one) == TEXT_REQUESTS_MAX


def test_large_inputs_are_fewer_so_that_memory_is_bounded() -> None:
    """Images of 12 MB: six of them, not 256."""
    spec = model(TensorSpec("image", "FP64", (-1, 3, 700, 700)))
    made = made_up(Maker(spec, Shape(), 1), sender(spec, binary=True))
    assert REQUESTS_BYTES_MAX <= sum(len(r.message) for r in made) < REQUESTS_BYTES_MAX + len(made[0].message)


TEXT = model(TensorSpec("text", "BYTES", (-1, 1)))


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


@BOTH
def test_texts_of_a_file_are_sent_in_their_order(tmp_path: Path, binary: bool) -> None:
    """--rows 2 puts two lines into a request; what is left over is not sent."""
    path = write(tmp_path / "t.jsonl", {"text": "größer"}, "", {"text": "b", "id": 7}, {"text": "c"})
    (request,) = from_file(path, sender(TEXT, binary=binary), 2)
    tensor = taken(request, TEXT).request.inputs[0]
    assert from_bytes(tensor.data, "BYTES", tensor.shape, name="text").tolist() == [["größer".encode()], [b"b"]]


@BOTH
def test_bodies_of_a_file_are_sent_as_they_are(tmp_path: Path, binary: bool) -> None:
    """In binary their data are converted; nested lists are allowed."""
    spec = model(TensorSpec("x", "INT16", (-1, 2)))
    body = {"inputs": [{"name": "x", "datatype": "INT16", "shape": [2, 2], "data": [[1, 2], [3, 4]]}]}
    (request,) = from_file(write(tmp_path / "b.jsonl", body), sender(spec, binary=binary), 1)
    assert request.rows == 2
    tensor = taken(request, spec).request.inputs[0]
    assert from_bytes(tensor.data, "INT16", tensor.shape, name="x").tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{"], "line 1: JSONDecodeError"),
        ([{"text": "a"}, {"txt": "b"}], "line 2: ValueError: neither"),
        ([{"text": 5}], "line 1: ValueError: neither"),
        ([], "has no requests"),
        ([{"text": "a"}], "too few for one request of --rows 2"),
    ],
)
def test_a_file_that_cannot_be_sent_is_told_by_line(tmp_path: Path, lines: list[Any], told: str) -> None:
    """One line, and what was expected there."""
    with pytest.raises(CannotMeasure, match=told):
        from_file(write(tmp_path / "t.jsonl", *lines), sender(TEXT), 2)


@pytest.mark.parametrize("bad", [{"shape": [1], "datatype": "INT8", "data": [999]}, {"datatype": "INT8", "data": [9]}])
def test_a_body_that_cannot_be_made_binary_is_told(tmp_path: Path, bad: dict[str, Any]) -> None:
    """A value beyond its type, or no shape."""
    with pytest.raises(CannotMeasure, match="line 1"):
        from_file(write(tmp_path / "t.jsonl", {"inputs": [{"name": "x", **bad}]}), sender(TEXT, binary=True), 1)


def test_texts_for_a_model_of_numbers_are_refused(tmp_path: Path) -> None:
    """And what the model takes is said."""
    with pytest.raises(CannotMeasure, match=r"takes x FP32 \[-1, 4\]"):
        from_file(write(tmp_path / "t.jsonl", {"text": "a"}), sender(model(TensorSpec("x", "FP32", (-1, 4)))), 1)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """With the system's reason."""
    with pytest.raises(CannotMeasure, match="No such file"):
        from_file(tmp_path / "none.jsonl", sender(TEXT), 1)


def test_the_configuration_says_whether_there_is_a_batch() -> None:
    """Without it the leading -1 is taken for one."""
    metadata = {"inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", 4]}], "outputs": []}
    for config, rows_max, has_rows in ((None, None, True), ({"max_batch_size": 0}, 0, False), ({}, None, True)):
        spec = model_spec("m", "", metadata, config)
        assert (spec.rows_max, spec.has_rows(spec.inputs[0])) == (rows_max, has_rows)


@pytest.mark.parametrize(
    "metadata", [None, [], {}, {"inputs": 5, "outputs": []}, {"inputs": [{"name": "x", "shape": [1]}], "outputs": []}]
)
def test_metadata_of_another_kind_are_told(metadata: Any) -> None:
    """One line and no traceback."""
    with pytest.raises(CannotMeasure, match="not those of the Open Inference Protocol"):
        model_spec("m", "", metadata)


def test_an_unknown_datatype_is_told() -> None:
    """A server may be newer than we are."""
    with pytest.raises(CannotMeasure, match="FP8, which is no known datatype"):
        model_spec("m", "", {"inputs": [{"name": "x", "datatype": "FP8", "shape": [1]}], "outputs": []})


def test_what_is_an_infer_response_is_known() -> None:
    """The first answer is looked at; a proxy's welcome page is none."""
    assert looks_like_inference(b'{"outputs": []}', binary=False)
    assert looks_like_inference(b'{"outputs": []}\x00\x01', binary=True)
    assert not looks_like_inference(b"<html>", binary=False)
    assert not looks_like_inference(b"[]", binary=False)


def test_a_binary_body_asks_for_binary_outputs() -> None:
    """Otherwise half of the work would still be JSON."""
    spec = model(TensorSpec("x", "FP32", (-1, 4)))
    body, headers = infer_body(Maker(spec, Shape(), 1).tensors(1), binary=True)
    head = json.loads(body[: int(headers["Inference-Header-Content-Length"])])
    assert head["parameters"] == {"binary_data_output": True}
