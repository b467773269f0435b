"""What `compare` makes of runs: the difference, where it is, whether it is the traffic, and what blurs it."""

from itertools import pairwise
from typing import Any

import pytest
from simulated_runs import MS, compared, run, sides

from forensics.compare import mix_and_rate
from forensics.compare_report import lines, to_json
from forensics.run_figures import quantile, slices


def test_a_slower_pass_is_shown_and_found_in_the_segment() -> None:
    """10 % more in the forward pass: the quantile's interval holds it, and the segment has nearly all of it."""
    c = compared(*sides(b={"forward": 1.1}))
    p99 = c.measure("p99")
    assert p99.shift.shown
    assert p99.limits[0] < 0.1 < p99.limits[1]
    forward = next(p for p in c.parts if p.segment == "forward")
    total = sum(p.b_ns - p.a_ns for p in c.parts)
    assert forward.shift.shown
    assert (forward.b_ns - forward.a_ns) / total > 0.9
    assert not next(p for p in c.parts if p.segment == "stream_wait").shift.shown


def test_the_parts_sum_to_the_quantile_exactly() -> None:
    """On each side, to well below a nanosecond: what is told adds up."""
    a, b = sides(b={"forward": 1.1})
    c = compared(a, b)
    for runs, total in ((a, sum(p.a_ns for p in c.parts)), (b, sum(p.b_ns for p in c.parts))):
        assert total == pytest.approx(sum(quantile(r.e2e_ns, 0.99) for r in runs) / len(runs), abs=0.01)


def test_no_difference_says_what_is_ruled_out() -> None:
    """Not shown is not the same as none: the text tells what would have been seen."""
    c = compared(*sides())
    text = "\n".join(lines(c))
    assert not c.measure("p99").shift.shown
    assert "p99: no difference is shown (95 % interval" in text
    assert "is ruled out" in text


def test_more_large_requests_are_the_traffic_not_the_system() -> None:
    """The mix explains a p90 that grew though every request takes as long as before."""
    a, b = sides(b={"large": 0.09})
    mix = mix_and_rate(b, a, 0.9)  # from few large requests to many
    grown = mix.b_ns - mix.a_ns
    assert grown > 10 * MS
    assert mix.mix_ns + mix.rate_ns == grown
    assert abs(mix.rate_ns) < 0.1 * grown
    assert mix.kinds[0].name in ("small", "large")


def test_a_slower_system_is_not_the_traffic() -> None:
    """And the other way round."""
    mix = mix_and_rate(*sides(b={"forward": 1.2}), 0.9)
    assert abs(mix.mix_ns) < 0.1 * mix.rate_ns


def test_kinds_that_only_b_has_are_told() -> None:
    """Nothing of A can stand for them."""
    a, b = sides(b={"kind_names": ["small", "huge"]})
    mix = mix_and_rate(a, b, 0.9)
    assert mix.unseen_share == pytest.approx(0.2, abs=0.02)
    assert "of B's requests are of kinds that A never had" in "\n".join(lines(compared(a, b)))


def warnings(**options: Any) -> str:
    """All warnings of a comparison, in one text."""
    c = compared(*sides(**options))
    return "\n".join(c.warnings)


def test_runs_in_turns_give_no_warning() -> None:
    """Five a side, a quiet machine, the same load: nothing to say."""
    assert warnings() == ""


def test_sides_that_were_not_interleaved_are_told() -> None:
    """A night between them looks like a difference."""
    assert "not interleaved: A ran before B" in warnings(interleaved=False)


def test_too_few_runs_are_told() -> None:
    """With what they could show at best, and how many are needed."""
    told = warnings(count=3)
    assert "3 runs a side give at best p = 0.1" in told
    assert "At least 4 a side are needed" in told
    assert "4 runs a side give at best p = 0.029" in warnings(count=4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steal": 0.08}, "stolen by the host of the virtual machine was 1.0% in A and 8.0% in B"),
        ({"runq": 0.2}, "time in the run queue of device threads was 0.0% in A and 20.0% in B"),
        ({"requests": 3_000}, "the load was not the same: 200 requests/s in A and 300 in B"),
        ({"errors": 60}, "0.00% of A's requests and 3.00% of B's failed or were left by their clients"),
        ({"facts": {"worker threads": "1"}}, ""),
        ({"doubts": ["the log of run 1 has gaps"]}, "the log of run 1 has gaps"),
    ],
)
def test_what_differed_besides_is_told(changes: dict[str, Any], words: str) -> None:
    """A stolen core, a queue for the processor, another load, other errors, damaged logs."""
    a, b = sides()
    quiet: dict[str, Any] = {"steal": 0.01, "runq": 0.0, "facts": {"worker threads": "2"}}
    a = [run(i, at_s=40 * i, **quiet) for i in range(5)]
    b = [run(100 + i, at_s=40 * i + 20, **(quiet | changes)) for i in range(5)]
    c = compared(a, b)
    assert words in "\n".join(c.warnings)
    if "facts" in changes:
        assert c.differing == {"worker threads": ("2", "1")}
        assert "worker threads: 2 -> 1" in "\n".join(lines(c))


def test_runs_of_a_side_that_are_not_alike_are_told() -> None:
    """Half of them with other settings are two experiments."""
    a, b = sides()
    a[0] = run(0, facts={"worker threads": "1"})
    a[1] = run(1, at_s=40, facts={"worker threads": "2"})
    assert "the runs of A are not alike: worker threads is 1 or 2" in "\n".join(compared(a, b).warnings)


def test_a_quantile_far_out_in_short_runs_is_doubted() -> None:
    """Its few requests decide alone."""
    assert "lie beyond p99" in warnings(b={"requests": 200})


def test_json_has_every_run_and_no_infinity() -> None:
    """A program sees what each run gave, and null where there is no limit."""
    told = to_json(compared(*sides(count=2)))
    p99 = next(m for m in told["measures"] if m["name"] == "p99")
    assert len(p99["a_runs"]) == len(p99["b_runs"]) == 2
    assert p99["lo"] is None
    assert p99["hi"] is None
    assert sum(part["change_ns"] for part in told["where"]) == pytest.approx(
        sum(p99["b_runs"]) / 2 - sum(p99["a_runs"]) / 2, abs=0.1
    )


def test_slices_cover_everything_once() -> None:
    """No instant lies in two of them, and none in none."""
    cut = slices(100, 1_099, 7)
    assert cut[0].since_us == 100
    assert cut[-1].until_us == 1_100
    assert all(a.until_us == b.since_us for a, b in pairwise(cut))
