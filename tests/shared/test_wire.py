"""The wire: messages come back as they were, without a copy, across versions; and anything else is a WireError."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared import tensors, wire
from shared.errors import ErrorKind, TailraceError
from shared.wire import (
    ModelDescriptor,
    ModelTensor,
    ReplyBody,
    RequestBody,
    Tensor,
    WireError,
    WorkerDescriptor,
    WorkerStamps,
)

names = st.text(max_size=12)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
scalars = st.one_of(st.text(max_size=12), int64s, st.floats(allow_nan=False), st.booleans())
parameters = st.dictionaries(names, scalars, max_size=4)
shapes = st.lists(st.integers(0, 1 << 40), max_size=4)
tensor = st.builds(
    Tensor, names, st.sampled_from(sorted(tensors.DATATYPES)), shapes, st.binary(max_size=64).map(memoryview)
)
requests = st.builds(RequestBody, st.lists(tensor, max_size=4), st.lists(names, max_size=3), parameters)
replies = st.builds(ReplyBody, st.lists(tensor, max_size=4), parameters, names, names)
stamps = st.builds(
    WorkerStamps,
    **{f"w{i}": int64s for i in range(9)},
    **dict.fromkeys(("attempt", "lost_us", "batch_rows", "batch_requests", "tokens_useful", "tokens_padded"), int64s),
    **dict.fromkeys(("worker", "clock", "batch_id", "close_reason"), names),
)
model_tensor = st.builds(ModelTensor, names, names, st.lists(st.integers(-1, 99), max_size=3))
models = st.builds(
    ModelDescriptor,
    names,
    names,
    names,
    int64s,
    st.lists(model_tensor, max_size=2),
    st.lists(model_tensor, max_size=2),
    names,
    parameters,
)
workers = st.builds(WorkerDescriptor, names, names, int64s, names, names, st.lists(models, max_size=2))

STAMPS = WorkerStamps(*range(9), "w-1", "clock", 1, 0, "b-1", 8, 2, "full", 10, 12)
X = np.arange(6, dtype=np.float32)
REQUEST = RequestBody([Tensor("x", "FP32", [2, 3], tensors.to_bytes(X, "FP32"))], ["y"], {"seed": 7})
WORKER = WorkerDescriptor("w-1", "host", 1, "clock", "cpu", [ModelDescriptor("m", "1", "pytorch", 8, [], [])])


def plain(tensor_list: Sequence[Tensor]) -> list[Any]:
    """Tensors as values that compare."""
    return [(t.name, t.datatype, t.shape, bytes(t.data)) for t in tensor_list]


def shares(view: memoryview, message: bytes) -> bool:
    return np.shares_memory(np.frombuffer(view, np.uint8), np.frombuffer(message, np.uint8))


# -- there and back ----------------------------------------------------------------------------------------------------


@given(requests)
def test_a_request_comes_back_as_it_was(body: RequestBody) -> None:
    """Inputs, wanted outputs and parameters with their types."""
    back = wire.decode_request(wire.encode_request(body))
    assert plain(back.inputs) == plain(body.inputs)
    assert back.outputs == body.outputs
    assert back.parameters == body.parameters
    assert [type(v) for v in back.parameters.values()] == [type(v) for v in body.parameters.values()]


@given(stamps, replies)
def test_an_answer_comes_back_as_it_was(stamps: WorkerStamps, body: ReplyBody) -> None:
    """Stamps to the nanosecond, outputs to the byte."""
    back = wire.decode_reply(wire.encode_reply(stamps, wire.encode_reply_body(body)))
    assert back.stamps == stamps
    assert plain(back.body.outputs) == plain(body.outputs)
    assert (back.body.parameters, back.body.error_code, back.body.error) == (
        body.parameters,
        body.error_code,
        body.error,
    )


@given(workers)
def test_a_descriptor_comes_back_as_it_was(worker: WorkerDescriptor) -> None:
    """What a worker says of itself and its models."""
    assert wire.decode_worker(wire.encode_worker(worker)) == worker


@pytest.mark.parametrize("datatype", sorted(tensors.DATATYPES))
def test_an_array_travels_from_end_to_end(datatype: str) -> None:
    """Array to tensor to message to tensor to array, for every datatype."""
    if datatype == "BYTES":
        array: Any = np.array([[b"", b"\0"], [b"ab", "ü".encode()]], dtype=object)
    else:
        array = np.arange(6).astype(tensors.DTYPES[datatype]).reshape(2, 3)
    sent = Tensor("x", datatype, list(array.shape), tensors.to_bytes(array, datatype))
    (came,) = wire.decode_request(wire.encode_request(RequestBody([sent]))).inputs
    back = tensors.from_bytes(came.data, came.datatype, came.shape, name=came.name)
    assert back.tolist() == array.tolist()


@given(st.lists(st.binary(min_size=1, max_size=64), min_size=1, max_size=4))
def test_decoded_tensors_share_the_memory_of_the_message(payloads: list[bytes]) -> None:
    """No tensor is copied on its way in, neither in the gateway nor in the worker."""
    sent = [Tensor("x", "UINT8", [len(p)], memoryview(p)) for p in payloads]
    request = wire.encode_request(RequestBody(sent))
    assert all(shares(t.data, request) for t in wire.decode_request(request).inputs)
    reply = wire.encode_reply(STAMPS, wire.encode_reply_body(ReplyBody(sent)))
    assert all(shares(t.data, reply) for t in wire.decode_reply(reply).body.outputs)


# -- other readers, other versions -------------------------------------------------------------------------------------


@given(requests)
def test_the_msgpack_library_reads_a_request(body: RequestBody) -> None:
    """The payload is plain msgpack: a tool in any language can look at it."""
    inputs, outputs, parameters = msgpack.unpackb(wire.encode_request(body))
    assert [tuple(t) for t in inputs] == plain(body.inputs)
    assert (outputs, parameters) == (body.outputs, body.parameters)


def test_the_bytes_of_a_message_are_these() -> None:
    """Schema 1 is fixed: whoever changes these bytes makes a new schema."""
    assert wire.encode_request(REQUEST).hex() == (
        "93" "91" "94" "a178" "a446503332" "920203" "c418"
        "000000000000803f0000004000004040000080400000a040" "91a179" "81a473656564" "07"
    )  # fmt: skip
    body = wire.encode_reply_body(ReplyBody(error_code="model_error", error="no"))
    assert body.hex() == "94" "90" "80" "ab6d6f64656c5f6572726f72" "a26e6f"  # fmt: skip
    head = (
        "dc0013" "000102030405060708" "a3772d31" "a5636c6f636b" "0100" "a3622d31" "0802" "a466756c6c" "0a0c"
    )  # fmt: skip
    assert wire.encode_reply(STAMPS, body) == b"=" + bytes([len(head) // 2, 0, 0, 0]) + bytes.fromhex(head) + body


def test_a_models_parameters_may_be_subclasses_of_plain_types() -> None:
    """numpy.float64 is a float and numpy.str_ a str, and models give them; what is neither is refused."""
    parameters: dict[str, Any] = {"score": np.float64(0.5), "label": np.str_("cat"), "ok": True, "n": 3}
    back = wire.decode_reply(wire.encode_reply(STAMPS, wire.encode_reply_body(ReplyBody([], parameters))))
    assert back.body.parameters == {"score": 0.5, "label": "cat", "ok": True, "n": 3}
    with pytest.raises(TypeError, match="float32 cannot travel"):
        wire.encode_reply_body(ReplyBody([], {"score": np.float32(0.5)}))  # type: ignore[dict-item]


def _with_more(value: Any) -> Any:
    """The message of a later version: every array of fields has one more at its end."""
    inputs, *rest = value
    return [[[*t, {"later": [1]}] for t in inputs], *rest, b"later", [[1], {"a": None}]]


@given(requests)
def test_an_old_reader_skips_what_a_new_writer_added(body: RequestBody) -> None:
    """Fields are only ever appended, in the message and in each tensor."""
    newer = msgpack.packb(_with_more(msgpack.unpackb(wire.encode_request(body))))
    assert wire.encode_request(wire.decode_request(newer)) == wire.encode_request(body)


@given(stamps, replies)
def test_an_old_gateway_reads_a_new_worker(stamps: WorkerStamps, body: ReplyBody) -> None:
    """Stamps and outputs may have grown."""
    newer_body = msgpack.packb(_with_more(msgpack.unpackb(wire.encode_reply_body(body))))
    head = msgpack.packb([*msgspec.structs.astuple(stamps), "later"])
    reply = wire.decode_reply(b"=" + len(head).to_bytes(4, "little") + head + newer_body)
    assert reply.stamps == stamps
    assert plain(reply.body.outputs) == plain(body.outputs)


def test_a_new_reader_fills_in_what_an_old_writer_did_not_know() -> None:
    """Everything but what makes a message has a default."""
    assert wire.decode_request(msgpack.packb([[]])) == RequestBody([], [], {})
    old = msgpack.packb(["w", "h", 1, "c", "cpu", [["m", "1", "p", 8, [], []]]])
    assert wire.decode_worker(old).models == [ModelDescriptor("m", "1", "p", 8, [], [], "", {})]


# -- verdicts and errors -----------------------------------------------------------------------------------------------


def test_a_verdict_of_the_broker_is_an_answer_without_stamps() -> None:
    """A script wrote it: a code, a bar, a text."""
    reply = wire.decode_reply("!deadline|too late | für alles".encode())
    assert reply.stamps is None
    assert (reply.body.error_code, reply.body.error) == ("deadline", "too late | für alles")
    assert wire.decode_reply(b"!crashed").body == ReplyBody(error_code="crashed")


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_kind_of_error_travels(kind: ErrorKind) -> None:
    """The gateway raises what the worker meant, with its status and text."""
    error = wire.error_of(ReplyBody(error_code=kind.code, error="because"))
    assert isinstance(error, TailraceError)
    assert (error.kind, error.message) == (kind, "because")


def test_an_error_of_a_later_version_is_an_internal_one() -> None:
    """An unknown code is an error still; no code is none."""
    error = wire.error_of(ReplyBody(error_code="invented_later", error="because"))
    assert error is not None
    assert (error.kind, error.message) == (ErrorKind.INTERNAL, "because")
    assert wire.error_of(ReplyBody()) is None


# -- garbage -----------------------------------------------------------------------------------------------------------

DECODERS: list[tuple[Callable[[bytes], object], bytes]] = [
    (wire.decode_request, wire.encode_request(REQUEST)),
    (wire.decode_reply, wire.encode_reply(STAMPS, wire.encode_reply_body(ReplyBody(REQUEST.inputs, {"a": 1.5})))),
    (wire.decode_worker, wire.encode_worker(WORKER)),
]
decoders = st.sampled_from(DECODERS)


@given(decoders, st.binary(max_size=64))
@example(DECODERS[1], b"")
@example(DECODERS[1], b"=")
@example(DECODERS[1], b"=\xff\xff\xff\xff")
@example(DECODERS[0], b"\xdd\xff\xff\xff\xff")
@example(DECODERS[0], b"\x91\xdd\xff\xff\xff\xff")
def test_noise_is_a_wire_error(decoder: tuple[Callable[[bytes], object], bytes], noise: bytes) -> None:
    """Whatever comes, one kind of error goes out."""
    decode, _ = decoder
    with contextlib.suppress(WireError):
        decode(noise)
    with contextlib.suppress(WireError):
        decode(b"=" + noise)


@given(decoders, st.data())
def test_a_damaged_message_is_a_wire_error_or_another_message(
    decoder: tuple[Callable[[bytes], object], bytes], data: st.DataObject
) -> None:
    """Cut, or with bytes changed anywhere."""
    decode, message = decoder
    damaged = bytearray(message)
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(message) - 1), st.integers(0, 255)), max_size=3)):
        damaged[at] = byte
    with contextlib.suppress(WireError):
        decode(bytes(damaged[: data.draw(st.integers(0, len(message)))]))


@pytest.mark.parametrize("decoder", DECODERS, ids=["request", "reply", "worker"])
def test_a_cut_message_is_a_wire_error_wherever_it_was_cut(decoder: tuple[Callable[[bytes], object], bytes]) -> None:
    """No beginning of a message is a message."""
    decode, message = decoder
    for end in range(len(message)):
        with pytest.raises(WireError):
            decode(message[:end])


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a"], ids=["arrays", "maps"])
def test_a_message_nested_without_end_is_a_wire_error(nest: bytes) -> None:
    """A field of a later version is skipped, but not a bottomless one: it once ended in a RecursionError."""
    bottomless = nest * 100_000 + b"\xc0"
    head = msgpack.packb(msgspec.structs.astuple(STAMPS))
    for decode, message in (
        (wire.decode_request, b"\x94\x90\x90\x80" + bottomless),
        (wire.decode_reply, b"=" + len(head).to_bytes(4, "little") + head + b"\x95\x90\x80\xa0\xa0" + bottomless),
        (wire.decode_worker, b"\x97\xa1w\xa1h\x01\xa1c\xa1d\x90" + bottomless),
    ):
        with pytest.raises(WireError):
            decode(message)


@pytest.mark.parametrize("text", [b"\xa2\xff\xfe", b"\xa1\x80"])
def test_text_that_is_no_text_is_a_wire_error(text: bytes) -> None:
    """Names are UTF-8."""
    with pytest.raises(WireError):
        wire.decode_request(b"\x92\x90\x91" + text)


@given(st.lists(st.tuples(names, names, names, requests), max_size=4))
def test_a_parcel_comes_back_as_it_was(members: list[tuple[str, str, str, RequestBody]]) -> None:
    """Each request in it, with its own headers."""
    packed = wire.encode_parcel([(*head, wire.encode_request(body)) for *head, body in members])
    assert [(m.id, m.traceparent, m.tracestate, m.body) for m in wire.decode_parcel(packed)] == members


@given(stamps, st.lists(replies, max_size=4))
def test_the_answers_to_a_parcel_come_back_as_they_were(head: WorkerStamps, bodies: list[ReplyBody]) -> None:
    """In order, with the same stamps; the answer to one request is none to a parcel, nor the other way round."""
    packed = wire.encode_parcel_reply(head, [wire.encode_reply_body(body) for body in bodies])
    assert wire.decode_parcel_reply(packed) == [wire.Reply(body, head) for body in bodies]
    with pytest.raises(WireError, match="neither an answer nor a verdict"):
        wire.decode_reply(packed)
    for other in (wire.encode_reply(head, wire.encode_reply_body(ReplyBody())), b"!deadline|late", b"*", packed[:-1]):
        if other != packed[:-1] or bodies:
            with pytest.raises(WireError):
                wire.decode_parcel_reply(other)


@given(requests)
def test_a_claim_gives_the_request_back(body: RequestBody) -> None:
    """The tensors lie in a file, the rest travels; together they are the request, and no request looks like a claim."""
    file = b"".join(wire.parts_of(body))
    claim = wire.decode_claim(wire.encode_claim("f" * 32, body))
    assert claim
    assert claim.file == "f" * 32
    assert wire.claimed(claim, memoryview(file)) == body
    assert wire.decode_claim(wire.encode_request(body)) is None
    assert all(at % wire.ALIGNMENT == 0 for at in _offsets(claim))


def _offsets(claim: wire.Claim) -> list[int]:
    """Where the tensors begin in the file."""
    at, offsets = 0, []
    for size in claim.sizes:
        offsets.append(at)
        at += size + -size % wire.ALIGNMENT
    return offsets


@given(requests, st.binary(max_size=200))
def test_a_claim_for_another_file_is_refused(body: RequestBody, file: bytes) -> None:
    """A file of another size is not the one that was claimed."""
    claim = wire.decode_claim(wire.encode_claim("f" * 32, body))
    assert claim
    if len(file) != sum(map(len, wire.parts_of(body))):
        with pytest.raises(WireError):
            wire.claimed(claim, memoryview(file))


@given(st.binary(max_size=60))
def test_what_only_begins_like_a_claim_is_refused(rest: bytes) -> None:
    """It is a WireError, whatever comes."""
    with contextlib.suppress(WireError):
        claim = wire.decode_claim(b"\xc1" + rest)
        assert claim
        with contextlib.suppress(WireError):
            wire.claimed(claim, memoryview(rest))


@given(stamps, replies)
def test_an_answer_in_a_file_gives_stamps_and_body_back(worker: WorkerStamps, body: ReplyBody) -> None:
    """Only such an answer names a file."""
    encoded = wire.encode_reply_body(body)
    data = wire.encode_claimed_reply(worker, "a" * 32)
    assert wire.file_of_reply(data) == "a" * 32
    assert wire.decode_reply(data, memoryview(encoded)) == wire.Reply(body, worker)
    assert wire.file_of_reply(wire.encode_reply(worker, encoded)) == ""
    with pytest.raises(WireError):
        wire.decode_reply(data)
