"""What chance allows: how often a thing of some probability may happen in so many runs."""

from math import comb

SURE = 0.99


def at_most(runs: int, share: float) -> int:
    """In no more of the `runs` does a thing of this probability happen, in 99 of 100 series of them."""
    below = 0.0
    for times in range(runs):
        below += comb(runs, times) * share**times * (1 - share) ** (runs - times)
        if below >= SURE:
            return times
    return runs


def at_least(runs: int, share: float) -> int:
    """In no fewer of the `runs`, in 99 of 100 series of them."""
    return runs - at_most(runs, 1 - share)
