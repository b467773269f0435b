"""How long requests are: each mixture maps a number from 0 to 1, which chance draws, to a number of tokens. Pure.

The draw and the mixture are apart on purpose: two runs with one seed draw the same numbers, also when one of them
changes its mixture in the middle.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

_NORMAL = NormalDist()


class Mix(Protocol):
    """A distribution of lengths."""

    def size(self, share: float) -> int:
        """The length below which `share` of all requests lie, tokens; 0 < share < 1."""
        ...

    def scaled(self, factor: float) -> "Mix":
        """The same mixture of requests that are `factor` times as long."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """All requests are alike."""

    tokens: int

    def size(self, share: float) -> int:
        return self.tokens

    def scaled(self, factor: float) -> "Constant":
        return Constant(max(1, round(self.tokens * factor)))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Texts as people write them: most are short, some are long."""

    median: float
    sigma: float
    most: int

    def size(self, share: float) -> int:
        tokens = self.median * math.exp(self.sigma * _NORMAL.inv_cdf(min(max(share, 1e-9), 1 - 1e-9)))
        return max(1, min(self.most, round(tokens)))

    def scaled(self, factor: float) -> "LogNormal":
        return LogNormal(self.median * factor, self.sigma, max(1, round(self.most * factor)))


@dataclass(frozen=True, slots=True)
class Either:
    """Requests of two lengths; `large_share` of them are large."""

    small: int
    large: int
    large_share: float

    def size(self, share: float) -> int:
        return self.large if share > 1 - self.large_share else self.small

    def scaled(self, factor: float) -> "Either":
        return Either(max(1, round(self.small * factor)), max(1, round(self.large * factor)), self.large_share)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Requests of a few lengths, each as often as the others."""

    tokens: Sequence[int]

    def size(self, share: float) -> int:
        return self.tokens[min(len(self.tokens) - 1, int(share * len(self.tokens)))]

    def scaled(self, factor: float) -> "OneOf":
        return OneOf([max(1, round(n * factor)) for n in self.tokens])
