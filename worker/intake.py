"""From a delivery to a job that is ready to run: decode the payload, view its tensors, size it up.

A delivery is one request, or a parcel: several that one gateway handed over together. A parcel is run as a whole, in
one pass, and once: whatever is unusual about it (it was delivered before, its requests cannot share a pass) is an
error, upon which its gateway hands over each of its requests by itself.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

import msgspec

from shared import clock, tensors, wire
from shared.broker.work import Delivery
from shared.bulk import BulkFolder
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.policy.batching import Waiting
from worker.models.interface import Model, ModelConfig, ModelRequest


class Member(msgspec.Struct, frozen=True, gc=False):
    """One client's request of a job."""

    id: str
    traceparent: str
    request: ModelRequest
    wanted: list[str]
    cost: int


@dataclass(slots=True)
class Job:
    """A delivery in one attempt, on its way through the worker. Stamps are monotonic ns (docs/architecture.md)."""

    delivery: Delivery
    waiting: Waiting
    members: list[Member]
    """One, or those of a parcel."""
    w0: int
    w1: int
    w2: int
    error: TailraceError | None = field(default=None)
    """Set when the payload could not be understood: the job is answered with this and never runs."""
    again: bool = False
    """The file of its tensors is not here: its gateway shall hand it over whole."""
    folder: BulkFolder | None = None
    """Where that file was; a long answer may be put there."""
    bytes_in: int = 0
    """Of its payload, or of the file."""

    @property
    def goes_again(self) -> bool:
        """If it has an error its gateway hands it over otherwise."""
        return self.again or self.is_parcel

    @property
    def is_parcel(self) -> bool:
        """Its answer is a list."""
        return self.delivery.content_type == wire.PARCEL_TYPE


_NOTHING = ModelRequest({}, {}, 1)


def receive(
    delivery: Delivery, model: Model, config: ModelConfig, *, w0: int, w1: int, bulk: BulkFolder | None = None
) -> Job:
    """Decode a delivery. Never raises: what is wrong with the request becomes the job's error."""
    members: list[Member] = []
    rows, cost, key, error = 1, 1, None, None
    again, folder, bytes_in = False, None, len(delivery.payload)
    try:
        if delivery.content_type == wire.PARCEL_TYPE:
            members, keys = _open(delivery, model, config)
            key = keys.pop()
            if keys or delivery.attempt > 1:
                error = TailraceError(ErrorKind.UNAVAILABLE, "these requests are to be run by themselves")
        else:
            _check_type(delivery)
            claim = wire.decode_claim(delivery.payload)
            if claim is None:
                body = wire.decode_request(delivery.payload)
            else:
                folder, file = bulk, _file(claim, bulk, delivery.attempt)
                body, bytes_in = wire.claimed(claim, file), len(file)
            members = [_member(delivery.id, delivery.traceparent, body, model, config)]
            key = model.batch_key(members[0].request)
        rows, cost = sum(m.request.rows for m in members), sum(m.cost for m in members)
    except TailraceError as e:
        error = e
    except OSError as e:
        error, again = TailraceError(ErrorKind.UNAVAILABLE, f"its tensors are not here: {e}"), True
    except wire.WireError as e:
        error = BadRequest(str(e))
    except Exception as e:
        # The author's `cost` or `batch_key` failed on this input.
        error = BadRequest(f"the model could not size up the request: {type(e).__name__}: {e}")
    if not members:
        members = [Member(delivery.id, delivery.traceparent, _NOTHING, [], 1)]
    w2 = clock.now_ns()
    deadline_at_ns = w1 + delivery.left_us * 1000
    waiting = Waiting(delivery.id, max(1, rows), max(1, cost), key, w2, deadline_at_ns)
    return Job(delivery, waiting, members, w0, w1, w2, error, again, folder, bytes_in)


def _file(claim: wire.Claim, bulk: BulkFolder | None, attempt: int) -> memoryview:
    if bulk is None:
        raise FileNotFoundError("this worker shares no folder with its gateway")
    if attempt > 1:
        raise FileNotFoundError("what did not go well is handed over whole, so that a dead letter keeps all of it")
    return bulk.view(claim.file)


def _open(delivery: Delivery, model: Model, config: ModelConfig) -> tuple[list[Member], set[Hashable]]:
    """The requests of a parcel, and their batch keys."""
    members = [_member(m.id, m.traceparent, m.body, model, config) for m in wire.decode_parcel(delivery.payload)]
    return members, {model.batch_key(m.request) for m in members}


def _check_type(delivery: Delivery) -> None:
    if delivery.schema > wire.SCHEMA_VERSION or delivery.content_type != wire.CONTENT_TYPE:
        raise BadRequest(
            f"this worker reads {wire.CONTENT_TYPE} up to schema {wire.SCHEMA_VERSION}; "
            f"{delivery.content_type} of schema {delivery.schema} came: upgrade the workers first"
        )


def _member(id: str, traceparent: str, body: wire.RequestBody, model: Model, config: ModelConfig) -> Member:
    inputs = {t.name: tensors.from_bytes(t.data, t.datatype, t.shape, name=t.name) for t in body.inputs}
    rows = body.inputs[0].shape[0] if config.max_batch_size and body.inputs else 1
    request = ModelRequest(inputs, body.parameters, rows)
    return Member(id, traceparent, request, body.outputs, max(1, model.cost(request)))
