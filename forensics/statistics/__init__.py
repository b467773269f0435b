"""The statistics that a diagnosis stands on: pure functions of arrays, no logs, no I/O, no clock.

Each answers one question: `quantiles` where a quantile's time is spent, `mix` whether the traffic or the system
changed, `changes` when, `periods` how often, `contrast` for whom, `runs` whether some runs are slower than others.

All are deterministic: what is random takes a seed. What was measured stands in the docstrings; the worlds that it was
measured on are in `tests/forensics/statistics/latency_worlds.py`.
"""
