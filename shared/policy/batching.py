"""Which requests share the next pass through the device, and when it starts.

The rule: a free device never waits while work is queued, unless the model asks to linger. The batch is made around the
oldest request: those behind it that may share a pass with it (equal `key`) join in order of arrival, as long as rows
and cost stay within the limits. Order of arrival is never broken within a key, so nobody is overtaken for ever: the
oldest request is in the next batch, always.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a batch of one model may hold. Zero for `cost_max` means unbounded, for `linger_ns` never wait.

    `rows_max` 1 is for models without a batch dimension. A single request beyond a limit still runs, alone. The last
    two are for `composing`, which does not keep the order of arrival.
    """

    rows_max: int
    cost_max: int = 0
    linger_ns: int = 0
    preferred_rows: tuple[int, ...] = ()
    patience_ns: int = 0
    """How long the oldest request may be overtaken; 0: never."""
    padding_max: float = 0.15
    """Of a model that pads: units of padding for each useful unit of a batch, at most."""

    def __post_init__(self) -> None:
        if self.rows_max < 1 or self.cost_max < 0 or self.linger_ns < 0:
            raise ValueError(f"rows_max must be at least 1, cost_max and linger_ns at least 0: {self}")
        if self.patience_ns < 0 or self.padding_max < 0:
            raise ValueError(f"patience_ns and padding_max must be at least 0: {self}")


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A decoded request, ready to run. `key`: only requests with equal keys can share a pass."""

    id: str
    rows: int
    cost: int
    key: Hashable
    since_ns: int
    deadline_at_ns: int
    longest: int = 0
    """Cost of its longest row; 0: all rows cost the same."""


class CloseReason(StrEnum):
    """Why a batch was sealed as it is."""

    FULL = "full"  # no row more fits
    BUDGET = "budget"  # the next request would break the cost budget
    PREFERRED = "preferred"  # it has a preferred size
    IDLE = "idle"  # the device is free and nobody else is waiting
    KEY = "key"  # the others waiting cannot share a pass with it
    PAYS_NO_MORE = "pays_no_more"  # the next request would delay the members more than it saves everybody
    PADDING = "padding"  # the next request would need, or cause, too much padding
    DEADLINE = "deadline"  # with the next request a member would miss its deadline
    LINGER = "linger"  # the oldest has waited as long as the model asks
    DRAIN = "drain"  # the worker is stopping


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run these now. `predicted_ns`: how long the pass should take; 0 if unknown."""

    batch: tuple[Waiting, ...]
    reason: CloseReason
    predicted_ns: int = 0


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to do before this instant, unless something changes."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to do until something changes."""


def decide(
    waiting: Sequence[Waiting], *, device_free: bool, now_ns: int, limits: BatchLimits, draining: bool = False
) -> Dispatch | WaitUntil | Idle:
    """Choose what to do at `now_ns` with the `waiting` requests, which are oldest first."""
    if not waiting or not device_free:
        return Idle()
    batch, reason = _gather(waiting, limits)
    if reason is not CloseReason.IDLE or not limits.linger_ns:
        return Dispatch(batch, reason)
    if draining:
        return Dispatch(batch, CloseReason.DRAIN)
    if sum(w.rows for w in batch) in limits.preferred_rows:
        return Dispatch(batch, CloseReason.PREFERRED)
    linger_ends_ns = waiting[0].since_ns + limits.linger_ns
    if now_ns >= linger_ends_ns:
        return Dispatch(batch, CloseReason.LINGER)
    return WaitUntil(linger_ends_ns)


def _gather(waiting: Sequence[Waiting], limits: BatchLimits) -> tuple[tuple[Waiting, ...], CloseReason]:
    first = waiting[0]
    batch = [first]
    rows, cost = first.rows, first.cost
    reason = CloseReason.FULL if rows >= limits.rows_max else CloseReason.IDLE
    if reason is CloseReason.IDLE:
        for candidate in waiting[1:]:
            if candidate.key != first.key:
                reason = CloseReason.KEY
                continue
            if limits.cost_max and cost + candidate.cost > limits.cost_max:
                return tuple(batch), CloseReason.BUDGET
            if rows + candidate.rows > limits.rows_max:
                return tuple(batch), CloseReason.FULL
            batch.append(candidate)
            rows += candidate.rows
            cost += candidate.cost
            if rows >= limits.rows_max:
                return tuple(batch), CloseReason.FULL
    return tuple(batch), reason


def overdue(waiting: Sequence[Waiting], now_ns: int) -> list[Waiting]:
    """Those whose deadline has passed: they must not reach the model."""
    return [w for w in waiting if w.deadline_at_ns <= now_ns]
