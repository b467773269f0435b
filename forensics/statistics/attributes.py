"""What is known of each request beside its time: names as codes, and numbers, which are cut in two where it matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from forensics.statistics.robust import Floats, Ints, Mask, Numbers, quantile_rank

_EDGES = 64


class Term(NamedTuple):
    """An attribute and the value it has: ("worker", "w-2"), ("tokens", "> 512")."""

    attribute: str
    value: str


@dataclass(frozen=True, slots=True)
class Names:
    """A name for each request: `codes` [requests] are indices of `names`, -1 where nothing is known."""

    codes: Ints
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Amounts:
    """A number for each request, [requests]; NaN where nothing is known."""

    values: Numbers


def named(attributes: Mapping[str, Names | Amounts], slow: Mask) -> dict[str, Names]:
    """All attributes by names: a number becomes "<= x" and "> x" where that says most of who is `slow`, or is left out.

    What is missing stays so: that a value is not known may itself be worth an attribute, made by who knows why.
    """
    result = {}
    for name, attribute in attributes.items():
        if isinstance(attribute, Names):
            result[name] = attribute
            continue
        values = np.asarray(attribute.values, dtype=np.float64)
        known = ~np.isnan(values)
        edge = best_cut(values[known], slow[known])
        if edge is not None:
            codes = np.where(known, values > edge, -1).astype(np.int64)
            result[name] = Names(codes, (f"<= {edge:g}", f"> {edge:g}"))
    return result


def best_cut(values: Floats, slow: Mask) -> float | None:
    """The value at which a cut in two (<=, >) tells most about who is slow; None if no cut is worth its description.

    The greatest gain of information over 64 quantiles of all and 64 of the slow, so that a rare value that makes slow
    is found too. Worth it by Fayyad and Irani's (1993) minimum description length.
    """
    count = len(values)
    if count < 2 or not slow.any() or slow.all():
        return None
    edges = np.unique(np.concatenate([_some_quantiles(values), _some_quantiles(values[slow])]))
    at = np.searchsorted(edges, values, side="left")
    below = np.cumsum(np.bincount(at, minlength=len(edges) + 1))[:-1].astype(np.float64)
    slow_below = np.cumsum(np.bincount(at[slow], minlength=len(edges) + 1))[:-1].astype(np.float64)
    inside = below < count
    edges, below, slow_below = edges[inside], below[inside], slow_below[inside]
    if not len(edges):
        return None
    total = float(slow.sum())
    bits = float(_bits(np.array([total]), np.array([float(count)]))[0])
    bits_below, bits_above = _bits(slow_below, below), _bits(total - slow_below, count - below)
    gain = bits - (below * bits_below + (count - below) * bits_above) / count
    best = int(np.argmax(gain))
    price = np.log2(count - 1) + np.log2(7) - 2 * (bits - bits_below[best] - bits_above[best])
    return float(edges[best]) if count * gain[best] > price else None


def _some_quantiles(values: Floats) -> Floats:
    ordered = np.sort(values)
    return ordered[[quantile_rank(len(ordered), i / _EDGES) for i in range(_EDGES)]]


def _bits(part: Floats, whole: Floats) -> Floats:
    """The entropy of yes and no, for `part` yes of `whole`."""
    share = np.clip(part / np.maximum(whole, 1), 1e-12, 1 - 1e-12)
    bits: Floats = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return bits
