"""The queue protocol as plain Python: what Redis must hold after any order of calls. No I/O, no clock.

It is written from the promises and not from the scripts, where that is possible; the order in which lanes and tenants
are served is a rule of its own, so here it stands again.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shared.broker.housekeeping import Tick
from shared.broker.requests import Limits
from shared.broker.scripts import LOWER_TURN
from shared.keys import RETRY, SUSPECTS
from shared.lifecycle import MOVES, State, is_terminal

LANES = range(5)
PRIORITIES = (1, 2, 3)
GATEWAYS_MAX = 4


@dataclass
class Request:
    """A request in one life; being run again as a dead letter begins another one."""

    priority: int
    tenant: str
    weight: int
    size: int
    gateways: list[str]
    job: bool = False
    state: State = State.WAITING
    attempt: int = 0
    errors: int = 0
    crashes: int = 0
    losses: int = 0
    lane: int = 0
    entry: int = 0
    """The model's number of its stream entry; a new one each time it is enqueued."""
    holder: str = ""
    """The worker that its entry was delivered to."""
    owner: str = ""
    """The worker that started it."""

    @property
    def live(self) -> bool:
        return not is_terminal(self.state)


@dataclass(frozen=True)
class Letter:
    """A dead letter."""

    number: int
    id: str
    why: str
    request: Request


@dataclass
class Model:
    """One queue. The calls return what the scripts are to answer."""

    ready_max: int
    crashes_max: int
    losses_max: int
    errors_max: int
    requests: dict[str, Request] = field(default_factory=dict)
    lanes: dict[int, list[str]] = field(default_factory=lambda: {lane: [] for lane in LANES})
    """What is in a lane and not delivered, in order."""
    rooms: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    """Who waits for its turn, by priority and tenant."""
    rings: dict[int, dict[str, float]] = field(default_factory=lambda: {p: {} for p in PRIORITIES})
    now: dict[int, float] = field(default_factory=dict)
    """The virtual time of each priority's ring."""
    turn: int = 0
    leases: set[str] = field(default_factory=set)
    notes: dict[str, list[str]] = field(default_factory=dict)
    solo: str = ""
    letters: list[Letter] = field(default_factory=list)
    buried: int = 0
    keys: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    gateways: set[str] = field(default_factory=lambda: {"gw-1"})
    rung: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    entries: int = 0

    # -- what a request can go through --

    def _move(self, rid: str, state: State) -> None:
        r = self.requests[rid]
        assert state in MOVES[r.state], f"{rid}: {r.state} -> {state}"
        r.state = state

    def _enqueue(self, rid: str, lane: int) -> None:
        r = self.requests[rid]
        if r.state is not State.QUEUED:
            self._move(rid, State.QUEUED)
        self.entries += 1
        r.lane, r.entry, r.holder, r.owner = lane, self.entries, "", ""
        self.lanes[lane].append(rid)

    def _out_of_the_way(self, rid: str) -> None:
        """Out of wherever it waits or runs."""
        r = self.requests[rid]
        for waiting in (self.lanes[r.lane], self.rooms.get((r.priority, r.tenant), [])):
            if rid in waiting:
                waiting.remove(rid)
        r.holder = r.owner = ""

    def _end(self, rid: str, state: State, *, tell: bool = True) -> None:
        self._out_of_the_way(rid)
        self._move(rid, state)
        if tell:
            for gateway in self.gateways.intersection(self.requests[rid].gateways):
                self.rung[gateway, rid] += 1

    def _bury(self, rid: str, why: str) -> None:
        self.buried += 1
        self.letters.append(Letter(self.buried, rid, why, self.requests[rid]))

    def _length(self, lane: int) -> int:
        """Queued and running."""
        return sum(r.lane == lane and r.state in (State.QUEUED, State.RUNNING) for r in self.requests.values())

    def _live(self, tenant: str = "") -> list[Request]:
        return [r for r in self.requests.values() if r.live and tenant in ("", r.tenant)]

    # -- whose turn it is --

    def _refill(self, priority: int, more: int = 0) -> None:
        ring = self.rings[priority]
        limit = self.ready_max + more - len(self.lanes[priority])
        while ring and limit > 0:
            tenant = min(ring, key=lambda t: (ring[t], t))
            room = self.rooms.get((priority, tenant), [])
            if room:
                rid = room.pop(0)
                self._enqueue(rid, priority)
                self.now[priority] = ring[tenant]
                ring[tenant] += 1 / self.requests[rid].weight
                limit -= 1
            if not room:
                del ring[tenant]

    def _take(self, worker: str, want: int, taken: list[tuple[str, int]]) -> None:
        """New entries: in order of priority, and one in LOWER_TURN from the lanes below the first in turns."""
        for priority in PRIORITIES:
            self._refill(priority, want)
        busy = [lane for lane in range(4) if self._length(lane)]
        below = max(1, len(busy) - (2 if busy[:1] == [RETRY] else 1))
        turns = len(busy) > 1
        while len(taken) < want:
            got = 0
            if turns and self.turn % LOWER_TURN == LOWER_TURN - 1:
                first = len(busy) - 1 - self.turn // LOWER_TURN % below
                for i in range(len(busy)):
                    got = self._read(busy[(first - i) % len(busy)], worker, 1, taken)
                    if got:
                        break
                self.turn = (self.turn + 1) % (LOWER_TURN * 6)
            else:
                n = min(want - len(taken), LOWER_TURN - 1 - self.turn % LOWER_TURN if turns else 16)
                for lane in busy:
                    more = self._read(lane, worker, n - got, taken)
                    got += more
                    if turns and lane != busy[-1]:
                        self.turn += more
                    if got >= n:
                        break
            if not got:
                return

    def _read(self, lane: int, worker: str, count: int, taken: list[tuple[str, int]]) -> int:
        ids, self.lanes[lane] = self.lanes[lane][:count], self.lanes[lane][count:]
        for rid in ids:
            self._start(rid, worker, taken)
        return len(ids)

    def _start(self, rid: str, worker: str, taken: list[tuple[str, int]]) -> None:
        r = self.requests[rid]
        if not r.job and not self.gateways.intersection(r.gateways):
            del self.requests[rid]  # nobody would get the answer
            return
        r.attempt += 1
        r.holder = r.owner = worker
        self._move(rid, State.RUNNING)
        taken.append((rid, r.attempt))

    # -- calls of gateways --

    def accept(
        self, ids: list[str], new: Request, *, gateway: str, limits: Limits, key: str = "", digest: str = ""
    ) -> list[tuple[str, str]]:
        """`new` is what each of `ids` is like. Of OK the detail is WAITING or QUEUED."""
        self.gateways.add(gateway)
        outcomes = []
        for rid in ids:
            first, covered = self.keys.get((new.tenant, key), ("", ""))
            room = self.rooms.setdefault((new.priority, new.tenant), [])
            size = sum(r.size for r in self._live())
            if rid in self.requests:
                outcomes.append(("DUP", self.requests[rid].state.value))
            elif key and first in self.requests:
                outcomes.append(("SAME" if covered == digest else "MISMATCH", first))
            elif len(self._live()) >= limits.requests_max:
                outcomes.append(("FULL", str(len(self._live()))))
            elif size + len(f"payload of {rid}") > limits.bytes_max:
                outcomes.append(("BYTES", str(size)))
            elif len(self._live(new.tenant)) >= limits.tenant_max:
                outcomes.append(("TENANT", str(len(self._live(new.tenant)))))
            else:
                r = Request(new.priority, new.tenant, new.weight, len(f"payload of {rid}"), [*new.gateways], new.job)
                self.requests[rid] = r
                if self.rings[new.priority] or len(self.lanes[new.priority]) >= self.ready_max:
                    r.lane = new.priority
                    room.append(rid)
                    self.rings[new.priority].setdefault(new.tenant, self.now.get(new.priority, 0))
                    outcomes.append(("OK", "WAITING"))
                else:
                    self._enqueue(rid, new.priority)
                    outcomes.append(("OK", "QUEUED"))
                if key:
                    self.keys[new.tenant, key] = (rid, digest)
        if ("OK", "WAITING") in outcomes:
            self._refill(new.priority)
        return outcomes

    def cancel(self, rid: str, state: State) -> str:
        r = self.requests.get(rid)
        if r is None:
            return "GONE"
        before = r.state
        if r.live:
            self._end(rid, state, tell=r.job)
            if before is not State.RUNNING:
                self._refill(r.priority)
        return before.value

    def attach(self, rid: str, gateway: str) -> str:
        r = self.requests.get(rid)
        if r and r.live and gateway not in r.gateways:
            r.gateways = [*r.gateways[-(GATEWAYS_MAX - 1) :], gateway]
        return r.state.value if r else "GONE"

    def forget(self, rid: str) -> None:
        del self.requests[rid]

    def lose_gateway(self, gateway: str) -> None:
        """Its reply stream has run out."""
        self.gateways.discard(gateway)
        for rung in [pair for pair in self.rung if pair[0] == gateway]:
            del self.rung[rung]

    # -- calls of workers --

    def fetch(self, worker: str, want: int) -> list[tuple[str, int]]:
        """Returns the ids with the attempts that begin."""
        return self.start(worker, [], want)

    def start(self, worker: str, given: list[tuple[str, int, int]], want: int) -> list[tuple[str, int]]:
        """`given`: id, entry and lane of what a read had delivered, perhaps long ago."""
        self.leases.add(worker)
        taken: list[tuple[str, int]] = []
        for rid, entry, _ in given:
            r = self.requests.get(rid)
            if r and r.state in (State.QUEUED, State.RUNNING) and r.entry == entry:
                self._start(rid, worker, taken)
        if all(lane != SUSPECTS for _, _, lane in given):
            self._take(worker, want, taken)
        return taken

    def fetch_alone(self, worker: str) -> list[tuple[str, int]]:
        self.leases.add(worker)
        taken: list[tuple[str, int]] = []
        if self.solo == worker:
            self._read(SUSPECTS, worker, 1, taken)
        return taken

    def block(self, worker: str) -> list[str]:
        """A blocking read brings at most one entry of each lane but that of the suspects, and starts nothing."""
        ids = [self.lanes[lane].pop(0) for lane in range(4) if self.lanes[lane]]
        for rid in ids:
            self.requests[rid].holder = worker
        return ids

    def held_by(self, worker: str) -> list[str]:
        """What was delivered to it and has not ended, as a worker reads it: by lane, by age."""
        held = [(r.lane, r.entry, rid) for rid, r in self.requests.items() if worker and r.holder == worker]
        return [rid for _, _, rid in sorted(held)]

    def complete(self, rid: str, attempt: int, state: State) -> str:
        r = self.requests.get(rid)
        if r is None:
            return "GONE"
        if not r.live:
            return "OKDUP" if (r.attempt, r.state) == (attempt, state) else "STALE"
        if r.attempt != attempt or r.state is State.DELAYED:
            return "STALE"
        self._end(rid, state)
        if r.lane == SUSPECTS and not self._length(SUSPECTS):
            self.solo = ""
        return "OK"

    def retry(self, rid: str, attempt: int, *, in_time: bool) -> str:
        r = self.requests.get(rid)
        if r is None:
            return "GONE"
        if r.attempt == attempt and r.state in (State.DELAYED, State.FAILED):
            return "RETRY" if r.state is State.DELAYED else "OKDUP"
        if r.attempt != attempt or r.state is not State.RUNNING:
            return "STALE"
        r.errors += 1
        if in_time and r.errors < self.errors_max:
            self._out_of_the_way(rid)
            self._move(rid, State.DELAYED)
            return "RETRY"
        if r.errors >= self.errors_max:
            self._bury(rid, "errors")
        self._end(rid, State.FAILED)
        return "OK"

    def release(self, worker: str, rid: str, attempt: int) -> int:
        r = self.requests.get(rid)
        if r is None or r.state is not State.RUNNING or (r.attempt, r.owner) != (attempt, worker):
            return 0
        self._enqueue(rid, SUSPECTS if r.lane == SUSPECTS else RETRY)
        return 1

    def beat(self, worker: str, held: list[tuple[str, int]]) -> tuple[bool, bool, list[str]]:
        """Returns whether its lease was alive, whether it shall run the suspects, and what is not its own any more."""
        live = worker in self.leases
        self.leases.add(worker)
        if self._length(SUSPECTS) and self.solo not in self.leases:
            self.solo = worker
        alone = bool(self._length(SUSPECTS)) and self.solo == worker
        return live, alone, [rid for rid, attempt in held if not self._runs(worker, rid, attempt)]

    def _runs(self, worker: str, rid: str, attempt: int) -> bool:
        r = self.requests.get(rid)
        return r is not None and r.state is State.RUNNING and (r.attempt, r.owner) == (attempt, worker)

    def leave(self, worker: str) -> bool:
        """True when it still held something and had a lease: then the next tick takes it for dead."""
        if self.solo == worker:
            self.solo = ""
        if self.held_by(worker):
            return worker in self.leases
        self.leases.discard(worker)
        self.notes.pop(worker, None)
        return False

    # -- housekeeping --

    def tick(self, *, overdue: str = "", due: str = "", dead: str = "") -> Tick:
        """At most one of each: a request whose deadline came, one whose delay is over, a worker whose lease ran out."""
        ended, again = [], []
        if overdue in self.requests and self.requests[overdue].live:
            self._end(overdue, State.EXPIRED)
            ended.append(overdue)
        if due in self.requests and self.requests[due].state is State.DELAYED:
            self._enqueue(due, SUSPECTS if self.requests[due].lane == SUSPECTS else RETRY)
            again.append(due)
        self.leases |= {r.holder for r in self.requests.values() if r.holder}
        requeued: list[str] = []
        suspects: list[str] = []
        buried: list[str] = []
        if dead:
            noted = {rid for rid in self.notes.get(dead, ()) if rid in self.requests and self._owns(dead, rid)}
            for rid in self.held_by(dead):
                ran = self._owns(dead, rid) and (not noted or rid in noted)
                (suspects if ran else requeued).append(rid)
                if self._lose(rid, ran=ran):
                    (suspects if ran else requeued).pop()
                    buried.append(rid)
            self.leases.discard(dead)
            self.notes.pop(dead, None)
            if self.solo == dead:
                self.solo = ""
        for priority in PRIORITIES:
            self._refill(priority)
        lost = (dead,) if dead else ()
        return Tick(0, tuple(ended), tuple(again), tuple(requeued), tuple(suspects), tuple(buried), lost)

    def _owns(self, worker: str, rid: str) -> bool:
        return self.requests[rid].state is State.RUNNING and self.requests[rid].owner == worker

    def _lose(self, rid: str, *, ran: bool) -> bool:
        """Its worker is dead. True when it has come to that too often."""
        r = self.requests[rid]
        if ran:
            r.crashes += 1
        else:
            r.losses += 1
        if (ran and r.crashes >= self.crashes_max) or (not ran and r.losses >= self.losses_max):
            self._bury(rid, "crashed" if ran else "lost")
            self._end(rid, State.DEAD)
            return True
        self._enqueue(rid, SUSPECTS if ran or r.lane == SUSPECTS else RETRY)
        return False

    def audit(self) -> None:
        """Nothing is ever lost sight of; notes of workers without a lease go."""
        self.notes = {worker: ids for worker, ids in self.notes.items() if worker in self.leases}

    def replay(self, letter: Letter, *, alone: bool) -> tuple[str, str]:
        if letter not in self.letters:
            return "GONE", ""
        rid, old = letter.id, letter.request
        if rid in self.requests and self.requests[rid].live:
            return "LIVE", rid
        self.letters.remove(letter)
        again = Request(old.priority, old.tenant, 1, old.size, [], job=True, attempt=old.attempt)
        self.requests[rid] = again
        self._enqueue(rid, SUSPECTS if alone else RETRY)
        return "OK", rid

    def purge(self, letter: Letter) -> int:
        there = letter in self.letters
        if there:
            self.letters.remove(letter)
        return int(there)

    # -- what Redis must show --

    def picture(self) -> dict[str, Any]:
        live = {rid: r for rid, r in self.requests.items() if r.live}
        sums: Counter[str] = Counter()
        for r in live.values():
            sums.update({f"l{r.priority}": 1, f"t:{r.tenant}": 1, "b": r.size})
        in_lanes = {
            lane: [rid for _, rid in sorted((r.entry, rid) for rid, r in live.items() if _in_lane(r, lane))]
            for lane in LANES
        }
        return {
            "states": {rid: r.state.value for rid, r in self.requests.items()},
            "counts": {rid: (r.attempt, r.errors, r.crashes, r.losses) for rid, r in self.requests.items()},
            "owners": {rid: r.owner for rid, r in live.items() if r.state is State.RUNNING},
            "gateways": {rid: r.gateways for rid, r in live.items()},
            "lanes": in_lanes,
            "held": {rid: r.holder for rid, r in live.items() if r.holder},
            "rooms": {place: room for place, room in self.rooms.items() if room},
            "rings": self.rings,
            "delayed": sorted(rid for rid, r in live.items() if r.state is State.DELAYED),
            "deadlines": sorted(live),
            "counters": dict(+sums),
            "leases": sorted(self.leases),
            "notes": self.notes,
            "solo": self.solo,
            "letters": [(letter.id, letter.why) for letter in self.letters],
            "rung": dict(+self.rung),
        }


def _in_lane(r: Request, lane: int) -> bool:
    return r.lane == lane and r.state in (State.QUEUED, State.RUNNING)
