"""Which way to use the cores is best: arithmetic on given figures."""

import pytest

from bench.bare import batch_sizes, sample_of
from bench.bare_cells import ONE, Cell, Sample, Way, best_cell, best_rates, choose, evened, sensible_ways, ways
from bench.bare_memory import most_workers
from bench.bare_protocol import Loaded, Ran
from bench.bare_report import figures, verdict


def cell(way: Way, batch: int, *rates: float, ms: float = 1.0) -> Cell:
    samples = tuple(Sample(rate, (int(ms * 1e6),) * 9 + (int(ms * 2e6),), 1.5, 3, 4) for rate in rates)
    return Cell(way, batch, samples)


def ran(requests: int, length_ns: int, *durations_ns: int, cpu_ns: int = 0) -> Ran:
    return Ran(100, 100 + length_ns, list(durations_ns), requests, cpu_ns, requests, 2 * requests)


def test_the_rates_of_processes_add_up_each_over_its_own_time() -> None:
    """One did 10 in 1 s, the other 10 in 2 s: 15 a second, whoever began last."""
    sample = sample_of([ran(10, 10**9, 5, 6, cpu_ns=10**9), ran(10, 2 * 10**9, 7, cpu_ns=10**9)])
    assert sample.per_s == pytest.approx(15)
    assert sample.cores == pytest.approx(1.5)
    assert sample.durations_ns == (5, 6, 7)
    assert (sample.units_useful, sample.units_computed) == (20, 40)
    assert (sample.requests, sample.units_per_s) == (20, pytest.approx(15))


def test_a_window_that_met_longer_texts_is_not_slower_for_that() -> None:
    """Both ways do 100 tokens a second, of texts that have 10 on average: 10 texts a second each."""
    short = Cell(ONE, 1, (Sample(20.0, (1,), 1.0, 100, 100, requests=20, units_per_s=100.0),))
    long = Cell(Way(1, 2), 1, (Sample(5.0, (1,), 1.0, 300, 300, requests=20, units_per_s=100.0),))
    assert [c.per_s for c in evened([short, long])] == [10.0, 10.0]
    assert evened([cell(ONE, 1, 7)])[0].per_s == 7  # nothing is known of units


def test_a_cell_has_medians_and_their_spread() -> None:
    """One disturbed round does not move the figure, but shows."""
    found = cell(ONE, 8, 100, 30, 110, ms=2)
    assert found.per_s == 100
    assert found.per_s_range == (30, 110)
    assert found.pass_ms(50) == pytest.approx(2)
    assert found.pass_ms(99) == pytest.approx(4)
    assert found.padding_share == pytest.approx(0.25)
    assert found.to_json()["per_s_rounds"] == [100, 30, 110]


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, ["1 x 1"]),
        (2, ["1 x 1", "1 x 2", "2 x 1"]),
        (3, ["1 x 1", "1 x 3", "3 x 1"]),
        (4, ["1 x 1", "1 x 4", "2 x 2", "4 x 1"]),
        (8, ["1 x 1", "1 x 8", "2 x 4", "4 x 2", "8 x 1"]),
    ],
)
def test_sensible_ways_use_all_cores(cores: int, expected: list[str]) -> None:
    """And there is one thread of one process to compare with."""
    found = [str(way) for way in sensible_ways(cores)]
    assert set(expected) <= set(found)
    assert all(way.workers * way.threads <= cores for way in sensible_ways(cores))


@pytest.mark.parametrize("cores", range(1, 130))
def test_no_sensible_way_leaves_room_for_another_process(cores: int) -> None:
    """On any machine, and there are not many of them."""
    for way in sensible_ways(cores)[1:]:
        assert (way.workers + 1) * way.threads > cores
    assert len(sensible_ways(cores)) <= 2 * cores**0.5 + 1


def test_named_numbers_are_combined_as_far_as_the_cores_reach() -> None:
    """What does not fit is left out; with one of the two, the other goes by powers of two."""
    assert ways(4, workers=(1, 2), threads=(1, 2, 4)) == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)]
    assert ways(6, threads=(1,)) == [(1, 1), (2, 1), (4, 1), (6, 1)]
    assert ways(4, workers=(2,)) == [(2, 1), (2, 2)]
    assert ways(2, threads=(3,)) == []


def test_each_way_is_judged_at_the_batch_size_that_suits_it() -> None:
    """One may like small batches, another large ones."""
    cells = [cell(ONE, 1, 50), cell(ONE, 8, 60), cell(Way(2, 1), 1, 110), cell(Way(2, 1), 8, 90)]
    assert best_rates(cells) == {ONE: 60, Way(2, 1): 110}
    assert best_cell(cells) == cells[2]


def test_the_quickest_way_is_taken() -> None:
    """When it is quicker than measurements differ."""
    choice = choose({"m": {ONE: 60, Way(1, 2): 90, Way(2, 1): 120}})
    assert (choice.way, choice.top) == (Way(2, 1), Way(2, 1))


def test_a_tie_goes_to_fewer_processes_then_to_fewer_threads() -> None:
    """Four processes that are 3 % better are not worth their memory."""
    choice = choose({"m": {ONE: 30, Way(1, 4): 97, Way(2, 2): 98, Way(4, 1): 100}})
    assert (choice.way, choice.top) == (Way(1, 4), Way(4, 1))
    assert choose({"m": {Way(1, 2): 100, ONE: 100}}).way == ONE


def test_models_that_share_workers_share_the_decision() -> None:
    """What makes one a little quicker must not make another much slower."""
    rates = {"a": {Way(1, 2): 100, Way(2, 1): 120}, "b": {Way(1, 2): 100, Way(2, 1): 50}}
    assert choose(rates).way == Way(1, 2)


def test_memory_bounds_the_number_of_workers() -> None:
    """The best of those that fit."""
    rates = {"m": {ONE: 30, Way(1, 4): 60, Way(2, 2): 90, Way(4, 1): 120}}
    assert choose(rates, workers_max=2).way == Way(2, 2)
    assert choose(rates, workers_max=1).way == Way(1, 4)
    assert choose({}).way == ONE


def test_workers_must_fit_the_memory_that_is_available() -> None:
    """Of 1000 bytes 900 may be used; who runs already is not counted again; one there is always."""
    assert most_workers(300, available=1000) == 3
    assert most_workers(300, running=1, available=1000) == 4
    assert most_workers(5000, available=1000) == 1
    assert most_workers(300) >= 1


def test_batches_are_as_large_as_the_model_allows() -> None:
    """A model without a batch dimension is asked for one at a time."""
    assert batch_sizes(Loaded("m/1", 8, ""), (1, 8, 32)) == [1, 8]
    assert batch_sizes(Loaded("m/1", 0, ""), (1, 8, 32)) == [1]
    assert batch_sizes(Loaded("m/1", 4, ""), (8,)) == [1]


def test_the_verdict_tells_the_gain_and_the_reason() -> None:
    """In words, with the batch sizes it holds for."""
    cells = [cell(ONE, 8, 50), cell(Way(1, 2), 8, 97), cell(Way(2, 1), 4, 100)]
    told = verdict(cells, choose({"m": best_rates(cells)}))
    assert "Best: --workers 1 --threads 2: 97.0 requests/s in batches of 8, 1.94 times 1 x 1" in told
    assert "2 x 1 did 100, which is not more than 5% better" in told
    clear = [cell(ONE, 8, 50), cell(Way(2, 1), 8, 100)]
    assert "no other was as quick" in verdict(clear, choose({"m": best_rates(clear)}))


def test_all_figures_are_ready_for_json() -> None:
    """Each cell, and the choice."""
    cells = [cell(ONE, 1, 50)]
    value = figures(Loaded("m/1", 8, "texts"), cells, choose({"m/1": best_rates(cells)}))
    assert value["best"] == {"workers": 1, "threads": 1}
    assert value["cells"][0]["per_s"] == 50
