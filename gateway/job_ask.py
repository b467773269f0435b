"""What a job remembers of its request, so that any gateway can render its result, whoever serves the model by then."""

import hashlib

import msgspec

from gateway.oip_reply import RenderedReply, render_infer
from gateway.oip_request import InferCall, OutputWish
from shared.keys import Queue
from shared.wire import ModelDescriptor, ReplyBody, RequestBody


class JobAsk(msgspec.Struct, frozen=True, array_like=True):
    """How a result is to be rendered. Fields are only ever appended: records outlive a release."""

    client_id: str
    default_binary: bool
    max_batch_size: int
    wishes: list[tuple[str, bool, int]] = []


PLAIN = msgspec.msgpack.encode(JobAsk("", False, 1))
"""All outputs, as JSON: for what was no job when it was asked."""
_decoder = msgspec.msgpack.Decoder(JobAsk)


def encode_ask(call: InferCall, model: ModelDescriptor) -> bytes:
    """The bytes that stay with the job."""
    wishes = [(wish.name, wish.binary, wish.classes) for wish in call.wishes]
    return msgspec.msgpack.encode(JobAsk(call.client_id, call.default_binary, model.max_batch_size, wishes))


def render_result(ask: bytes, queue: Queue, body: ReplyBody) -> RenderedReply:
    """What infer would have answered. Raises the error that `body` carries, and msgspec.DecodeError."""
    job = _decoder.decode(ask)
    call = InferCall(
        client_id=job.client_id,
        request=RequestBody([]),
        rows=1,
        timeout_us=None,
        priority=0,
        sequence_id=0,
        wishes=tuple(OutputWish(*wish) for wish in job.wishes),
        default_binary=job.default_binary,
    )
    return render_infer(call, ModelDescriptor(queue.model, queue.version, "", job.max_batch_size, [], []), body)


def digest_of(model: str, version: str, header_length: str | None, body: bytes) -> str:
    """What an idempotency key covers: the route, the body, and where its JSON ends."""
    covered = hashlib.sha256(f"{model}/{version}\n{header_length or ''}\n".encode())
    covered.update(body)
    return covered.hexdigest()
