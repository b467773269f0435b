"""A model that a worker serves: its limits, its requests that wait for the device, how its traffic and passes are."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.keys import Queue
from shared.policy import batching, prefetch, service_time
from shared.policy.arrivals import ArrivalRate
from shared.policy.service_time import Form, Law, ServiceTime
from worker.intake import Job
from worker.models.interface import Model, ModelConfig

MEAN_WEIGHT = 0.05
"""How fast the mean rows and cost of a request follow the traffic."""
LOOK_AHEAD_BATCHES = 4
"""A model that pads chooses requests of like length from so many batches' worth."""
PACE_PASSES = 64
"""The best of so many passes tells how fast this worker can be."""


@dataclass(slots=True)
class Served:
    """A model this worker serves, and its requests that wait here for the device, oldest first."""

    queue: Queue
    config: ModelConfig
    model: Model
    limits: batching.BatchLimits
    service_time: ServiceTime
    jobs: dict[str, Job] = field(default_factory=dict)
    mean_rows: float = 1.0
    mean_cost: float = 1.0
    passes: int = 0
    shapes: set[int] = field(default_factory=set)
    running: dict[str, list[str]] = field(default_factory=dict)
    """Ids of what the device computes now, by batch."""
    noted: list[str] = field(default_factory=list)
    """Ids that Redis was last told of as running here."""
    arrivals: ArrivalRate = field(default_factory=ArrivalRate)
    law: Law | None = None
    """How long passes take; None while that is not known well enough."""
    paces_us: "deque[int]" = field(default_factory=lambda: deque(maxlen=PACE_PASSES))

    def waiting(self) -> list[batching.Waiting]:
        """What the policies see."""
        return [job.waiting for job in self.jobs.values()]

    def want(self) -> int:
        """How many requests to ask for now."""
        return prefetch.how_many(
            held=len(self.jobs),
            held_rows=sum(j.waiting.rows for j in self.jobs.values()),
            held_cost=sum(j.waiting.cost for j in self.jobs.values()),
            mean_rows=self.mean_rows,
            mean_cost=self.mean_cost,
            limits=self.limits,
            batches=LOOK_AHEAD_BATCHES if self.config.pads else 1,
        )

    @property
    def pace_us(self) -> int:
        """What a request takes at best; 0 before the first pass. Never too long, so nobody is refused for nothing."""
        return min(self.paces_us, default=0)

    def learn_pass(self, batch: Sequence[batching.Waiting], took_ns: int) -> None:
        """Let the law follow a clean pass, which took so long."""
        self.service_time.observe(service_time.shape_of(batch), took_ns)
        self.law = self.service_time.law(self.limits.rows_max)

    def learn(self, job: Job) -> None:
        """Let the means follow."""
        self.mean_rows += MEAN_WEIGHT * (job.waiting.rows - self.mean_rows)
        self.mean_cost += MEAN_WEIGHT * (job.waiting.cost - self.mean_cost)


def limits_of(config: ModelConfig) -> batching.BatchLimits:
    """The batching limits that a model declares."""
    return batching.BatchLimits(
        rows_max=config.max_batch_size or 1,
        cost_max=config.cost_max,
        linger_ns=config.linger_us * 1000,
        preferred_rows=tuple(config.preferred_batch_sizes),
        patience_ns=config.patience_ms * 1_000_000,
    )


def form_of(config: ModelConfig) -> Form:
    """How the model puts requests of different length into a pass."""
    return Form.PADDED if config.pads else Form.PACKED
