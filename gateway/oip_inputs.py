"""The inputs of an infer request: checked against the model, gathered from JSON and from the binary tail.

The tail holds the bytes of the binary inputs in the order of the request, without separators. Dimensions are plain
Python integers until they are known to fit the data, so nothing can overflow before it is refused.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec

from gateway.json_body import short, shown
from gateway.oip_json import json_to_bytes
from shared.errors import BadRequest
from shared.tensors import DATATYPES, DTYPES, from_bytes
from shared.wire import ModelDescriptor, ModelTensor, Tensor

ELEMENTS_MAX = 2**40
"""Bound on the product of a shape's non-zero dimensions. An empty tensor has no data that would bound it."""


class InputParameters(msgspec.Struct):
    """What the protocol knows of an input's parameters; others are ignored."""

    binary_data_size: int | None = None
    shared_memory_region: str | None = None


class Input(msgspec.Struct):
    """One entry of `inputs`. `data` stays raw until the datatype is known."""

    name: str
    shape: list[int]
    datatype: str
    parameters: InputParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


def gather_inputs(inputs: Sequence[Input], tail: memoryview, model: ModelDescriptor) -> tuple[list[Tensor], int]:
    """The tensors in the model's order, and the rows they agree on (1 for a model without a batch dimension).

    Binary tensors are views into `tail`. Raises BadRequest.
    """
    found: dict[str, Tensor] = {}
    at = 0
    for entry in inputs:
        spec = _declared(entry, model)
        if spec.name in found:
            raise BadRequest(f"input '{spec.name}' came twice; send each input once")
        count = _check_shape(entry, spec, model)
        size = _binary_size(entry)
        if size is None:
            data = memoryview(json_to_bytes(entry.data, spec.datatype, entry.shape, count, name=spec.name))
        else:
            data = tail[at : at + size]
            _check_binary(data, size, entry, count)
            at += size
        found[spec.name] = Tensor(spec.name, spec.datatype, entry.shape, data)
    if len(found) < len(model.inputs):
        raise _missing(found, model)
    if at != len(tail):
        raise BadRequest(
            f"unexpected additional input data: the binary inputs take {at} bytes, {len(tail)} follow the JSON; "
            f"send as many as the binary_data_size of all inputs together"
        )
    tensors = [found[spec.name] for spec in model.inputs]
    return tensors, _rows(tensors, model)


def whole_body_input(body: memoryview, model: ModelDescriptor) -> Tensor:
    """The body as the one input of `model`, batch 1; one variable dimension follows from the size of the body.

    A BYTES body is one element. Raises BadRequest.
    """
    if len(model.inputs) != 1:
        raise BadRequest(
            f"a raw binary request (Inference-Header-Content-Length: 0) needs a model with exactly one input, "
            f"'{model.name}' takes {_names(model.inputs)}; send JSON, or JSON followed by the binary tensors"
        )
    spec = model.inputs[0]
    batch = [1] if model.max_batch_size > 0 else []
    if spec.datatype == "BYTES":
        shape = [1 if size < 0 else size for size in spec.shape]
        if math.prod(shape) != 1:
            raise BadRequest(
                f"input '{spec.name}': unexpected size for input: a raw binary request is one BYTES element, "
                f"shape {spec.shape} takes {math.prod(shape)}; send JSON, or a binary tensor"
            )
        return Tensor(
            spec.name, spec.datatype, batch + shape, memoryview(len(body).to_bytes(4, "little") + bytes(body))
        )
    shape = _deduced(spec, len(body))
    _check_binary(body, len(body), Input(spec.name, batch + shape, spec.datatype), math.prod(shape))
    return Tensor(spec.name, spec.datatype, batch + shape, body)


def _declared(entry: Input, model: ModelDescriptor) -> ModelTensor:
    """What the model says of this input. Raises BadRequest."""
    for spec in model.inputs:
        if spec.name == entry.name:
            return spec
    raise BadRequest(
        f"unknown input {shown(entry.name)}: model '{model.name}' takes {_names(model.inputs)}; send only these"
    )


def _missing(found: Mapping[str, Tensor], model: ModelDescriptor) -> BadRequest:
    missing = [spec for spec in model.inputs if spec.name not in found]
    return BadRequest(
        f"missing input {_names(missing)}: model '{model.name}' takes {_names(model.inputs)}, "
        f"{', '.join(map(repr, found)) or 'none'} came; send all of them"
    )


def _check_shape(entry: Input, spec: ModelTensor, model: ModelDescriptor) -> int:
    """Elements of the input, once datatype, rank and every dimension are those the model declares."""
    if entry.datatype != spec.datatype:
        known = "" if entry.datatype in DATATYPES else ", which is no datatype of the protocol"
        raise BadRequest(
            f"input '{spec.name}' is {shown(entry.datatype)}{known}; model '{model.name}' takes "
            f"{spec.datatype}: convert the tensor and send it as {spec.datatype}"
        )
    shape = entry.shape
    if shape and min(shape) > 0 and (shape[1:] if model.max_batch_size > 0 else shape) == spec.shape:
        count = math.prod(shape)
        if count <= ELEMENTS_MAX:
            return count  # the common case: what the model declares, to the letter
    expected = [-1, *spec.shape] if model.max_batch_size > 0 else spec.shape
    if len(shape) != len(expected):
        batch = "; the first dimension is the batch" if model.max_batch_size > 0 else ""
        raise BadRequest(
            f"input '{spec.name}' has rank {len(shape)} (shape {_shape(shape)}), model '{model.name}' takes rank "
            f"{len(expected)} (shape {expected}, -1 meaning any){batch}; reshape the tensor"
        )
    for size, wanted in zip(shape, expected, strict=True):
        if size < 0 or size != wanted >= 0:
            raise BadRequest(
                f"input '{spec.name}' has shape {_shape(shape)}, model '{model.name}' takes {expected}"
                f"{', -1 meaning any size from 0' if -1 in expected else ''}; "
                f"reshape the tensor, and state every dimension"
            )
    count = math.prod(shape)
    if (count or math.prod(size for size in shape if size)) > ELEMENTS_MAX:
        raise BadRequest(
            f"input '{spec.name}' has shape {_shape(shape)}: its dimensions multiply to more than {ELEMENTS_MAX} "
            f"elements; send a smaller tensor"
        )
    return count


def _binary_size(entry: Input) -> int | None:
    """Bytes this input takes from the tail; None when it came as JSON."""
    given = entry.parameters
    size = given.binary_data_size if given is not None else None
    if given is not None and given.shared_memory_region is not None:
        raise BadRequest(
            f"input '{entry.name}' is in shared memory region {shown(given.shared_memory_region)}: shared memory is "
            f"unsupported; send the tensor in the request, as JSON or binary"
        )
    data = memoryview(entry.data)
    has_data = len(data) > 4 or bytes(data) not in (b"", b"null")
    if size is None:
        if not has_data:
            raise BadRequest(
                f"input '{entry.name}' has no data: `data` or parameters.binary_data_size was expected, none came"
            )
        return None
    if has_data:
        raise BadRequest(f"input '{entry.name}' has both `data` and parameters.binary_data_size; send one of them")
    if not 0 <= size < 2**63:
        raise BadRequest(f"input '{entry.name}' has binary_data_size {short(size)}; send its number of bytes, from 0")
    return size


def _check_binary(data: memoryview, size: int, entry: Input, count: int) -> None:
    """Raises BadRequest unless the `size` announced bytes came and are `count` elements."""
    if entry.datatype != "BYTES":
        expected = count * DTYPES[entry.datatype].itemsize
        if size != expected:
            raise BadRequest(
                f"input '{entry.name}': unexpected size for input: {entry.datatype} {entry.shape} takes {expected} "
                f"bytes, {size} came or were announced; send the tensor's bytes, little-endian, in C order"
            )
    if len(data) != size:
        raise BadRequest(
            f"input '{entry.name}': unexpected size for input: binary_data_size is {size}, {len(data)} bytes are left "
            f"after the JSON; send them all, and the length of the JSON in Inference-Header-Content-Length"
        )
    if entry.datatype == "BYTES":
        from_bytes(data, "BYTES", entry.shape, name=entry.name)
    elif entry.datatype == "BOOL" and bytes(data).translate(None, b"\0\1"):
        raise BadRequest(f"input '{entry.name}' is BOOL but has bytes other than 0 and 1; send one byte, 0 or 1, each")


def _rows(tensors: Sequence[Tensor], model: ModelDescriptor) -> int:
    if model.max_batch_size < 1 or not tensors:
        return 1
    rows = tensors[0].shape[0]
    if rows > model.max_batch_size:
        raise BadRequest(
            f"batch of {rows} rows: model '{model.name}' takes at most {model.max_batch_size}; split the request"
        )
    for tensor in tensors:
        if tensor.shape[0] != rows:
            raise BadRequest(
                f"the inputs disagree about the batch: '{tensors[0].name}' has {rows} rows, '{tensor.name}' "
                f"{tensor.shape[0]}; send the same first dimension for all inputs"
            )
    return rows


def _deduced(spec: ModelTensor, body_bytes: int) -> list[int]:
    """The declared shape, its one variable dimension filled in from the size of the body."""
    wild = [axis for axis, size in enumerate(spec.shape) if size < 0]
    if len(wild) > 1:
        raise BadRequest(
            f"input '{spec.name}' has shape {spec.shape}: a raw binary request can fill in one variable dimension, "
            f"not {len(wild)}; send JSON with the shape, followed by the binary tensor"
        )
    row = math.prod(size for size in spec.shape if size >= 0) * DTYPES[spec.datatype].itemsize
    if wild and (row == 0 or body_bytes % row):
        _not_a_multiple(spec, row, body_bytes)
    return [body_bytes // row if size < 0 else size for size in spec.shape]


def _not_a_multiple(spec: ModelTensor, row_bytes: int, body_bytes: int) -> NoReturn:
    raise BadRequest(
        f"input '{spec.name}': unexpected size for input: {spec.datatype} {spec.shape} takes a multiple of {row_bytes} "
        f"bytes, {body_bytes} came"
    )


def _names(tensors: Sequence[ModelTensor]) -> str:
    return ", ".join(repr(tensor.name) for tensor in tensors)


def _shape(shape: Sequence[int]) -> str:
    """A shape the client chose, shortened."""
    return short(shape[:16]) + ("..." if len(shape) > 16 else "")
