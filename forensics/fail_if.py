"""Conditions for a verdict: `p99>+5%` fails when the confidence limits, not the estimate, show the breach.

A condition is about B against A when its number has a sign and a per cent, and about B alone when it has not:

    pNN>+X%         the quantile grew by more than X % (with -X %: did not fall by as much)
    pNN>Yms         the quantile of B is above Y (also us and s)
    errors>X%       more than X % of B's requests failed
    throughput<-X%  the throughput fell by more than X %
"""

import math
import re
from dataclasses import dataclass

from forensics.compare import Comparison
from forensics.run_figures import quantile_name
from forensics.statistics.runs import mean_interval

GRAMMAR = "write p99>+5%, p99>100ms, errors>1% or throughput<-5%"
_condition = re.compile(
    r"(?P<what>p(?P<nn>\d+(?:\.\d+)?)|errors|throughput)\s*(?P<op>[<>])\s*"
    r"(?P<sign>[+-]?)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|us|ms|s)"
)
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `limit` is a share (0.05), or ns when `absolute` and of a latency."""

    text: str
    measure: str
    limit: float
    absolute: bool
    quantile: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A condition and what the runs say of it, in the unit of its limit. Not `decidable`: too few runs to ever say."""

    condition: Condition
    value: float
    lo: float
    hi: float
    breached: bool

    @property
    def decidable(self) -> bool:
        """True when this many runs could have shown a breach."""
        return math.isfinite(self.lo) and math.isfinite(self.hi)


def parse_condition(text: str) -> Condition:
    """The condition that a text says. Raises ValueError, which tells what can be written."""
    m = _condition.fullmatch(text.strip())
    if m is None:
        raise ValueError(f"{text!r} is no condition; {GRAMMAR}")
    what, op, sign, unit = m["what"], m["op"], m["sign"], m["unit"]
    number = float(sign + m["number"])
    if what == "errors":
        if op == "<" or sign or unit != "%":
            raise ValueError(f"{text!r}: of errors, only the rate of B can be bounded: write errors>1%")
        return Condition(text, what, number / 100, True)
    if what == "throughput":
        if op == ">" or not sign or unit != "%":
            raise ValueError(f"{text!r}: throughput is compared with A's: write throughput<-5%")
        return Condition(text, what, number / 100, False)
    share = float(m["nn"]) / 100
    if not 0 < share < 1:
        raise ValueError(f"{text!r}: a quantile lies between p0 and p100; {GRAMMAR}")
    if op == "<":
        raise ValueError(f"{text!r}: a latency fails by being too long; {GRAMMAR}")
    if unit == "%":
        if not sign:
            raise ValueError(f"{text!r}: a change needs its sign: write {quantile_name(share)}>+{m['number']}%")
        return Condition(text, quantile_name(share), number / 100, False, share)
    if sign:
        raise ValueError(f"{text!r}: a bound of B alone has no sign; a change is in per cent; {GRAMMAR}")
    return Condition(text, quantile_name(share), number * _NS[unit], True, share)


def judge(condition: Condition, c: Comparison) -> Judged:
    """What the comparison says of a condition; its quantile must be among those compared."""
    measure = c.measure(condition.measure)
    if not condition.absolute:
        lo, hi = measure.limits if measure.shift.bounded else (-math.inf, math.inf)
        breached = hi < condition.limit if condition.measure == "throughput" else lo > condition.limit
        return Judged(condition, measure.change, lo, hi, breached)
    if condition.quantile is None:
        lo, hi = mean_interval(measure.b, confidence=c.confidence)
        return Judged(condition, sum(measure.b) / len(measure.b), lo, hi, lo > condition.limit)
    logs = [math.log(value) for value in measure.b]
    lo, hi = mean_interval(logs, confidence=c.confidence)
    value = math.exp(sum(logs) / len(logs))
    if math.isfinite(hi):
        lo, hi = math.exp(lo), math.exp(hi)
    return Judged(condition, value, lo, hi, lo > condition.limit)
