"""What the scripts that measure a whole stack compute, and what they start it with."""

import argparse
import math
from pathlib import Path

import pytest

from bench import big_tensors, cells, curves, overhead, redis_floor, texts
from bench.big_tensors import ALONE, BESIDE, LARGE, SMALL
from bench.memory import Sizes
from bench.stack import AUTO, ECHO, MINILM, MLP, WEIGH, repository, with_dtype, workers_of
from shared.broker.embedded import EmbeddedRedis
from worker.models import manifest


def test_cells_are_medians_with_their_spread() -> None:
    """One disturbed round does not move a figure, but shows."""
    found = [{"server": "a", "per_s": rate} for rate in (1000, 30, 1200)] + [{"server": "b"}]
    own = cells.of(found, server="a")
    assert cells.median(own, "per_s") == 1000
    assert cells.spread(own, "per_s") == "1,000 (30.0 to 1,200)"
    assert cells.spread(own[:1], "per_s") == "1,000"
    assert cells.total([{"errors": 1}, {"errors": 2}, {}], "errors") == 3


def test_what_was_not_measured_is_left_empty() -> None:
    """The bare server has no worker whose CPU could be told."""
    assert math.isnan(cells.median([{"server": "b"}], "per_s"))
    assert cells.shown([{"server": "b"}], "per_s") == ""
    assert cells.spread([], "per_s") == ""


@pytest.mark.parametrize(("value", "shown"), [(0.1234, "0.12"), (12.34, "12.3"), (4358.4, "4,358"), (-0.5, "-0.50")])
def test_a_figure_has_about_three_digits(value: float, shown: str) -> None:
    """More would be noise."""
    assert cells.figure(value) == shown


def test_a_rate_may_be_a_share_of_what_the_closed_loop_did() -> None:
    """90 % of saturation is another rate on each machine."""
    assert texts.rate_of("45", 100.0) == 45
    assert texts.rate_of("90%", 60.0) == pytest.approx(54)


def test_tailrace_is_compared_with_the_bare_model_round_by_round() -> None:
    """Each closed loop with what the bare model did just before it."""
    found = [
        {"what": what, "tokens_per_s": n} for what, n in (("bare", 100), ("closed", 90), ("bare", 50), ("closed", 40))
    ]
    assert [c["share"] for c in texts.share_of_bare(found)] == [0.9, 0.8]


def test_small_requests_are_compared_round_by_round() -> None:
    """p99 beside large tensors over p99 alone, of mlp only."""
    rounds = [(ALONE, SMALL, 10), (BESIDE, SMALL, 15), (BESIDE, LARGE, 99), (ALONE, SMALL, 20), (BESIDE, SMALL, 50)]
    found = [{"turn": turn, "model": model, "p99_ms": ms} for turn, model, ms in rounds]
    assert big_tensors.ratios(found, "p99_ms") == [1.5, 2.5]


def test_the_points_of_a_curve_are_measured_to_and_fro() -> None:
    """A machine that gets slower all the time would else favour the first."""
    a = argparse.Namespace(rounds=2, points=[1, 8])
    assert curves.turns(a) == [(0, 1), (0, 8), (1, 8), (1, 1)]


def test_a_table_has_a_line_for_each_point_and_server() -> None:
    """Two servers have the same points."""
    points = [{"server": s, "connections": c, "per_s": 9.0, "errors": 0} for s in ("a", "b") for c in (1, 8)]
    assert curves.table("connections", points).row_count == 4
    assert curves.table("gateways", [{"gateways": n, "per_s": 9.0, "errors": 0} for n in (1, 1, 2)]).row_count == 2
    assert overhead.table([]).row_count == 0


def test_what_a_request_in_flight_costs_is_beyond_its_body() -> None:
    """10 requests of 1,000 bytes: a connection took 200, a request in it 300 beyond the body, and 50 stayed."""
    cell = Sizes(fresh=1_000, connected=3_000, parked=16_000, answered=3_500).cell(10, 1_000)
    kept = {key: cell[f"{key}_bytes"] for key in ("connection", "request", "both", "kept")}
    assert kept == {"connection": 200, "request": 300, "both": 500, "kept": 50}


def test_the_workers_may_be_found_by_measurement() -> None:
    """`auto` is no number; 0 workers would answer nothing."""
    assert workers_of("auto") == AUTO
    assert workers_of("3") == 3
    assert workers_of("0") == 1


def test_models_are_copied_and_take_another_number_format(tmp_path: Path) -> None:
    """Only those that have the parameter; what is measured are copies, under the names that the scripts use."""
    made = repository(tmp_path, {"minilm": MINILM, "small": MLP, "large": WEIGH, "echo": ECHO}, dtype="bfloat16")
    problems: list[str] = []
    read = {
        p.parent.name: manifest.read(p, name=p.parent.name, version="1", problems=problems) for p in made.glob("*/1")
    }
    assert not problems
    assert sorted(read) == ["echo", "large", "minilm", "small"]
    configs = {name: config for name, config in read.items() if config}
    assert configs["minilm"].parameters == {"dtype": "bfloat16"}
    assert configs["small"].parameters == {}
    assert with_dtype('dtype = "float32"\n', "int8") == 'dtype = "int8"\n'


async def test_the_floor_of_redis_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """It runs in the stack's own Redis."""
    server = EmbeddedRedis(tmp_path / "r", appendonly=False)
    await server.start()
    try:
        found = redis_floor.measure(server.url, 0.01)
        assert found["pings_per_s"] > 0
        assert found["messages_per_s"] > 0
        with redis_floor.Client(server.url) as client:
            assert client.ask([("DBSIZE",)]) == [0]
    finally:
        await server.stop()
