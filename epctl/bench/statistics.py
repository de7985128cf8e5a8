"""The median of samples, how well it is known, and when there are enough of them."""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec import Struct

CONFIDENCE = 0.95
ENOUGH = 0.01
"""Share of the median that its interval may be wide."""


class Median(Struct, frozen=True):
    """A median with its confidence interval; without bounds when there are too few samples for one."""

    value: float
    low: float | None
    high: float | None
    num_samples: int

    @property
    def width(self) -> float:
        """Width of the interval as a share of the median; infinite without an interval."""
        if self.low is None or self.high is None:
            return math.inf
        if self.high == self.low:
            return 0.0
        return (self.high - self.low) / self.value if self.value > 0 else math.inf


@lru_cache(maxsize=4096)
def rank_of_bound(num_samples: int, confidence: float = CONFIDENCE) -> int:
    """The greatest k, from 1, for which the k-th smallest and k-th largest of that many samples hold the true median between
    them with at least `confidence`; 0 when even the extremes do not (fewer than 6 samples for 95 %).

    The number of samples below the median is binomial (n, 1/2), whatever the distribution: the interval of order statistics
    k and n + 1 - k misses it with 2 P(X < k) (H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1).
    """
    below, term, k = 0.0, 0.5**num_samples if num_samples < 1000 else 0.0, 0
    if num_samples >= 1000:
        return _rank_by_logarithms(num_samples, confidence)
    while k < num_samples // 2:
        below += term
        if 2 * below > 1 - confidence:
            break
        k += 1
        term *= (num_samples - k + 1) / k
    return k


def _rank_by_logarithms(num_samples: int, confidence: float) -> int:
    """The same where 2^-n is smaller than any number."""
    below, k = 0.0, 0
    whole = math.lgamma(num_samples + 1) - num_samples * math.log(2)
    while k < num_samples // 2:
        below += math.exp(whole - math.lgamma(k + 1) - math.lgamma(num_samples - k + 1))
        if 2 * below > 1 - confidence:
            break
        k += 1
    return k


def median(samples: list[float], confidence: float = CONFIDENCE) -> Median:
    """Median and interval. Raises ValueError without samples."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    count = len(ordered)
    middle = ordered[count // 2]
    value = middle if count % 2 else (ordered[count // 2 - 1] + middle) / 2
    k = rank_of_bound(count, confidence)
    return Median(value, ordered[k - 1] if k else None, ordered[count - k] if k else None, count)


class Rule(Struct, frozen=True):
    """When sampling ends."""

    budget_s: float = 2.0
    """Of one case."""
    num_samples: int = 0
    """As many, and no fewer; 0: until the median is known well enough."""
    max_samples: int = 2000

    def next_batch(self, samples: list[float], spent_s: float) -> int:
        """How many more samples to take; 0 when it is enough."""
        count = len(samples)
        if self.num_samples:
            return min(self.num_samples - count, 64)
        if count == 0:
            return 10
        if count >= self.max_samples or spent_s >= self.budget_s or median(samples).width < ENOUGH:
            return 0
        affordable = int((self.budget_s - spent_s) / max(spent_s / count, 1e-9))
        return max(1, min(count, 200, affordable, self.max_samples - count))
