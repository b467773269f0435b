"""What a seed stands for: who takes part, what is asked, and what goes wrong when."""

import random
from dataclasses import dataclass, field
from enum import StrEnum

from simulation.network import Weather
from simulation.toy import Kind


class Trouble(StrEnum):
    """What can go wrong. The first kinds strike a worker, the next a gateway, the last ones the server."""

    KILL_WORKER = "kill worker"
    FREEZE_WORKER = "freeze worker"
    STOP_WORKER = "stop worker"
    CUT_WORKER = "cut worker"
    ISOLATE_WORKER = "isolate worker"
    KILL_GATEWAY = "kill gateway"
    FREEZE_GATEWAY = "freeze gateway"
    CUT_GATEWAY = "cut gateway"
    ISOLATE_GATEWAY = "isolate gateway"
    STALL = "stall redis"
    RESTART = "restart redis"
    ROLL_BACK = "roll redis back"
    """Its machine dies, and with it what was not on the disk yet."""
    FLUSH = "flush redis"
    FORGET_SCRIPTS = "flush scripts"
    OUT_OF_MEMORY = "out of memory"


_LIKELY = {
    Trouble.KILL_WORKER: 6,
    Trouble.FREEZE_WORKER: 6,
    Trouble.STOP_WORKER: 5,
    Trouble.CUT_WORKER: 3,
    Trouble.ISOLATE_WORKER: 3,
    Trouble.KILL_GATEWAY: 2,
    Trouble.FREEZE_GATEWAY: 2,
    Trouble.CUT_GATEWAY: 2,
    Trouble.ISOLATE_GATEWAY: 2,
    Trouble.STALL: 4,
    Trouble.RESTART: 3,
    Trouble.ROLL_BACK: 3,
    Trouble.FLUSH: 4,
    Trouble.FORGET_SCRIPTS: 2,
    Trouble.OUT_OF_MEMORY: 2,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. Times in seconds; `cancel_after_s` None = its client waits."""

    number: int
    gateway: int
    at_s: float
    deadline_s: float
    cancel_after_s: float | None
    kind: Kind
    rows: int
    salt: int
    priority: int
    tenant: str


@dataclass(frozen=True, slots=True)
class Event:
    """One trouble: when, whom (counted among those that are there), for how long."""

    at_s: float
    trouble: Trouble
    target: int
    for_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run depends on, besides the order of chances in the network."""

    seed: int
    gateways: int
    workers: int
    slots: int
    max_batch_size: int
    linger_us: int
    lease_s: float
    service_s: tuple[float, float]
    """A pass takes between these."""
    queue_max: int
    ready_max: int
    """So many undelivered entries make a backlog, in which tenants take turns."""
    parcels: bool
    """Whether requests of one tick travel together where they can, whatever the model takes."""
    requests: list[Asked] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    weather: Weather = field(default_factory=Weather)
    bad_weather_s: float = 0.0

    @property
    def calm_at_s(self) -> float:
        """When the last trouble is over."""
        return max([self.bad_weather_s, *(e.at_s + e.for_s for e in self.events)])


LONG_S = 60.0
"""A deadline that is never the reason for anything."""


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"plan {seed}")
    quick = rng.random() * 0.02
    plan = Plan(
        seed=seed,
        gateways=rng.choice((1, 1, 2)),
        workers=rng.choice((1, 2, 2, 3)),
        slots=rng.choice((1, 2)),
        max_batch_size=rng.choice((1, 4, 8)),
        linger_us=rng.choice((0, 0, 0, 20_000)),
        lease_s=rng.choice((0.8, 1.5)),
        service_s=(quick, quick + rng.choice((0.02, 0.1, 0.6))),
        queue_max=rng.choice((10_000, 10_000, 10_000, 12)),
        ready_max=rng.choice((128, 1, 3)),
        parcels=rng.random() < 0.5,
        weather=Weather(
            cut=rng.choice((0.0, 0.0, 0.003, 0.03)),
            delay=rng.choice((0.0, 0.0, 0.01, 0.1)),
            delay_max_s=rng.choice((0.05, 1.0, 2.5)),
            vanish=rng.choice((0.0, 0.0, 0.0, 0.003)),
        ),
        bad_weather_s=rng.uniform(0.5, 3.0),
    )
    span_s = rng.uniform(0.05, 2.0)
    moments = sorted(rng.uniform(0, span_s) for _ in range(rng.randint(1, 12)))
    for number in range(1, rng.randint(5, 30) + 1):
        plan.requests.append(_ask(rng, number, plan.gateways, rng.choice(moments)))
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        trouble = rng.choices(list(_LIKELY), list(_LIKELY.values()))[0]
        plan.events.append(Event(rng.uniform(0, span_s + 1.0), trouble, rng.randrange(8), rng.uniform(0.05, 3.0)))
    return plan


def _ask(rng: random.Random, number: int, gateways: int, at_s: float) -> Asked:
    kinds = [Kind.PLAIN] * 60 + [Kind.LARGE] * 3 + [Kind.FAILS] * 2 + [Kind.BUSY] * 2 + [Kind.MALFORMED]
    return Asked(
        number=number,
        gateway=rng.randrange(gateways),
        at_s=at_s,
        deadline_s=LONG_S if rng.random() < 0.8 else rng.uniform(0.005, 2.0),
        cancel_after_s=rng.uniform(0, 1.5) if rng.random() < 0.1 else None,
        kind=rng.choice(kinds) if rng.random() > 0.006 else rng.choice((Kind.KILLS, Kind.LOSES_DEVICE)),
        rows=rng.choice((1, 1, 1, 2, 3)),
        salt=rng.getrandbits(40),
        priority=rng.choice((1, 2, 2, 2, 3)),
        tenant=rng.choice(("-", "-", "a", "b")),
    )
