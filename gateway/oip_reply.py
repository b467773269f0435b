"""A worker's answer to the reply of the Open Inference Protocol: JSON, then the binary outputs in the same order.

orjson prints numpy arrays itself: float32 with the shortest digits that give the same float32 back, which `tolist`
would turn into the 17 digits of a double. It prints NaN and the infinities as null, so "null" is looked for.
"""

import math
from typing import NamedTuple

import numpy as np
import orjson

from gateway.oip_request import NO_CLASSES, InferCall
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.tensors import DTYPES, Array, encode_bytes_elements, from_bytes
from shared.wire import ModelDescriptor, ReplyBody, Tensor, error_of

JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"


class RenderedReply(NamedTuple):
    """A 200. `json_length` is the Inference-Header-Content-Length header; None: no binary tail, no such header."""

    body: bytes
    content_type: str
    json_length: int | None


def render_infer(call: InferCall, model: ModelDescriptor, body: ReplyBody) -> RenderedReply:
    """The reply to `call`: requested outputs in requested order, or all in the model's order.

    Raises the error that `body` carries; BadRequest when the client wants as JSON what JSON cannot carry;
    TailraceError (model_error) when the outputs are not those of the model.
    """
    error = error_of(body)
    if error is not None:
        raise error
    tail: list[memoryview | bytes] = []
    outputs: list[dict[str, object]] = []
    for tensor, binary, classes in _chosen(call, model, body):
        _check_size(tensor, model)
        if classes:
            tensor = _top_classes(tensor, classes, batched=model.max_batch_size > 0)
        output: dict[str, object] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if binary:
            output["parameters"] = {"binary_data_size": len(tensor.data)}
            tail.append(tensor.data)
        else:
            output["data"] = _json_data(tensor)
        outputs.append(output)
    head: dict[str, object] = {"model_name": model.name, "model_version": model.version}
    if call.client_id:
        head = {"id": call.client_id, **head}
    if body.parameters:
        head["parameters"] = body.parameters
    head["outputs"] = outputs
    text = dump_json(head)
    if b"null" in text:
        _check_finite(outputs)
    if tail and any(tail):
        return RenderedReply(b"".join((text, *tail)), BINARY_TYPE, len(text))
    return RenderedReply(text, JSON_TYPE, None)


def empty_reply(model: ModelDescriptor) -> ReplyBody:
    """The answer to a batch of 0 rows: every output of `model`, with no rows and no data."""
    return ReplyBody(
        [
            Tensor(spec.name, spec.datatype, [0, *(max(size, 0) for size in spec.shape)], memoryview(b""))
            for spec in model.outputs
        ]
    )


def dump_json(value: object) -> bytes:
    """JSON of plain values and of one-dimensional numpy arrays; NaN and infinities become null."""
    return orjson.dumps(value, None, orjson.OPT_SERIALIZE_NUMPY)


def numbers(tensor: Tensor) -> Array:
    """The elements of a numeric tensor, flat; a view where the processor can read it in place."""
    array = np.frombuffer(tensor.data, DTYPES[tensor.datatype])
    return array if array.flags.aligned else array.copy()


def _chosen(call: InferCall, model: ModelDescriptor, body: ReplyBody) -> list[tuple[Tensor, bool, int]]:
    """(output, as binary, classes) in the order of the reply."""
    if not call.wishes:
        return [(tensor, call.default_binary, 0) for tensor in body.outputs]
    given = {tensor.name: tensor for tensor in body.outputs}
    chosen = []
    for wish in call.wishes:
        tensor = given.get(wish.name)
        if tensor is None:
            raise _model_error(model, f"gave no output '{wish.name}', which it declares")
        chosen.append((tensor, wish.binary, wish.classes))
    return chosen


def _check_size(tensor: Tensor, model: ModelDescriptor) -> None:
    dtype = DTYPES.get(tensor.datatype)
    if dtype is None:
        if tensor.datatype == "BYTES":
            return
        raise _model_error(model, f"gave output '{tensor.name}' of unknown datatype {tensor.datatype}")
    expected = math.prod(tensor.shape) * dtype.itemsize
    if len(tensor.data) != expected:
        raise _model_error(
            model,
            f"gave output '{tensor.name}' as {tensor.datatype} {tensor.shape}, which takes {expected} bytes, "
            f"with {len(tensor.data)} bytes",
        )


def _json_data(tensor: Tensor) -> Array | list[str]:
    if tensor.datatype == "BF16":
        raise BadRequest(f"output '{tensor.name}' is BF16, which JSON cannot carry; {_ASK_BINARY}")
    if tensor.datatype != "BYTES":
        return numbers(tensor)
    elements: list[bytes] = from_bytes(tensor.data, "BYTES", tensor.shape, name=tensor.name).ravel().tolist()
    try:
        return [element.decode("utf-8") for element in elements]
    except UnicodeDecodeError as e:
        raise BadRequest(
            f"output '{tensor.name}' holds bytes that are not UTF-8 ({e.reason}); JSON cannot carry them; {_ASK_BINARY}"
        ) from None


def _check_finite(outputs: list[dict[str, object]]) -> None:
    """The text has a "null" in it: find out whether a number became one or something is merely called so."""
    for output in outputs:
        data = output.get("data")
        if isinstance(data, np.ndarray) and not np.isfinite(data).all():
            raise BadRequest(f"output '{output['name']}' holds NaN or infinity, which JSON cannot carry; {_ASK_BINARY}")


def _top_classes(tensor: Tensor, classes: int, *, batched: bool) -> Tensor:
    """The classification extension: BYTES "value:index", the highest first; of equal values the lower index first."""
    if tensor.datatype in NO_CLASSES:
        raise BadRequest(
            f"output '{tensor.name}' is {tensor.datatype}, which has no classification; ask for the tensor"
        )
    rows = tensor.shape[0] if batched and tensor.shape else 1
    width = math.prod(tensor.shape[1:] if batched else tensor.shape)
    top = min(classes, width)
    values = numbers(tensor).reshape(rows, width)
    # An ascending stable sort of the reversed row, read backwards: descending, and stable. (-values fails for UINT.)
    order = width - 1 - np.argsort(values[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :top]
    best = np.take_along_axis(values, order, axis=1)
    form = "%f:%d" if tensor.datatype.startswith("FP") else "%d:%d"
    pairs = zip(best.ravel().tolist(), order.ravel().tolist(), strict=True)
    data = encode_bytes_elements([(form % pair).encode() for pair in pairs])
    return Tensor(tensor.name, "BYTES", [rows, top] if batched else [top], memoryview(data))


def _model_error(model: ModelDescriptor, what: str) -> TailraceError:
    return TailraceError(ErrorKind.MODEL_ERROR, f"model '{model.name}' version {model.version} {what}; mend the model")


_ASK_BINARY = "ask for it as binary (parameters.binary_data of the output, or binary_data_output of the request)"
