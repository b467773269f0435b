"""Clean: much traffic from the first to the last second. It is slower than with little, and stays so."""

from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.injectors.clean_steady import inject
from bench.lineup.scenario import CLEAN, Impact, Scenario

SCENARIO = Scenario(
    cause=CLEAN,
    mechanism="a high, constant rate",
    inject=inject,
    impact=Impact.NONE,
    backgrounds=(replace(TEXTS, rate_per_s=75), replace(ROWS, rate_per_s=120)),
)
