"""Worlds whose truth is known: requests at a single server, first come first served, with something done to them.

Waits are those of a queue, so slow requests come in clumps, as in life; independent latencies would flatter every
detector.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

SECOND_NS = 1_000_000_000
MS_NS = 1_000_000


@dataclass(frozen=True)
class World:
    """Requests in the order of their arrival, [requests] int64 ns each; latency = wait + service."""

    at_ns: Any
    latency_ns: Any
    wait_ns: Any
    service_ns: Any


def arrivals(rng: np.random.Generator, rate_per_s: float, length_s: float) -> Any:
    """Poisson arrivals over `length_s`, in ns; they begin far from 0, as a monotonic clock does."""
    count = rng.poisson(rate_per_s * length_s)
    return np.sort(rng.uniform(0, length_s, count) * SECOND_NS).astype(np.int64) + 86_400 * SECOND_NS


def lognormal_ns(rng: np.random.Generator, mean_ns: float, sigma: float, count: int) -> Any:
    """Service times of a mean and a spread (of the logarithm)."""
    return (mean_ns * np.exp(sigma * rng.standard_normal(count) - sigma**2 / 2)).astype(np.int64)


def waits(at_ns: Any, service_ns: Any, stall_at_ns: Any = (), stall_ns: Any = ()) -> Any:
    """How long each request waits for a server that stands still from each `stall_at_ns` for `stall_ns`.

    A stall is a job in the queue that nobody asked for. Lindley's recursion, unrolled: the server is done with job n
    at max over k <= n of (arrival of k + all service from k to n).
    """
    when = np.concatenate([at_ns, np.asarray(stall_at_ns, dtype=np.int64)])
    work = np.concatenate([service_ns, np.asarray(stall_ns, dtype=np.int64)])
    order = np.argsort(when, kind="stable")
    when, work = when[order], work[order]
    heaped = np.cumsum(work)
    done = heaped + np.maximum.accumulate(when - heaped + work)
    wait = np.empty_like(done)
    wait[order] = done - work - when
    return wait[: len(at_ns)]


def serve(at_ns: Any, service_ns: Any, stall_at_ns: Any = (), stall_ns: Any = ()) -> World:
    """The world of these arrivals and service times."""
    wait_ns = waits(at_ns, service_ns, stall_at_ns, stall_ns)
    return World(at_ns, wait_ns + service_ns, wait_ns, service_ns)


def clean(
    seed: int, *, rate_per_s: float = 26.0, length_s: float = 300.0, mean_ms: float = 20.0, sigma: float = 0.35
) -> World:
    """Nothing happens."""
    rng = np.random.default_rng(seed)
    at_ns = arrivals(rng, rate_per_s, length_s)
    return serve(at_ns, lognormal_ns(rng, mean_ms * MS_NS, sigma, len(at_ns)))


def slower_service(seed: int, *, at_s: float = 150.0, ratio: float = 1.25, **of: Any) -> World:
    """From `at_s` on each request takes `ratio` times as long to serve."""
    world = clean(seed, **of)
    changed = world.at_ns >= instant(at_s)
    return serve(world.at_ns, np.where(changed, world.service_ns * ratio, world.service_ns).astype(np.int64))


def longer_linger(seed: int, *, at_s: float = 150.0, by_ms: float = 8.0, **of: Any) -> World:
    """From `at_s` on each request waits `by_ms` more before it is served."""
    world = clean(seed, **of)
    more = np.where(world.at_ns >= instant(at_s), int(by_ms * MS_NS), 0)
    return replace(world, latency_ns=world.latency_ns + more, wait_ns=world.wait_ns + more)


def slow_few(
    seed: int, *, at_s: float = 150.0, share: float = 0.03, by_ms: float = 200.0, alone: bool = False, **of: Any
) -> World:
    """From `at_s` on some requests take `by_ms` more; others wait for them, unless these are `alone`."""
    world = clean(seed, **of)
    hit = (np.random.default_rng(seed + 10_000).random(len(world.at_ns)) < share) & (world.at_ns >= instant(at_s))
    more = np.where(hit, int(by_ms * MS_NS), 0)
    if alone:
        return replace(world, latency_ns=world.latency_ns + more, service_ns=world.service_ns + more)
    return serve(world.at_ns, world.service_ns + more)


def stalls(
    seed: int,
    *,
    every_s: float,
    for_s: float,
    jitter_s: float = 0.0,
    rate_per_s: float = 15.0,
    length_s: float = 600.0,
    **of: Any,
) -> World:
    """The server stands still `for_s` every `every_s`, give or take `jitter_s` (standard deviation)."""
    world = clean(seed, rate_per_s=rate_per_s, length_s=length_s, **of)
    rng = np.random.default_rng(seed + 20_000)
    when = np.arange(rng.uniform(0, every_s), length_s, every_s)
    when = when + jitter_s * rng.standard_normal(len(when))
    return serve(world.at_ns, world.service_ns, instant(when), np.full(len(when), int(for_s * SECOND_NS)))


def bursts(
    seed: int, *, count: int = 15, for_s: float = 0.6, rate_per_s: float = 15.0, length_s: float = 600.0, **of: Any
) -> World:
    """The server stands still `for_s` at `count` moments that nothing connects."""
    world = clean(seed, rate_per_s=rate_per_s, length_s=length_s, **of)
    when = np.random.default_rng(seed + 20_000).uniform(0, length_s, count)
    return serve(world.at_ns, world.service_ns, instant(when), np.full(count, int(for_s * SECOND_NS)))


def stalls_by_count(seed: int, *, every: int, for_s: float, rate_per_s: float = 15.0, length_s: float = 600.0) -> World:
    """The server stands still `for_s` at every so-maniest request, as a collector of garbage does."""
    world = clean(seed, rate_per_s=rate_per_s, length_s=length_s)
    at_ns = world.at_ns[seed % every :: every]
    return serve(world.at_ns, world.service_ns, at_ns, np.full(len(at_ns), int(for_s * SECOND_NS)))


def instant(at_s: Any) -> Any:
    """Seconds since the world began, as an instant in ns."""
    return 86_400 * SECOND_NS + (np.asarray(at_s) * SECOND_NS).astype(np.int64)
