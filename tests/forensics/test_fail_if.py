"""Conditions for CI: what can be written, and when they fail."""

import re
from typing import Any

import pytest
from simulated_runs import compared, run, sides

from forensics.compare_report import judgement
from forensics.fail_if import Judged, judge, parse_condition


@pytest.mark.parametrize(
    ("text", "measure", "limit", "absolute"),
    [
        ("p99>+5%", "p99", 0.05, False),
        (" p99.9 > +12.5 % ", "p99.9", 0.125, False),
        ("p50>-3%", "p50", -0.03, False),
        ("p99>100ms", "p99", 100e6, True),
        ("p99>250us", "p99", 250e3, True),
        ("p99>1.5s", "p99", 1.5e9, True),
        ("errors>1%", "errors", 0.01, True),
        ("throughput<-5%", "throughput", -0.05, False),
    ],
)
def test_what_can_be_written(text: str, measure: str, limit: float, absolute: bool) -> None:
    """Each form of the grammar."""
    condition = parse_condition(text)
    assert (condition.measure, condition.absolute) == (measure, absolute)
    assert condition.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("p99", "is no condition"),
        ("", "is no condition"),
        ("p99>5%", "write p99>+5%"),
        ("p99<+5%", "by being too long"),
        ("p99>+5ms", "no sign"),
        ("p0>5ms", "between p0 and p100"),
        ("p100>5ms", "between p0 and p100"),
        ("p990>+5%", "between p0 and p100"),
        ("errors>+1%", "only the rate of B"),
        ("errors<1%", "only the rate of B"),
        ("errors>1ms", "only the rate of B"),
        ("throughput<5%", "throughput<-5%"),
        ("throughput>+5%", "throughput<-5%"),
        ("latency>+5%", "is no condition"),
        ("p99>+1e3%", "is no condition"),
        ("p99>+5%;x", "is no condition"),
    ],
)
def test_a_mistake_says_what_to_write(text: str, hint: str) -> None:
    """Whoever writes it into CI sees at once what was meant."""
    with pytest.raises(ValueError, match=re.escape(hint)):
        parse_condition(text)


def verdict(text: str, *, count: int = 5, **b: Any) -> Judged:
    """What a condition comes to when B differs so."""
    condition = parse_condition(text)
    more = [condition.quantile] if condition.quantile else []
    return judge(condition, compared(*sides(count, b=b), more_quantiles=more))


def test_a_change_fails_by_its_limit_not_by_its_estimate() -> None:
    """10 % slower breaks +5 %, and does not break +10 %, though the estimate is about there."""
    assert verdict("p99>+5%", forward=1.1).breached
    assert not verdict("p99>+10%", forward=1.1).breached
    assert not verdict("p99>+5%").breached
    assert verdict("p99>-20%", forward=0.9).breached  # an improvement of 20 % was promised
    assert not verdict("p99>-5%", forward=0.9).breached


def test_a_bound_is_about_b_alone() -> None:
    """Its p99 is about 64 ms."""
    assert verdict("p99>40ms").breached
    assert not verdict("p99>90ms").breached
    assert verdict("p99>0.04s").breached


def test_errors_and_throughput() -> None:
    """2 % of errors, and a sixth of the answers missing."""
    assert verdict("errors>1%", errors=40).breached
    assert not verdict("errors>2%", errors=40).breached
    assert not verdict("errors>0%").breached
    assert verdict("throughput<-5%", answered_meanwhile=1_600).breached
    assert not verdict("throughput<-5%").breached


def test_too_few_runs_are_never_a_pass() -> None:
    """What could not have failed is told apart from what passed."""
    j = verdict("p99>+5%", count=3, forward=2.0)
    assert not j.breached
    assert not j.decidable
    assert judgement(j, compared(*sides(3))).startswith("????")
    alone = judge(parse_condition("p99>1ms"), compared([run(1)], [run(2)]))
    assert not alone.decidable
