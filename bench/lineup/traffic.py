"""What clients send, and when: made while it runs, so that a scenario can change the traffic in the middle.

Chance is drawn in the same order whatever a scenario changes: gaps from one stream, lengths from another. Two runs of
one seed thus differ by the fault alone.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

from bench.arrivals import Arrivals
from bench.lineup.backgrounds import Background
from bench.lineup.sizes import Mix
from bench.oip import JSON_HEADERS
from bench.responses import request_bytes
from bench.workload import Request

VOCABULARY = 4096
POOL_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class Sent:
    """What the clients know of a request: its label, its length, and whether the fault is in it."""

    label: str
    tokens: int
    special: bool = False


class Traffic:
    """The requests of one run. A scenario may set `rate_factor`, `mix` and `change` at any time."""

    def __init__(self, background: Background, *, authority: str, model: str, seed: int) -> None:
        self.rate_factor = 1.0
        self.mix: Mix = background.mix
        self.change: Callable[[int, float], tuple[int, bool]] | None = None
        """From (length, another number drawn from 0 to 1) to the length to send, and whether it is special."""
        self.ready: dict[int, bytes] = {}
        """Bodies by length that are too long to be made while others wait; see `make_ready`."""
        self.sent: dict[int, Sent] = {}
        """By the identity of the message's bytes, which live as long as their exchange."""
        self._background = background
        self._path = f"/v2/models/{model}/infer"
        self._authority = authority
        self._gaps = random.Random(f"{seed}/gaps")
        self._sizes = random.Random(f"{seed}/sizes")
        self._contents = random.Random(f"{seed}/contents")
        self._labels = random.Random(f"{seed}/labels")
        self._pool = [self._contents.randrange(1, VOCABULARY) for _ in range(POOL_TOKENS)]

    def plan(self, duration_ns: int) -> Iterator[tuple[int, Request]]:
        """The requests in the order of their instants, ns from the beginning."""
        at_ns = 0.0
        while True:
            at_ns += self._gap_ns()
            if at_ns >= duration_ns:
                return
            for _ in range(self._burst()):
                share, other = self._sizes.random(), self._sizes.random()
                tokens, special = self.mix.size(share), False
                if self.change is not None:
                    tokens, special = self.change(tokens, other)
                yield int(at_ns), self.request(tokens, special=special)

    def request(self, tokens: int, *, special: bool = False) -> Request:
        """A request of so many tokens."""
        body = self.ready.get(tokens)
        return self.of_body(body or self._body(tokens), tokens, special=special)

    def make_ready(self, tokens: int) -> None:
        """Make the body of so long requests once for all."""
        self.ready[tokens] = self._body(tokens)

    def _body(self, tokens: int) -> bytes:
        at = self._contents.randrange(POOL_TOKENS)
        data = self._pool[at : at + tokens]
        while len(data) < tokens:
            data += self._pool[: tokens - len(data)]
        tensor = {"name": "tokens", "datatype": "INT64", "shape": [1, tokens], "data": data}
        return orjson.dumps({"inputs": [tensor]})

    def of_body(self, body: bytes, tokens: int, *, special: bool = False) -> Request:
        """A request with this body."""
        label = f"{self._labels.getrandbits(64):016x}"
        headers = {"Host": self._authority, **JSON_HEADERS, "x-request-id": label}
        message = request_bytes("POST", self._path, headers, body)
        self.sent[id(message)] = Sent(label, tokens, special)
        return Request(message, 1)

    def _gap_ns(self) -> float:
        b = self._background
        mean_ns = 1e9 / (b.rate_per_s * self.rate_factor)
        match b.arrivals:
            case Arrivals.UNIFORM:
                return mean_ns
            case Arrivals.POISSON:
                return self._gaps.expovariate(1) * mean_ns
            case Arrivals.BURSTY:
                return self._gaps.expovariate(1) * mean_ns * b.burst_mean

    def _burst(self) -> int:
        if self._background.arrivals is not Arrivals.BURSTY:
            return 1
        count = 1
        while self._gaps.random() > 1 / self._background.burst_mean:
            count += 1
        return count
