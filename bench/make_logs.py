"""Writes the logs of a fleet that never ran: `python -m bench.make_logs --requests 1000000 --out DIR`.

A queue in virtual time: gateways on the first host, workers dealt out over all hosts, whose clocks have offsets and
drift; batches, garbage collections, crashes with a second delivery, deadlines, clients that leave, refusals. The
records are those of `shared/events.py` and the files are rotated as `shared/eventlog.py` does. One seed gives one log,
byte for byte, so it can measure the readers, and test them where truth must be known. It says nothing about our speed.
"""

import argparse
import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.log_process import WALL_US, HostClock, Process, S
from shared.events import Batch, Bye, Clk, Evt, Hello, PeerOffset, Req, Res, Wreq

US = 1_000
MS = 1_000_000
LEASE_NS = 5 * S

Stamps = tuple[int, int, int, int, int, int, int, int, int]
"""A worker's w0 to w8 of one request."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to make. `shares` of all requests that meet a fate; `drift_ppm` and `offset_s` of every host but the
    first."""

    requests: int = 10_000
    per_s: float = 3_000.0
    gateways: int = 2
    workers: int = 4
    hosts: int = 2
    batch_max: int = 32
    drift_ppm: float = 20.0
    offset_s: float = 77.0
    crashed: float = 0.0005
    late: float = 0.0005
    left: float = 0.001
    refused: float = 0.002
    seed: int = 1
    file_bytes_max: int = 64 << 20
    bye: bool = True


@dataclass(order=True, slots=True)
class _Waiting:
    """A request in the queue, by when Redis had it."""

    has_it_ns: int
    number: int
    id: str = field(compare=False)
    gateway: int = field(compare=False)
    g: list[int] = field(compare=False)
    tokens: int = field(compare=False)
    fate: str = field(compare=False)
    attempt: int = field(compare=False, default=1)
    first_ns: int = field(compare=False, default=0)


class Fleet:
    """The processes of a plan, and what happens to them."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self._random = random.Random(plan.seed)
        sign = [(-1) ** h for h in range(plan.hosts)]
        self.clocks = [
            HostClock(
                f"boot-{h}/4026531834",
                f"host-{h}",
                5_000 * S + round(h * sign[h] * plan.offset_s * S),
                0 if not h else round(sign[h] * plan.drift_ppm * 1_000),
            )
            for h in range(plan.hosts)
        ]
        size = plan.file_bytes_max
        self.gateways = [
            Process(folder, "gateway", f"gw-{i}", 100 + i, self.clocks[0], size) for i in range(plan.gateways)
        ]
        self.workers = [
            Process(folder, "worker", f"w-{i}", 200 + i, self.clocks[i % plan.hosts], size) for i in range(plan.workers)
        ]
        self._offsets: dict[tuple[int, int], list[int]] = {}

    def run(self) -> None:
        """Write all logs."""
        everyone = [*self.gateways, *self.workers]
        for i, p in enumerate(everyone):
            p.write(i * MS, Hello("0.1.0", "3.11.7", "8.1.0", "2.13.0" if p.proc == "worker" else "", cores=8))
        arrivals = self._arrivals()
        coming = next(arrivals, None)
        queue: list[_Waiting] = []
        free = [(10 * MS, i) for i in range(len(self.workers))]
        beat_ns = flushed_ns = S
        while coming or queue:
            free_ns, worker = heapq.heappop(free)
            while coming and (not queue or coming.has_it_ns <= max(free_ns, queue[0].has_it_ns)):
                heapq.heappush(queue, coming)
                coming = next(arrivals, None)
            start_ns = max(free_ns, queue[0].has_it_ns)
            batch: list[_Waiting] = []
            while queue and queue[0].has_it_ns <= start_ns and len(batch) < self.plan.batch_max:
                batch.append(heapq.heappop(queue))
            heapq.heappush(free, (self._pass(worker, free_ns, start_ns, batch, queue), worker))
            while beat_ns < start_ns:
                self._beat(beat_ns)
                beat_ns += S
            if start_ns - flushed_ns > S:
                flushed_ns = start_ns
                for p in everyone:
                    p.flush(start_ns - S)
        end_ns = max(free)[0] + 6 * S
        for p in everyone:
            if self.plan.bye:
                p.write(end_ns, Bye("stopped"))
            p.flush(end_ns)

    def _beat(self, at_ns: int) -> None:
        for p in (*self.gateways, *self.workers):
            use = self._random.uniform(20, 90)
            p.write(
                at_ns,
                Res(
                    S,
                    use,
                    [use] * 8,
                    [5.0] * 8,
                    [0.0] * 8,
                    [0.0] * 8,
                    300 << 20,
                    9,
                    nvcsw=1_000,
                    inflight=p.holds(at_ns),
                ),
            )
        if at_ns % (10 * S):
            return
        for i, gateway in enumerate(self.gateways):
            shows, peers = gateway.clock.at(at_ns), []
            for w, worker in enumerate(self.workers):
                if bounds := self._offsets.pop((i, w), None):
                    peers.append(PeerOffset(worker.inst, worker.clock.name, *bounds))
            gateway.write(at_ns, Clk(shows, WALL_US * US + at_ns, shows + 300, peers))

    def _arrivals(self) -> Iterator[_Waiting]:
        """What the gateways hand over, by when Redis has it (an arrival later by microseconds may come first)."""
        r, plan, at_ns = self._random, self.plan, S
        fates = {"crashed": plan.crashed, "late": plan.late, "left": plan.left, "refused": plan.refused}
        for number in range(plan.requests):
            at_ns += round(r.expovariate(plan.per_s) * S)
            gateway, tokens = r.randrange(plan.gateways), int(r.lognormvariate(3.5, 0.9)) + 1
            g1 = at_ns + int(r.lognormvariate(10.4, 0.5))
            g2 = g1 + int(r.lognormvariate(10.9, 0.5))
            g3 = g2 + int(r.lognormvariate(12.0, 0.8))
            has_it = g3 + int(r.lognormvariate(12.2, 0.4))
            request_id = f"{WALL_US // US + at_ns // MS:012x}{r.getrandbits(48):012x}{number:08x}"
            share, fate = r.random(), ""
            for name, part in fates.items():
                if share < part:
                    fate = name
                    break
                share -= part
            w = _Waiting(has_it, number, request_id, gateway, [at_ns, g1, g2, g3], tokens, fate)
            if fate in ("late", "left", "refused"):
                self._unanswered(w)
            else:
                self.gateways[gateway].held.append(g2)
                yield w

    def _unanswered(self, w: _Waiting) -> None:
        """The gateway ended it by itself."""
        g0, g1, g2, g3 = w.g
        ended = {"refused": g3 + 500 * US, "left": g3 + 40 * MS, "late": g0 + 2 * S}[w.fate]
        status = {"refused": 429, "left": 499, "late": 504}[w.fate]
        g5, g6 = (ended + 30 * US, ended) if w.fate == "left" else (ended, ended + 60 * US)
        at = (g0, g1, g2, 0 if w.fate == "refused" else g3, 0 if w.fate == "refused" else g3 + MS, g5, g6)
        p = self.gateways[w.gateway]
        g = [p.clock.at(t) if t else 0 for t in (*at, ended + 90 * US, ended + 120 * US)]
        line = Req(
            w.id, _trace(w), "a" * 16, "infer", status, g[0], g[8], model="minilm", version="1", g1=g[1], g2=g[2],
            g3=g[3], g4=g[4], g5=g[5], g6=g[6], g7=g[7], rows=1, deadline_ms=2_000, error_code=w.fate,
        )  # fmt: skip
        if w.fate != "refused":
            p.held += g2, -g5
        p.write(ended + 130 * US, line)

    def _pass(self, worker: int, free_ns: int, start_ns: int, batch: list[_Waiting], queue: list[_Waiting]) -> int:
        """Run a batch; returns when the worker is free again. What crashes comes back a lease later."""
        r, p = self._random, self.workers[worker]
        w1 = start_ns + int(r.lognormvariate(12.6, 0.4))
        for crashed in [w for w in batch if w.fate == "crashed"]:
            batch.remove(crashed)
            again = _Waiting(
                crashed.has_it_ns + LEASE_NS, crashed.number, crashed.id, crashed.gateway, crashed.g, crashed.tokens,
                "", 2, w1,
            )  # fmt: skip
            heapq.heappush(queue, again)
        if not batch:
            return w1
        p.nth += 1
        batch_id, longest = f"{p.inst}.{p.nth}", max(w.tokens for w in batch)
        decoded = [w1 + (i + 1) * 18 * US for i in range(len(batch))]
        w3 = decoded[-1] + 40 * US
        w4 = w3 + int(r.lognormvariate(11.5, 0.5))
        w5 = w4 + int(r.lognormvariate(12.0, 0.3))
        w6 = w5 + int((3 * MS + len(batch) * longest * 2_200) * r.lognormvariate(0, 0.08))
        if not r.randrange(2_000):
            pause = int(r.lognormvariate(18, 0.5))
            p.write(w6 + pause, Evt("gc", p.clock.at(w6), p.clock.at(w6 + pause), {"generation": 2, "collected": 9}))
            w6 += pause
        w7 = [w6 + (i + 1) * 12 * US for i in range(len(batch))]
        w8 = w7[-1] + int(r.lognormvariate(11.0, 0.5))
        w9 = w8 + int(r.lognormvariate(12.4, 0.4))
        useful, reason = sum(w.tokens for w in batch), "full" if len(batch) == self.plan.batch_max else "idle"
        shows = p.clock.at
        for i, w in enumerate(batch):
            stamps: Stamps = (
                shows(min(free_ns, w1)), shows(w1), shows(decoded[i]), shows(w3), shows(w4), shows(w5), shows(w6),
                shows(w7[i]), shows(w8),
            )  # fmt: skip
            lost_us = (w1 - w.first_ns) // US if w.first_ns else 0
            self._answered(w, worker, stamps, w8, (batch_id, len(batch), reason, useful, longest * len(batch), lost_us))
            p.write(
                w9,
                Wreq(
                    w.id, _trace(w), "a" * 16, "minilm", "1", w.attempt, "DONE", *stamps, p.clock.at(w9),
                    self.gateways[w.gateway].clock.at(w.g[3]), self.gateways[w.gateway].inst,
                    f"{w.has_it_ns // MS}-{i}", lost_us, batch_id, i, 1, w.tokens, 2_277, 1_586,
                ),
            )  # fmt: skip
        p.write(
            w9 + 40 * US,
            Batch(
                batch_id, "minilm", "1", reason, shows(w3), shows(w4), shows(w5), shows(w6), shows(w7[-1]),
                len(batch), len(batch), self.plan.batch_max, useful, [w.id for w in batch], [w.tokens for w in batch],
                oldest_wait=w3 - decoded[0],
                tokens_useful=useful, tokens_padded=longest * len(batch), compute=w6 - w5, cpu=w6 - w5, nth=p.nth,
            ),
        )  # fmt: skip
        return w7[-1]

    def _answered(
        self, w: _Waiting, worker: int, stamps: Stamps, w8: int, about: tuple[str, int, str, int, int, int]
    ) -> None:
        r, p = self._random, self.gateways[w.gateway]
        g5 = w8 + int(r.lognormvariate(12.6, 0.5))
        g6 = g5 + int(r.lognormvariate(11.2, 0.6))
        g7 = g6 + int(r.lognormvariate(10.6, 0.4))
        g8 = g7 + int(r.lognormvariate(10.8, 0.4))
        logged_ns = g8 + 50 * US
        p.held.append(-g5)
        g0, g1, g2, g3, g5, g6, g7, g8 = (p.clock.at(t) for t in (*w.g, g5, g6, g7, g8))
        batch_id, size, reason, useful, padded, lost_us = about
        at = self.workers[worker]
        p.write(
            logged_ns,
            Req(
                w.id, _trace(w), "a" * 16, "infer", 200, g0, g8, "", "", "", "minilm", "1", g1, g2, g3,
                g3 + 500 * US, g5, g6, g7, 0, *stamps, at.inst, at.clock.name, w.attempt, lost_us, batch_id, size,
                size, reason, useful, padded, 1, 2_380, 2_321, 2_000, f"{w.has_it_ns // MS}-0", 1, 17,
            ),
        )  # fmt: skip
        lo, hi, n = self._offsets.get((w.gateway, worker), (-(1 << 62), 1 << 62, 0))
        self._offsets[w.gateway, worker] = [max(lo, stamps[8] - g5), min(hi, stamps[1] - g3), n + 1]


def _trace(w: _Waiting) -> str:
    return f"{w.number * 0x9E3779B97F4A7C15 & (1 << 128) - 1:032x}"


def main() -> None:
    """Write the logs that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--per-s", type=float, default=3_000.0)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="folder, made if it is not there")
    a = parser.parse_args()
    Fleet(Plan(requests=a.requests, per_s=a.per_s, hosts=a.hosts, seed=a.seed), a.out).run()


if __name__ == "__main__":
    main()
