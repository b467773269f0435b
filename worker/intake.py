"""From a delivery to a job that is ready to run: decode the payload, view its tensors, size it up."""

from dataclasses import dataclass, field

from shared import clock, tensors, wire
from shared.broker.work import Delivery
from shared.errors import BadRequest, TailraceError
from shared.policy.batching import Waiting
from worker.models.interface import Model, ModelConfig, ModelRequest


@dataclass(slots=True)
class Job:
    """One request in one attempt, on its way through the worker. Stamps are monotonic ns (docs/architecture.md)."""

    delivery: Delivery
    waiting: Waiting
    request: ModelRequest
    wanted: list[str]
    w0: int
    w1: int
    w2: int
    error: TailraceError | None = field(default=None)
    """Set when the payload could not be understood: the job is answered with this and never runs."""


_NOTHING = ModelRequest({}, {}, 1)


def receive(delivery: Delivery, model: Model, config: ModelConfig, *, w0: int, w1: int) -> Job:
    """Decode a delivery. Never raises: what is wrong with the request becomes the job's error."""
    request = _NOTHING
    wanted: list[str] = []
    cost, key, error = 1, None, None
    try:
        if delivery.schema > wire.SCHEMA_VERSION or delivery.content_type != wire.CONTENT_TYPE:
            raise BadRequest(
                f"this worker reads {wire.CONTENT_TYPE} up to schema {wire.SCHEMA_VERSION}; "
                f"{delivery.content_type} of schema {delivery.schema} came: upgrade the workers first"
            )
        body = wire.decode_request(delivery.payload)
        inputs = {t.name: tensors.from_bytes(t.data, t.datatype, t.shape, name=t.name) for t in body.inputs}
        rows = body.inputs[0].shape[0] if config.max_batch_size and body.inputs else 1
        request = ModelRequest(inputs, body.parameters, rows)
        wanted = body.outputs
        cost, key = model.cost(request), model.batch_key(request)
    except TailraceError as e:
        error = e
    except wire.WireError as e:
        error = BadRequest(str(e))
    except Exception as e:
        # The author's `cost` or `batch_key` failed on this input.
        error = BadRequest(f"the model could not size up the request: {type(e).__name__}: {e}")
    w2 = clock.now_ns()
    deadline_at_ns = w1 + delivery.left_us * 1000
    waiting = Waiting(delivery.id, max(1, request.rows), max(1, cost), key, w2, deadline_at_ns)
    return Job(delivery, waiting, request, wanted, w0, w1, w2, error)
