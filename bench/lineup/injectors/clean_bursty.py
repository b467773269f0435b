"""Clean: requests come in bursts, from the first to the last second."""

from dataclasses import replace

from bench.arrivals import Arrivals
from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.injectors.clean_steady import inject
from bench.lineup.scenario import CLEAN, Impact, Scenario

SCENARIO = Scenario(
    cause=CLEAN,
    mechanism="bursty arrivals all the time",
    inject=inject,
    impact=Impact.NONE,
    backgrounds=tuple(replace(b, arrivals=Arrivals.BURSTY, burst_mean=3.0) for b in (TEXTS, ROWS)),
)
