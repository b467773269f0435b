"""OpenAI's embeddings interface on top of a model that turns one BYTES input into an FP32 vector.

Pure: a body becomes an `EmbeddingsCall`, which becomes one request for every `max_batch_size` texts, whose answers
become one reply.
"""

from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.json_body import decode_json, short, shown
from gateway.oip_reply import dump_json, numbers
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.tensors import byte_size, encode_bytes_elements
from shared.wire import ModelDescriptor, ModelTensor, ReplyBody, RequestBody, Tensor, error_of

TEXTS_MAX = 2048
"""OpenAI's own limit of one request."""


@dataclass(frozen=True, slots=True)
class EmbeddingsCall:
    """One embeddings request, understood. `dimensions` is checked against the model by `to_requests`."""

    model: str
    texts: list[str]
    encoding_format: str
    dimensions: int | None
    user: str | None


class _Request(msgspec.Struct):
    input: str | list[str | int | list[int]]
    model: str
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None


_decoder = msgspec.json.Decoder(_Request)


def parse_embeddings(body: bytes) -> EmbeddingsCall:
    """Read the body of `POST v1/embeddings`. Raises BadRequest."""
    request = decode_json(_decoder, body)
    given = [request.input] if isinstance(request.input, str) else request.input
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) != len(given):
        raise BadRequest("`input` holds token ids; send a string or a list of strings, the model has its own tokenizer")
    if not texts:
        raise BadRequest("`input` is an empty list; send at least one string")
    if len(texts) > TEXTS_MAX:
        raise BadRequest(f"`input` has {len(texts)} strings, at most {TEXTS_MAX} fit one request; split it")
    if "" in texts:
        raise BadRequest(f"`input` {texts.index('')} is an empty string; send strings of at least one character")
    encoding_format = request.encoding_format or "float"
    if encoding_format not in ("float", "base64"):
        raise BadRequest(f"encoding_format is {shown(encoding_format)}; send 'float' or 'base64'")
    return EmbeddingsCall(request.model, texts, encoding_format, request.dimensions, request.user)


def to_requests(call: EmbeddingsCall, model: ModelDescriptor) -> list[RequestBody]:
    """The texts, in order, in parts of at most `max_batch_size` rows. Raises BadRequest when `model` cannot do this."""
    text_input, output = _tensors(model)
    if call.dimensions is not None and output.shape[-1:] != [call.dimensions]:
        raise BadRequest(
            f"dimensions is {short(call.dimensions)}, model '{model.name}' gives {_width(output)} and cannot "
            f"shorten them; leave `dimensions` out"
        )
    rows_max = max(1, model.max_batch_size)
    ones = [1] * len(text_input.shape)
    requests = []
    for start in range(0, len(call.texts), rows_max):
        part = call.texts[start : start + rows_max]
        shape = [len(part), *ones] if model.max_batch_size > 0 else ones
        data = encode_bytes_elements([text.encode() for text in part])
        requests.append(RequestBody([Tensor(text_input.name, "BYTES", shape, memoryview(data))], [output.name]))
    return requests


def render_embeddings(call: EmbeddingsCall, model: ModelDescriptor, bodies: Sequence[ReplyBody]) -> bytes:
    """The reply to `call`; `bodies` answer the requests of `to_requests`, in order.

    Usage is the sum of the answers' `tokens` parameters. Raises the first error that a body carries, BadRequest for
    NaN or infinity as JSON numbers, TailraceError (model_error) when the outputs are not one vector for each text.
    """
    _, output = _tensors(model)
    data: list[dict[str, object]] = []
    tokens = 0
    for body in bodies:
        error = error_of(body)
        if error is not None:
            raise error
        tokens += int(body.parameters.get("tokens", 0))
        for embedding in _vectors(body, output, model, call.encoding_format):
            data.append({"object": "embedding", "index": len(data), "embedding": embedding})
    if len(data) != len(call.texts):
        raise _model_error(model, f"gave {len(data)} embeddings for {len(call.texts)} texts")
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    # The vectors are serialised apart from the client's words, so that a null among them can only be a number.
    text = dump_json({"object": "list", "data": data, "model": model.name, "usage": usage})
    if call.encoding_format == "float" and b"null" in dump_json([entry["embedding"] for entry in data]):
        raise BadRequest("an embedding holds NaN or infinity, which JSON cannot carry; ask for encoding_format base64")
    return text


def render_error(error: TailraceError) -> bytes:
    """The error in OpenAI's form; the status is `error.kind.status`."""
    if error.kind.status == 429:
        kind = "rate_limit_error"
    else:
        kind = "invalid_request_error" if error.kind.status < 500 else "server_error"
    return dump_json({"error": {"message": error.message, "type": kind, "code": error.kind.code, "param": None}})


def _tensors(model: ModelDescriptor) -> tuple[ModelTensor, ModelTensor]:
    """The one BYTES input, of one element a row, and the first FP32 output."""
    output = next((spec for spec in model.outputs if spec.datatype == "FP32"), None)
    if (
        output is None
        or len(model.inputs) != 1
        or model.inputs[0].datatype != "BYTES"
        or any(size not in (-1, 1) for size in model.inputs[0].shape)
    ):
        raise BadRequest(
            f"model '{model.name}' does not embed text: one BYTES input of one element a row and an FP32 output "
            f"are needed; name an embedding model"
        )
    return model.inputs[0], output


def _vectors(body: ReplyBody, output: ModelTensor, model: ModelDescriptor, encoding_format: str) -> list[object]:
    """One embedding for each row of one answer: base64 of little-endian float32, or a float32 array."""
    tensor = next((tensor for tensor in body.outputs if tensor.name == output.name), None)
    if tensor is None or tensor.datatype != "FP32" or len(tensor.data) != byte_size("FP32", tensor.shape):
        raise _model_error(model, f"gave no sound output '{output.name}'")
    rows = tensor.shape[0] if model.max_batch_size > 0 and tensor.shape else 1
    if rows == 0:
        return []
    if encoding_format == "float":
        return list(numbers(tensor).reshape(rows, -1))
    row_bytes = len(tensor.data) // rows
    return [
        b2a_base64(tensor.data[at : at + row_bytes], newline=False).decode()
        for at in range(0, rows * row_bytes, row_bytes)
    ]


def _width(output: ModelTensor) -> str:
    size = output.shape[-1] if output.shape else 1
    return f"{size} dimensions" if size >= 0 else "vectors of its own length"


def _model_error(model: ModelDescriptor, what: str) -> TailraceError:
    return TailraceError(ErrorKind.MODEL_ERROR, f"model '{model.name}' version {model.version} {what}; mend the model")
