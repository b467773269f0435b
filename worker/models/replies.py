"""From a model's reply to the bytes of an answer, checked against what model.toml declares."""

from collections.abc import Sequence

import numpy as np

from shared.tensors import DTYPES, to_bytes
from shared.wire import ModelTensor, ReplyBody, Tensor, encode_reply_body
from worker.models.interface import Array, ModelConfig, ModelInputError, ModelReply, ModelRequest

_OBJECT = np.dtype(object)


class ModelOutputError(Exception):
    """The model answered something else than it declares: the author's fault."""


def check_count(replies: Sequence[ModelReply], requests: Sequence[ModelRequest]) -> None:
    """Raise ModelOutputError unless there is one reply per request."""
    if len(replies) != len(requests):
        raise ModelOutputError(
            f"split returned {len(replies)} replies for {len(requests)} requests; return one for each"
        )


def encode(config: ModelConfig, request: ModelRequest, reply: ModelReply, wanted: Sequence[str]) -> bytes:
    """The encoded body of an answer with the `wanted` outputs in that order; none wanted means all.

    Raises ModelInputError for an output the model does not have, ModelOutputError for one that is not as declared.
    """
    if not isinstance(reply, ModelReply):
        raise ModelOutputError(f"split returned a {type(reply).__name__}; return ModelReply objects")
    outputs = []
    for declared in _chosen(config, wanted) if wanted else config.outputs:
        name, datatype = declared.name, declared.datatype
        if name not in reply.outputs:
            raise ModelOutputError(f"the reply has no output '{name}', which model.toml declares")
        array = _checked(config, declared, reply.outputs[name], request.rows)
        outputs.append(Tensor(name, datatype, list(array.shape), to_bytes(array, datatype)))
    return encode_reply_body(ReplyBody(outputs, reply.parameters))


def encode_failure(code: str, text: str) -> bytes:
    """The encoded body of an answer that is an error."""
    return encode_reply_body(ReplyBody(error_code=code, error=text))


def _chosen(config: ModelConfig, wanted: Sequence[str]) -> list[ModelTensor]:
    declared = {output.name: output for output in config.outputs}
    for name in wanted:
        if name not in declared:
            raise ModelInputError(
                f"unexpected inference output '{name}' for model '{config.name}'; it has {list(declared)}"
            )
    return [declared[name] for name in wanted]


def _checked(config: ModelConfig, declared: ModelTensor, array: Array, rows: int) -> Array:
    name, datatype = declared.name, declared.datatype
    if not isinstance(array, np.ndarray):
        raise ModelOutputError(f"output '{name}' is a {type(array).__name__}; replies hold numpy arrays")
    expected_dtype = _OBJECT if datatype == "BYTES" else DTYPES[datatype]
    if array.dtype != expected_dtype:
        raise ModelOutputError(
            f"output '{name}' is {array.dtype}; model.toml declares {datatype}, which is {expected_dtype} in numpy"
        )
    expected = (rows, *declared.shape) if config.max_batch_size > 0 else tuple(declared.shape)
    if array.shape != expected and not _fits(array.shape, expected):
        raise ModelOutputError(
            f"output '{name}' has shape {list(array.shape)} for {rows} rows; model.toml makes it {list(expected)}"
        )
    if config.finite and not _is_finite(array, datatype):
        raise ModelOutputError(
            f"output '{name}' holds NaN or infinity, which model.toml refuses (finite = true): look at the input"
        )
    return _as_bytes(array, name) if datatype == "BYTES" else array


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """True when they are equal but for the variable dimensions of `expected`."""
    return len(shape) == len(expected) and all(e in (-1, size) for e, size in zip(expected, shape, strict=True))


def _is_finite(array: Array, datatype: str) -> bool:
    if datatype == "BF16":  # travels as its bits: NaN and the infinities have all those of the exponent
        return not ((array & 0x7F80) == 0x7F80).any()
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _as_bytes(array: Array, name: str) -> Array:
    encoded = np.empty(array.size, dtype=object)
    for i, element in enumerate(array.ravel().tolist()):
        if not isinstance(element, bytes | str):
            raise ModelOutputError(
                f"element {i} of BYTES output '{name}' is a {type(element).__name__}; it must be bytes or str"
            )
        encoded[i] = element.encode() if isinstance(element, str) else element
    return encoded.reshape(array.shape)
