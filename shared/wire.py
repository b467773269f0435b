"""Messages on the wire: what a gateway asks, what a worker answers, what a worker says of itself.

Everything is msgpack, by msgspec: it writes our structs as they are, checks the types when it reads them, and hands out
each tensor as a view into the message. Messages are arrays whose fields are only ever appended, so an old reader skips
what it does not know and a new reader fills in defaults. The tests read and write them with `msgpack`, the reference
implementation, too.

The message headers (request id, schema version, content type, trace context, hand-over stamp) travel as fields of the
stream entry itself, so that they can be read with XRANGE by anything that speaks Redis.
"""

from collections.abc import Iterable, Sequence

import msgspec

from shared.errors import BY_CODE, ErrorKind, TailraceError

SCHEMA_VERSION = 1
CONTENT_TYPE = "application/msgpack"
PARCEL_TYPE = "application/msgpack; parcel"
"""Of an entry whose payload is several requests of one gateway."""
AGAIN = "again"
"""Error code in an answer: this request is to be handed over by itself, and whole."""

Scalar = str | int | float | bool


class WireError(Exception):
    """Bytes that are not a message of this protocol."""


class Tensor(msgspec.Struct, array_like=True, frozen=True):
    """One named tensor: `data` is raw little-endian, C order; `shape` in elements."""

    name: str
    datatype: str
    shape: list[int]
    data: memoryview


class RequestBody(msgspec.Struct, array_like=True, frozen=True):
    """What the model is asked. `outputs` names the wanted outputs; empty means all."""

    inputs: list[Tensor]
    outputs: list[str] = []
    parameters: dict[str, Scalar] = {}


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """A request whose tensors lie in a file (shared/bulk.py): the bytes of each, at multiples of ALIGNMENT.

    `body` is the request without them, `sizes` how many bytes each tensor has.
    """

    file: str
    sizes: list[int]
    body: RequestBody


class ParcelMember(msgspec.Struct, array_like=True, frozen=True):
    """One of the requests that share an entry; what an entry of its own would say of it."""

    id: str
    traceparent: str
    tracestate: str
    body: RequestBody


class WorkerStamps(msgspec.Struct, array_like=True, frozen=True):
    """The worker's monotonic stamps (ns), and what they belong to. See docs/architecture.md for each stamp.

    `clock` names the clock (see `clock.clock_id`). `lost_us`: from the first delivery of this request to this
    one, by Redis' clock, 0 on the first attempt.
    """

    w0: int
    w1: int
    w2: int
    w3: int
    w4: int
    w5: int
    w6: int
    w7: int
    w8: int
    worker: str
    clock: str
    attempt: int
    lost_us: int
    batch_id: str
    batch_rows: int
    batch_requests: int
    close_reason: str
    tokens_useful: int
    tokens_padded: int


class ReplyBody(msgspec.Struct, array_like=True, frozen=True):
    """What the model answered: outputs and parameters, or an error code with its text."""

    outputs: list[Tensor] = []
    parameters: dict[str, Scalar] = {}
    error_code: str = ""
    error: str = ""


class Reply(msgspec.Struct, frozen=True):
    """A decoded answer. `stamps` is None when the broker itself ended the request (deadline, worker lost)."""

    body: ReplyBody
    stamps: WorkerStamps | None


class ModelTensor(msgspec.Struct, array_like=True, frozen=True):
    """Declared input or output of a model; -1 marks a variable dimension; no batch dimension."""

    name: str
    datatype: str
    shape: list[int]


class ModelDescriptor(msgspec.Struct, array_like=True, frozen=True):
    """What a gateway must know of a model to check and route requests for it."""

    name: str
    version: str
    platform: str
    max_batch_size: int
    inputs: list[ModelTensor]
    outputs: list[ModelTensor]
    task: str = ""
    parameters: dict[str, Scalar] = {}


class WorkerDescriptor(msgspec.Struct, array_like=True, frozen=True):
    """What a worker says of itself in the fleet's directory. Its models are loaded and warm."""

    worker: str
    host: str
    pid: int
    clock: str
    device: str
    models: list[ModelDescriptor]
    bulk: str = ""
    """Token of the folder that it reads claims from; empty: it reads none."""


# Broker verdicts are plain text made by a script; worker answers are length | stamps | body. One byte tells which.
# A parcel's answer has a list of bodies, a claimed one the name of the file that its body is in.
_VERDICT = b"!"
_ANSWER = b"="
_PARCEL_ANSWER = b"*"
_CLAIMED_ANSWER = b"@"
_CLAIM = b"\xc1"
"""Before a Claim; the one byte that no msgpack has."""

ALIGNMENT = 64
"""Bytes; a processor reads whole lines of its cache."""

_NOT_OURS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises on bytes that are no message; the last on one that is nested without end."""

_EXACT_FROM, _EXACT_UNTIL = 1 << 10, 128 << 10
"""Bytes."""

_request_decoder = msgspec.msgpack.Decoder(RequestBody)
_claim_decoder = msgspec.msgpack.Decoder(Claim)
_parcel_decoder = msgspec.msgpack.Decoder(list[ParcelMember])
_stamps_decoder = msgspec.msgpack.Decoder(WorkerStamps)
_body_decoder = msgspec.msgpack.Decoder(ReplyBody)
_bodies_decoder = msgspec.msgpack.Decoder(list[ReplyBody])
_worker_decoder = msgspec.msgpack.Decoder(WorkerDescriptor)


def _plain(value: object) -> object:
    """What `msgspec` does not write of itself: a model's parameters may be subclasses (numpy.float64 is a float)."""
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"a {type(value).__name__} cannot travel; send str, int, float or bool")


# An encoder has no state: the device's thread and the event loop share it.
_pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def encode_request(body: RequestBody) -> bytes:
    """The payload of a request's record."""
    packed = _pack(body)
    # msgspec leaves half as much again unused behind what it wrote, for as long as the bytes live, and a gateway keeps
    # these until the answer comes. Of less it is not worth a copy, of more the pages are never touched, so not taken.
    return memoryview(packed).tobytes() if _EXACT_FROM <= len(packed) <= _EXACT_UNTIL else packed


def parts_of(body: RequestBody) -> list[memoryview | bytes]:
    """What the file of a Claim holds: the bytes of the tensors, each with what fills it up to the ALIGNMENT."""
    parts: list[memoryview | bytes] = []
    for tensor in body.inputs:
        parts += (tensor.data, bytes(-len(tensor.data) % ALIGNMENT))
    return parts


def encode_claim(file: str, body: RequestBody) -> bytes:
    """The payload of a request whose tensors (`parts_of`) are in a file."""
    bare = [msgspec.structs.replace(tensor, data=memoryview(b"")) for tensor in body.inputs]
    sizes = [len(tensor.data) for tensor in body.inputs]
    return _CLAIM + _pack(Claim(file, sizes, msgspec.structs.replace(body, inputs=bare)))


def decode_claim(payload: bytes) -> Claim | None:
    """Inverse of `encode_claim`; None: the payload is the request itself. Raises WireError."""
    if payload[:1] != _CLAIM:
        return None
    try:
        return _claim_decoder.decode(memoryview(payload)[1:])
    except _NOT_OURS as e:
        raise WireError(f"the payload is not a claim of schema {SCHEMA_VERSION}: {e}") from e


def claimed(claim: Claim, file: memoryview) -> RequestBody:
    """The request whose tensors are in `file`, as views into it. Raises WireError when the file is another one."""
    inputs, at = [], 0
    if len(claim.sizes) != len(claim.body.inputs):
        raise WireError(f"the claim has {len(claim.sizes)} sizes of {len(claim.body.inputs)} tensors")
    for tensor, size in zip(claim.body.inputs, claim.sizes, strict=True):
        inputs.append(msgspec.structs.replace(tensor, data=file[at : at + size]))
        at += size + -size % ALIGNMENT
    if at != len(file):
        raise WireError(f"the claim is for {at} bytes, its file has {len(file)}")
    return msgspec.structs.replace(claim.body, inputs=inputs)


def encode_parcel(members: Iterable[tuple[str, str, str, bytes]]) -> bytes:
    """The payload of several requests: of each its id, traceparent, tracestate and own encoded payload."""
    return _pack([(id, parent, state, msgspec.Raw(payload)) for id, parent, state, payload in members])


def decode_parcel(payload: bytes | memoryview) -> list[ParcelMember]:
    """Inverse of `encode_parcel`; tensors are views into `payload`. Raises WireError."""
    try:
        return _parcel_decoder.decode(payload)
    except _NOT_OURS as e:
        raise WireError(f"the payload is not a parcel of schema {SCHEMA_VERSION}: {e}") from e


def decode_request(payload: bytes | memoryview) -> RequestBody:
    """Inverse of `encode_request`; tensors are views into `payload`. Raises WireError."""
    try:
        return _request_decoder.decode(payload)
    except _NOT_OURS as e:
        raise WireError(f"the payload is not a request of schema {SCHEMA_VERSION}: {e}") from e


def encode_reply_body(body: ReplyBody) -> bytes:
    """The expensive part of an answer, made where the outputs are."""
    return _pack(body)


def encode_reply(stamps: WorkerStamps, encoded_body: bytes) -> bytes:
    """A whole answer; cheap, so that the last stamp can be taken right before it is sent."""
    head = _pack(stamps)
    return b"".join((_ANSWER, len(head).to_bytes(4, "little"), head, encoded_body))


def encode_claimed_reply(stamps: WorkerStamps, file: str) -> bytes:
    """An answer whose encoded body is in a file (shared/bulk.py)."""
    head = _pack(stamps)
    return b"".join((_CLAIMED_ANSWER, len(head).to_bytes(4, "little"), head, file.encode()))


def file_of_reply(data: bytes) -> str:
    """The file that the body of an answer is in; nothing when it is in the answer."""
    if data[:1] != _CLAIMED_ANSWER or len(data) < 5:
        return ""
    return data[5 + int.from_bytes(data[1:5], "little") :].decode("ascii", "replace")


def encode_parcel_reply(stamps: WorkerStamps, encoded_bodies: Sequence[bytes]) -> bytes:
    """The answer to a parcel: what its requests have in common, then the body of each, in their order."""
    head = _pack(stamps)
    bodies = _pack([msgspec.Raw(body) for body in encoded_bodies])
    return b"".join((_PARCEL_ANSWER, len(head).to_bytes(4, "little"), head, bodies))


def decode_parcel_reply(data: bytes) -> list[Reply]:
    """The reply to each request of a parcel. Raises WireError, and does so on the answer to a single request too."""
    if data[:1] != _PARCEL_ANSWER or len(data) < 5:
        raise WireError(f"no answer to a parcel: it begins with {data[:5]!r}")
    head = 5 + int.from_bytes(data[1:5], "little")
    try:
        view = memoryview(data)
        stamps = _stamps_decoder.decode(view[5:head])
        return [Reply(body, stamps) for body in _bodies_decoder.decode(view[head:])]
    except _NOT_OURS as e:
        raise WireError(f"the answer is not of schema {SCHEMA_VERSION}: {e}") from e


def decode_reply(data: bytes, file: memoryview | None = None) -> Reply:
    """Read an answer or a verdict of the broker; tensors are views into `data`. Raises WireError.

    `file` has the body of an answer for which `file_of_reply` names one.
    """
    if data[:1] == _VERDICT:
        code, _, text = data[1:].decode("utf-8", "replace").partition("|")
        return Reply(ReplyBody(error_code=code, error=text), None)
    if data[:1] != (_ANSWER if file is None else _CLAIMED_ANSWER) or len(data) < 5:
        raise WireError(f"neither an answer nor a verdict: it begins with {data[:5]!r}")
    head = 5 + int.from_bytes(data[1:5], "little")
    try:
        view = memoryview(data)
        body = view[head:] if file is None else file
        return Reply(_body_decoder.decode(body), _stamps_decoder.decode(view[5:head]))
    except _NOT_OURS as e:
        raise WireError(f"the answer is not of schema {SCHEMA_VERSION}: {e}") from e


def error_of(body: ReplyBody) -> TailraceError | None:
    """The error that `body` carries, or None when it is an answer."""
    if not body.error_code:
        return None
    return TailraceError(BY_CODE.get(body.error_code, ErrorKind.INTERNAL), body.error)


def encode_worker(descriptor: WorkerDescriptor) -> bytes:
    """A worker's entry in the fleet's directory."""
    return _pack(descriptor)


def decode_worker(data: bytes) -> WorkerDescriptor:
    """Inverse of `encode_worker`. Raises WireError."""
    try:
        return _worker_decoder.decode(data)
    except _NOT_OURS as e:
        raise WireError(f"not a worker's descriptor: {e}") from e
