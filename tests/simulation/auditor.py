"""What must be true of every run, whatever went wrong in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulation.plan import LONG_S, Asked, Plan, Trouble
from simulation.toy import Kind, answer_to

from shared import tensors, wire
from shared.broker.work import Delivery
from shared.errors import ErrorKind, TailraceError

GRACE_S = 0.05
"""How late the answer at a deadline may be."""
RECOVERY_S = 15.0
"""After so much calm every request with a long deadline has its answer."""


class Violation(AssertionError):
    """Something that must never happen has happened."""


@dataclass(slots=True)
class Case:
    """A request and how it ended. Instants are virtual seconds from the start."""

    asked: Asked
    ended_at_s: float | None = None
    outcome: wire.Reply | TailraceError | None = None
    withdrawn: bool = False
    """Its client went away."""
    orphaned: bool = False
    """Its gateway was killed."""


@dataclass(slots=True)
class Auditor:
    """Watches a run. Requests are known by their numbers, which are in their ids and their inputs."""

    plan: Plan
    cases: dict[int, Case] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    parcels: dict[str, list[int]] = field(default_factory=dict)
    """What is in each."""
    deaths: int = 0
    """Of workers, lost leases included: whatever may cost a request an attempt."""
    _rolled_back: bool = False
    _life: int = 0
    """How often Redis has lost everything."""
    _held: dict[tuple[str, int], tuple[int, str, int]] = field(default_factory=dict)
    """What a worker has and may compute: attempt, entry, deadline by its own clock; by worker and number."""
    _computed: set[tuple[int, int, str]] = field(default_factory=set)
    _answered: set[tuple[int, int]] = field(default_factory=set)

    def expect(self, holds: object, text: str) -> None:
        """Note a violation unless it holds."""
        if not holds:
            self.violations.append(text)

    # -- while it runs -------------------------------------------------------------------------------------------------

    def forgotten(self, *, rolled_back: bool = False) -> None:
        """Redis lost its data, or the last of it: what was answered may be answered again."""
        self._life += 1
        self._rolled_back |= rolled_back  # then attempts are counted again from where they were

    def delivered(self, worker: str, deliveries: Sequence[Delivery], now_ns: int) -> None:
        """A worker learns of requests."""
        for d in deliveries:
            for number in self._numbers_of(d.id):
                self._held[worker, number] = (d.attempt, d.entry_id, now_ns + d.left_us * 1000)

    def told(self, worker: str, ids: Sequence[str]) -> None:
        """A worker learns that requests are not its own any more."""
        for rid in ids:
            for number in self._numbers_of(rid):
                self._held.pop((worker, number), None)

    def computing(self, worker: str, numbers: Sequence[int], now_ns: int) -> None:
        """A worker's device begins."""
        for number in numbers:
            held = self._held.get((worker, number))
            if held is None:
                self.violations.append(f"{worker} computes {number}, which it knows to be no more its own")
                continue
            attempt, entry_id, deadline_ns = held
            self.expect(now_ns < deadline_ns, f"{worker} computes {number} after its deadline")
            pass_ = (number, attempt, entry_id)
            self.expect(
                pass_ not in self._computed or self._rolled_back, f"attempt {attempt} of {number} is computed twice"
            )
            self._computed.add(pass_)

    def completed(self, ids: Sequence[str], statuses: Sequence[str], answers: Sequence[bytes]) -> None:
        """Redis was given answers."""
        for rid, status, answer in zip(ids, statuses, answers, strict=True):
            if status == "OK":
                for number in self._answered_by(rid, answer):
                    taken = (number, self._life)
                    self.expect(taken not in self._answered, f"two answers to {taken[0]} were taken")
                    self._answered.add(taken)

    def _answered_by(self, rid: str, answer: bytes) -> list[int]:
        if rid not in self.parcels:
            return [number_of(rid)]
        try:
            replies = wire.decode_parcel_reply(answer)
        except wire.WireError:
            return []  # its requests are handed over by themselves
        return [n for n, reply in zip(self.parcels[rid], replies, strict=True) if reply.body.error_code != wire.AGAIN]

    def _numbers_of(self, rid: str) -> list[int]:
        return self.parcels.get(rid) or [number_of(rid)]

    def accepted(self, ids: Sequence[str], *_: object) -> None:
        """Redis was asked to take requests, perhaps by a command that was on its way for long.

        One that its gateway has forgotten already is computed once more, for nobody.
        """
        for number in (number for rid in ids for number in self._numbers_of(rid)):
            case = self.cases.get(number)
            if case is not None and case.ended_at_s is not None:
                self._answered.discard((number, self._life))

    # -- at the end ----------------------------------------------------------------------------------------------------

    def judge(self, calm_at_s: float, excused_until_s: dict[int, float]) -> None:
        """Look at how each request ended. `excused_until_s`: when a gateway was last frozen."""
        for case in self.cases.values():
            if not case.orphaned and not case.withdrawn:
                self._judge(case, calm_at_s, excused_until_s.get(case.asked.gateway, 0.0))

    def _judge(self, case: Case, calm_at_s: float, excused_until_s: float) -> None:
        asked, name = case.asked, f"request {case.asked.number}"
        if case.outcome is None or case.ended_at_s is None:
            self.violations.append(f"{name} never ended")
            return
        deadline_s = asked.at_s + asked.deadline_s
        self.expect(
            case.ended_at_s <= max(deadline_s, excused_until_s) + GRACE_S,
            f"{name} ended {case.ended_at_s - deadline_s:.3f} s after its deadline",
        )
        patience_s = max(calm_at_s, asked.at_s, excused_until_s) + RECOVERY_S
        self.expect(case.ended_at_s <= patience_s, f"{name} ended only at {case.ended_at_s:.3f} s: {case.outcome}")
        error = case.outcome
        if isinstance(error, wire.Reply):
            if error.body.error_code:
                found = wire.error_of(error.body)
                assert found is not None
                error = found
            else:
                self._check_answer(case, error)
                return
        assert isinstance(error, TailraceError)
        self.expect(
            self._is_honest(error.kind, case, deadline_s), f"{name} ended with {error.kind.code}: {error.message}"
        )

    def _check_answer(self, case: Case, reply: wire.Reply) -> None:
        asked = case.asked
        self.expect(
            asked.kind in (Kind.PLAIN, Kind.LARGE, Kind.BUSY),
            f"request {asked.number} of kind {asked.kind} got an answer",
        )
        y = reply.body.outputs[0]
        rows = tensors.from_bytes(y.data, y.datatype, y.shape, name="y").tolist()
        right = [answer_to(asked.number, asked.salt, asked.kind)] * asked.rows
        self.expect(rows == right, f"request {asked.number} got a wrong answer")

    def _is_honest(self, kind: ErrorKind, case: Case, deadline_s: float) -> bool:
        asked = case.asked
        if kind is ErrorKind.DEADLINE:
            assert case.ended_at_s is not None
            return asked.deadline_s < LONG_S and case.ended_at_s >= deadline_s - 0.001
        if kind is ErrorKind.MODEL_ERROR:
            return asked.kind in (Kind.FAILS, Kind.BUSY)
        if kind is ErrorKind.OVERLOADED:
            return asked.deadline_s < LONG_S
        if kind is ErrorKind.BAD_REQUEST:
            return asked.kind is Kind.MALFORMED
        if kind is ErrorKind.CRASHED:
            return asked.kind in (Kind.KILLS, Kind.LOSES_DEVICE) or self.deaths >= 3
        if kind is ErrorKind.QUEUE_FULL:
            return self.plan.queue_max < len(self.plan.requests)
        if kind is ErrorKind.UNAVAILABLE:
            return any(e.trouble is Trouble.OUT_OF_MEMORY for e in self.plan.events)
        return False


ID_LENGTH = 32


def id_of(number: int) -> str:
    """The id of a request."""
    return f"{number:0{ID_LENGTH}d}"


def number_of(request_id: str) -> int:
    """Inverse of `id_of`."""
    return int(request_id)
