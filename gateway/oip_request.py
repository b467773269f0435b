"""An infer request of the Open Inference Protocol, with the binary tensor extension, to what a worker is asked.

Pure: the body goes in, an `InferCall` comes out, or a TailraceError that says what was expected and what came.
The rules are those of Triton's HTTP server, so that its clients notice no difference.
"""

from collections.abc import Mapping

import msgspec

from gateway.json_body import decode_json, short, shown
from gateway.oip_inputs import Input, gather_inputs, whole_body_input
from shared.errors import BadRequest
from shared.wire import ModelDescriptor, RequestBody, Scalar

RESERVED_PREFIX = "triton_"
NO_CLASSES = frozenset({"FP16", "BF16", "BYTES"})
"""Datatypes that the classification extension refuses."""


# Structs and not dataclasses: a frozen dataclass of this size takes 2 us more to make, on every request.
class OutputWish(msgspec.Struct, frozen=True):
    """How one requested output is to be rendered; `classes` > 0 asks for the top classes instead of the tensor."""

    name: str
    binary: bool
    classes: int


class InferCall(msgspec.Struct, frozen=True):
    """One infer request, understood. `wishes` is empty when all outputs are wanted, each rendered by `default_binary`.

    `rows` is the batch dimension, 1 for a model without one, and 0 for an empty batch, which needs no worker
    (see `oip_reply.empty_reply`). `timeout_us` is None when the client set none.
    """

    client_id: str
    request: RequestBody
    rows: int
    timeout_us: int | None
    priority: int
    sequence_id: int | str
    wishes: tuple[OutputWish, ...]
    default_binary: bool

    def without_request(self) -> "InferCall":
        """What rendering the answer needs, without the tensors."""
        return msgspec.structs.replace(self, request=_NOTHING)


_NOTHING = RequestBody([])


class _OutputParameters(msgspec.Struct):
    binary_data: bool | None = None
    classification: int | None = None
    shared_memory_region: str | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters | None = None


class _Request(msgspec.Struct):
    inputs: list[Input]
    id: str | None = None
    outputs: list[_Output] | None = None
    parameters: dict[str, Scalar] | None = None


class _Settings(msgspec.Struct):
    """The protocol's own parameters; `passed` are the others, meant for the model."""

    binary_data_output: bool = False
    timeout: int = 0
    priority: int = 0
    sequence_id: int | str = 0
    passed: dict[str, Scalar] = {}


_decoder = msgspec.json.Decoder(_Request)
_NO_TAIL = memoryview(b"")
_NO_SETTINGS = _Settings()


def parse_infer(body: bytes | memoryview, header_length: str | None, model: ModelDescriptor) -> InferCall:
    """Read the body of `POST v2/models/{M}/infer`, decompressed.

    `header_length` is the Inference-Header-Content-Length header, None when absent. Binary inputs are views into
    `body`; all inputs come in the model's order. Raises BadRequest.
    """
    text, tail = body, _NO_TAIL
    if header_length is not None:
        json_bytes = _json_length(header_length, len(body))
        if json_bytes == 0:
            _check_json_outputs(model, default_binary=True)
            tensor = whole_body_input(memoryview(body), model)
            return InferCall("", RequestBody([tensor]), 1, None, 0, 0, (), True)
        text, tail = memoryview(body)[:json_bytes], memoryview(body)[json_bytes:]
    request = decode_json(_decoder, text if isinstance(text, bytes) else bytes(text))
    tensors, rows = gather_inputs(request.inputs, tail, model)
    settings = _settings(request.parameters) if request.parameters else _NO_SETTINGS
    default_binary = settings.binary_data_output
    wishes = _wishes(request.outputs, model, default_binary) if request.outputs else ()
    if not wishes:
        _check_json_outputs(model, default_binary)
    return InferCall(
        request.id or "",
        RequestBody(tensors, [wish.name for wish in wishes], settings.passed),
        rows,
        settings.timeout or None,
        settings.priority,
        settings.sequence_id,
        wishes,
        default_binary,
    )


def _json_length(header_length: str, body_bytes: int) -> int:
    # Longer than 20 digits is beyond any body, and int() itself refuses thousands.
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) <= 20):
        raise BadRequest(
            f"Inference-Header-Content-Length is {shown(header_length)}; "
            f"send the length in bytes of the JSON in front of the binary tensors, as a decimal integer from 0"
        )
    length = int(header_length)
    if length > body_bytes:
        raise BadRequest(
            f"Inference-Header-Content-Length is {length}, the whole body (decompressed) has {body_bytes} bytes; "
            f"send the length in bytes of the JSON alone"
        )
    return length


def _settings(parameters: Mapping[str, Scalar]) -> _Settings:
    settings = _Settings()
    for key, value in parameters.items():
        match key:
            case "binary_data_output":
                settings.binary_data_output = _flag(key, value)
            case "timeout":
                settings.timeout = _count(key, value, "microseconds, 0 for no limit")
            case "priority":
                settings.priority = _count(key, value, "0 for the default, 1 the highest")
            case "sequence_start" | "sequence_end":
                _flag(key, value)
            case "sequence_id":
                settings.sequence_id = value if isinstance(value, str) else _count(key, value, "or a string")
            case _ if key.startswith(RESERVED_PREFIX):
                raise BadRequest(
                    f"parameter {shown(key)}: names beginning with '{RESERVED_PREFIX}' are reserved; choose another"
                )
            case _:
                if isinstance(value, int) and not -(2**63) <= value < 2**64:
                    raise BadRequest(f"parameter {shown(key)} does not fit 64 bits; send it as a string")
                settings.passed[key] = value
    return settings


def _flag(key: str, value: Scalar) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"parameter '{key}' is {short(value)}; send true or false")
    return value


def _count(key: str, value: Scalar, meaning: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise BadRequest(f"parameter '{key}' is {short(value)}; send an integer from 0 ({meaning})")
    return value


def _wishes(outputs: list[_Output], model: ModelDescriptor, default_binary: bool) -> tuple[OutputWish, ...]:
    datatypes = {spec.name: spec.datatype for spec in model.outputs}
    wishes: dict[str, OutputWish] = {}
    for output in outputs:
        name = output.name
        datatype = datatypes.get(name)
        if datatype is None:
            raise BadRequest(
                f"unknown output {shown(name)}: model '{model.name}' gives {', '.join(map(repr, datatypes))}; "
                f"ask for these, or leave `outputs` out to get all"
            )
        if name in wishes:
            raise BadRequest(f"output '{name}' is requested twice; ask for each output once")
        wishes[name] = wish = _wish(output, datatype, default_binary)
        if not wish.binary and not wish.classes and datatype == "BF16":
            raise _no_json(name)
    return tuple(wishes.values())


def _wish(output: _Output, datatype: str, default_binary: bool) -> OutputWish:
    given = output.parameters
    if given is None:
        return OutputWish(output.name, default_binary, 0)
    if given.shared_memory_region is not None:
        raise BadRequest(
            f"output '{output.name}' is wanted in shared memory region {shown(given.shared_memory_region)}: shared "
            f"memory is unsupported; take the tensor from the reply, as JSON or binary"
        )
    classes = given.classification or 0
    if classes < 0:
        raise BadRequest(
            f"output '{output.name}': classification is {short(classes)}; send how many top classes, from 1"
        )
    if classes and datatype in NO_CLASSES:
        raise BadRequest(
            f"output '{output.name}' is {datatype}, which has no classification; leave `classification` out"
        )
    return OutputWish(output.name, default_binary if given.binary_data is None else given.binary_data, classes)


def _check_json_outputs(model: ModelDescriptor, default_binary: bool) -> None:
    """Refuse before any work is done what could not be rendered in the end."""
    if not default_binary:
        for spec in model.outputs:
            if spec.datatype == "BF16":
                raise _no_json(spec.name)


def _no_json(output: str) -> BadRequest:
    return BadRequest(
        f"output '{output}' is BF16, which JSON cannot carry; ask for it as binary "
        f"(parameters.binary_data of the output, or parameters.binary_data_output of the request)"
    )
