"""A queue and a device in virtual time: what a policy comes to, without a clock and without waiting."""

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from shared.policy import batching, composing
from shared.policy.arrivals import ArrivalRate
from shared.policy.batching import BatchLimits, Dispatch, Idle, Waiting, WaitUntil
from shared.policy.service_time import Law, ServiceTime, shape_of

MS = 1_000_000
NEVER = 1 << 62
Decision = Dispatch | WaitUntil | Idle


class ArrivalOrder:
    """Batches as they come."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits

    def came(self, now_ns: int) -> None:
        """A request has come."""

    def decide(self, waiting: Sequence[Waiting], now_ns: int) -> Decision:
        return batching.decide(waiting, device_free=True, now_ns=now_ns, limits=self.limits)

    def passed(self, batch: Sequence[Waiting], took_ns: int) -> None:
        """A pass is over."""


class CostAware(ArrivalOrder):
    """As a worker does it: learns the law from passes and the rate from arrivals. Or it is given the law."""

    def __init__(self, limits: BatchLimits, learns: ServiceTime | None = None, law: Law | None = None) -> None:
        super().__init__(limits)
        self.learns = learns
        self.law = law
        self.rate = ArrivalRate()

    def came(self, now_ns: int) -> None:
        self.rate.observe(1, now_ns)

    def decide(self, waiting: Sequence[Waiting], now_ns: int) -> Decision:
        return composing.decide(
            waiting,
            device_free=True,
            now_ns=now_ns,
            limits=self.limits,
            law=self.learns.law(self.limits.rows_max) if self.learns else self.law,
            arrivals_per_s=self.rate.per_s(now_ns),
        )

    def passed(self, batch: Sequence[Waiting], took_ns: int) -> None:
        if self.learns:
            self.learns.observe(shape_of(batch), took_ns)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass through the device, and who was left waiting when it began."""

    batch: tuple[Waiting, ...]
    began_ns: int
    ended_ns: int
    left: tuple[Waiting, ...]
    predicted_ns: int


@dataclass(slots=True)
class Run:
    """What came of it."""

    passes: list[Pass] = field(default_factory=list)
    expired: list[Waiting] = field(default_factory=list)

    def latencies_ms(self) -> list[float]:
        """Of all answered requests, sorted."""
        return sorted((p.ended_ns - w.since_ns) / MS for p in self.passes for w in p.batch)

    def mean_ms(self) -> float:
        latencies = self.latencies_ms()
        return sum(latencies) / len(latencies)

    def quantile_ms(self, q: float) -> float:
        latencies = self.latencies_ms()
        return latencies[min(len(latencies) - 1, int(q * len(latencies)))]

    def per_s(self) -> float:
        """Requests answered a second, from the first pass to the last."""
        return len(self.latencies_ms()) / (self.passes[-1].ended_ns - self.passes[0].began_ns) * 1e9

    def padding(self) -> float:
        """What padding adds to the useful units of all passes."""
        shapes = [shape_of(p.batch) for p in self.passes]
        return sum(s.rows * s.longest for s in shapes) / sum(s.units for s in shapes) - 1


def serve(
    policy: ArrivalOrder,
    requests: Sequence[Waiting],
    truth: Law,
    *,
    next_request: Callable[[Waiting, int], Waiting | None] = lambda answered, now_ns: None,
    noise: Callable[[], float] = lambda: 1.0,
) -> Run:
    """Serve `requests`, and those that `next_request` makes of an answered one and the time, until none are left."""
    run, numbers, waiting = Run(), count(), list[Waiting]()
    coming = [(w.since_ns, next(numbers), w) for w in requests]
    heapq.heapify(coming)
    now_ns = 0
    while coming or waiting:
        while coming and coming[0][0] <= now_ns:
            waiting.append(heapq.heappop(coming)[2])
            policy.came(waiting[-1].since_ns)
        late = batching.overdue(waiting, now_ns)
        run.expired += late
        waiting = [w for w in waiting if w not in late]
        next_ns = coming[0][0] if coming else NEVER
        match policy.decide(waiting, now_ns):
            case Dispatch(batch, _, predicted_ns):
                taken = {w.id for w in batch}
                waiting = [w for w in waiting if w.id not in taken]
                took_ns = max(1, round(truth.predict_ns(shape_of(batch)) * noise()))
                run.passes.append(Pass(batch, now_ns, now_ns + took_ns, tuple(waiting), predicted_ns))
                now_ns += took_ns
                policy.passed(batch, took_ns)
                for answered in batch:
                    if following := next_request(answered, now_ns):
                        heapq.heappush(coming, (following.since_ns, next(numbers), following))
            case WaitUntil(at_ns):
                assert at_ns > now_ns, "waiting must end"
                now_ns = min(at_ns, next_ns)
            case Idle():
                assert not waiting, "a free device idles while work is queued"
                now_ns = max(now_ns, next_ns) if coming else now_ns
    return run


# -- traffic -----------------------------------------------------------------------------------------------------------


def real_lengths(seed: int) -> Iterator[int]:
    """Tokens of texts as people send them: log-normal, median 21, mean 41, cut off at 256."""
    chance = random.Random(seed)
    while True:
        yield min(256, max(3, round(2 + 19 * math.exp(1.3 * chance.gauss(0, 1)))))


def open_loop(count: int, *, per_s: float, seed: int) -> list[Waiting]:
    """Texts at random instants, whatever becomes of those before."""
    chance, lengths = random.Random(seed), real_lengths(seed + 1)
    at_ns, requests = 0.0, []
    for i in range(count):
        at_ns += chance.expovariate(per_s / 1e9)
        requests.append(Waiting(f"r-{i}", 1, next(lengths), None, int(at_ns), NEVER))
    return requests


def closed_loop(policy: ArrivalOrder, truth: Law, *, connections: int, requests: int, seed: int) -> Run:
    """Clients that send the next text a millisecond after each answer."""
    lengths, numbers = real_lengths(seed), iter(range(requests))

    def send(at_ns: int) -> Waiting | None:
        number = next(numbers, None)
        return None if number is None else Waiting(f"r-{number}", 1, next(lengths), None, at_ns, NEVER)

    first = [w for w in (send(i * MS // connections) for i in range(connections)) if w]
    return serve(policy, first, truth, next_request=lambda answered, now_ns: send(now_ns + MS))
