"""The traffic of a run: chance falls the same way whatever a scenario changes."""

from dataclasses import replace
from statistics import mean, median
from typing import Any

import orjson
import pytest

from bench.arrivals import Arrivals
from bench.lineup.backgrounds import ROWS, TEXTS, Background
from bench.lineup.sizes import Constant, Either, LogNormal, Mix, OneOf
from bench.lineup.traffic import Traffic

S = 1_000_000_000


def planned(background: Background, seed: int = 1, seconds: int = 20, **changes: Any) -> list[tuple[int, int, str]]:
    """Instant, length and label of each request."""
    traffic = Traffic(background, authority="h", model="m", seed=seed)
    for name, value in changes.items():
        setattr(traffic, name, value)
    found = []
    for at_ns, request in traffic.plan(seconds * S):
        sent = traffic.sent[id(request.message)]
        body = orjson.loads(request.message.partition(b"\r\n\r\n")[2])
        assert len(body["inputs"][0]["data"]) == sent.tokens == body["inputs"][0]["shape"][1]
        assert f"x-request-id: {sent.label}\r\n".encode() in request.message
        found.append((at_ns, sent.tokens, sent.label))
    return found


def test_one_seed_gives_one_traffic() -> None:
    """And another seed another one."""
    assert planned(TEXTS) == planned(TEXTS)
    assert planned(TEXTS) != planned(TEXTS, seed=2)


def test_other_lengths_come_at_the_same_instants() -> None:
    """A run with a fault and its calm twin differ by the fault alone."""
    usual, longer = planned(TEXTS), planned(TEXTS, mix=TEXTS.mix.scaled(2))
    assert [at for at, _, _ in usual] == [at for at, _, _ in longer]
    assert mean(tokens for _, tokens, _ in longer) == pytest.approx(2 * mean(tokens for _, tokens, _ in usual), rel=0.1)


def test_a_change_may_pick_requests_by_a_chance_of_its_own() -> None:
    """The others keep their lengths."""
    usual = planned(TEXTS)
    changed = planned(TEXTS, change=lambda tokens, other: (999, True) if other < 0.1 else (tokens, False))
    picked = [tokens == 999 for _, tokens, _ in changed]
    assert 0.05 < mean(picked) < 0.15
    assert all(old == new or new[1] == 999 for old, new in zip(usual, changed, strict=True))


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_the_rate_is_what_the_background_says(arrivals: Arrivals) -> None:
    """However requests arrive; and a factor multiplies it."""
    background = replace(ROWS, arrivals=arrivals, rate_per_s=50)
    assert len(planned(background, seconds=100)) == pytest.approx(5000, rel=0.1)
    assert len(planned(background, seconds=100, rate_factor=2.0)) == pytest.approx(10000, rel=0.1)


def test_bodies_that_are_ready_are_sent_as_they_are() -> None:
    """A megabyte is not put together while others wait to be sent."""
    traffic = Traffic(TEXTS, authority="h", model="m", seed=1)
    traffic.make_ready(100_000)
    one, other = traffic.request(100_000), traffic.request(100_000)
    assert one.message.endswith(traffic.ready[100_000])
    assert other.message.endswith(traffic.ready[100_000])
    assert traffic.sent[id(one.message)].label != traffic.sent[id(other.message)].label


@pytest.mark.parametrize(
    ("mix", "least", "middle", "most"),
    [
        (Constant(32), 32, 32, 32),
        (LogNormal(32, 0.8, 400), 5, 32, 206),
        (Either(16, 256, 0.1), 16, 16, 256),
        (OneOf((16, 24, 32)), 16, 24, 32),
    ],
)
def test_a_mixture_maps_chance_to_lengths(mix: Mix, least: int, middle: int, most: int) -> None:
    """Monotone, so that a seed's short requests stay the short ones."""
    sizes = [mix.size(share) for share in (0.01, 0.5, 0.99)]
    assert sizes == [least, middle, most]
    assert median(mix.scaled(2).size(share / 100) for share in range(1, 100)) == pytest.approx(2 * middle, abs=1)
