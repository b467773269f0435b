"""What changed: the mix of requests, or how they are served?

A window with more large requests is slower though nothing is wrong, and needs another remedy. Requests are sorted into
strata (size and path, say, as one integer code each). The mix effect is what the change of the strata's shares does at
unchanged latencies, the rate effect what the change of the strata's latencies does at unchanged shares.

The old window is reweighted to the new one's mix (DiNardo, Fortin and Lemieux, 1996). A stratum that only one window
knows belongs to the mix.
"""

from dataclasses import dataclass

import numpy as np

from forensics.statistics.robust import Ints, Numbers, quantile, weighted_quantile


@dataclass(frozen=True, slots=True)
class Window:
    """The requests of a stretch of time: what is measured (ns) and the stratum's code of each, both [requests]."""

    value_ns: Numbers
    strata: Ints

    def __post_init__(self) -> None:
        if len(self.value_ns) != len(self.strata) or not len(self.strata):
            raise ValueError(f"{len(self.value_ns)} values and {len(self.strata)} strata; need as many, and at least 1")


@dataclass(frozen=True, slots=True)
class QuantileChange:
    """after_ns - before_ns = mix_ns + rate_ns; `reweighted_ns` is the old window's quantile under the new mix.

    `covered` is the share of the new window's requests whose stratum the old one knows. `effective_requests` is how
    many requests of equal weight the reweighted window is worth: with few, do not trust the parting.
    """

    before_ns: float
    reweighted_ns: float
    after_ns: float
    covered: float
    effective_requests: float

    @property
    def mix_ns(self) -> float:
        """What the new mix alone would have changed."""
        return self.reweighted_ns - self.before_ns

    @property
    def rate_ns(self) -> float:
        """What is left: requests of the same kind take another time."""
        return self.after_ns - self.reweighted_ns


def quantile_change(before: Window, after: Window, p: float) -> QuantileChange:
    """Part the change of the p-quantile into mix and rate."""
    codes = np.unique(np.concatenate([before.strata, after.strata]))
    share_a, share_b = (
        np.bincount(np.searchsorted(codes, window.strata), minlength=len(codes)) / len(window.strata)
        for window in (before, after)
    )
    known = share_a > 0
    ratio = np.divide(share_b, share_a, out=np.zeros(len(codes)), where=known)
    weight_a = ratio[np.searchsorted(codes, before.strata)] / len(before.strata)
    # Requests of kinds that the old window does not know stand for themselves: their coming is a change of the mix.
    new = ~known[np.searchsorted(codes, after.strata)]
    values = np.concatenate([before.value_ns, after.value_ns[new]])
    weights = np.concatenate([weight_a, np.full(int(new.sum()), 1 / len(after.strata))])
    return QuantileChange(
        quantile(before.value_ns, p),
        weighted_quantile(values, weights, p),
        quantile(after.value_ns, p),
        float(share_b[known].sum()),
        float(weights.sum() ** 2 / (weights**2).sum()),
    )
