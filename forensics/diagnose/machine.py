"""What the machines did beside serving: cores in use, and by whom."""

import numpy as np

from forensics.diagnose.case import Case
from forensics.diagnose.window import Floats

FULL = 92.0
"""Per cent of all cores in use: from here on somebody waits."""


def cores_in_use(case: Case) -> Floats:
    """Per cent of one core, by second, summed over the cores of the machine that is busiest; NaN without samples."""
    best = np.full(case.bins, np.nan)
    for samples in case.window.samples:
        used = case.sampled(samples, "cpu_user") + case.sampled(samples, "cpu_system")
        best = np.fmax(best, used)
    return best


def cores_of(case: Case) -> float:
    """How many cores the machine has, by its `hello`s; at least 1."""
    return float(max(1, case.window.cores))


def ours(case: Case) -> Floats:
    """Per cent of one core that our own processes used, by second."""
    total = np.zeros(case.bins)
    for samples in case.window.samples:
        total += np.nan_to_num(case.sampled(samples, "cpu_process"))
    return total


def foreign(case: Case) -> Floats:
    """Per cent of one core that others used: what was in use, less what our processes used; Redis counts as one of us
    only as far as nobody can tell: it has no log."""
    return np.maximum(cores_in_use(case) - ours(case), 0.0)


def short_of_cores(case: Case) -> float:
    """The share of the seconds of the tail's requests in which all cores were in use."""
    used = cores_in_use(case)
    seconds = np.unique(case.request_bin[case.tail])
    known = seconds[~np.isnan(used[seconds])]
    return float(np.mean(used[known] >= FULL * cores_of(case))) if len(known) else 0.0
