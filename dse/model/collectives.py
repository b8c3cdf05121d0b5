"""Collectives and hops inside one instance (docs/model.md, section 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def allreduce_s(
    message_byte: ArrayLike,
    g: ArrayLike,
    link_byte_s: ArrayLike,
    link_efficiency: float,
    latency_s: ArrayLike,
) -> Floats:
    """Time of one ring all-reduce over g devices [s].

    0 if g = 1, else l0 + 2 (g-1)/g x / (C e_link). The latency of small messages hardly grows with g.

    Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, doi:10.1177/1094342005051521.

    >>> float(allreduce_s(1e9, 4, 300e9, 0.8, 5e-6))
    0.006255
    """
    x, n = np.asarray(message_byte, dtype=np.float64), np.asarray(g, dtype=np.float64)
    transfer_s = 2.0 * (n - 1.0) / n * x / (np.asarray(link_byte_s) * link_efficiency)
    return np.where(n > 1.0, np.asarray(latency_s) + transfer_s, 0.0)


def hop_s(message_byte: ArrayLike, link_byte_s: float, link_efficiency: float, latency_s: float) -> Floats:
    """Time to pass activations from one pipeline device to the next [s]: l0 + x / (C e_link).

    >>> float(hop_s(1.2e9, 150e9, 0.8, 2e-6))
    0.010002
    """
    return latency_s + np.asarray(message_byte, dtype=np.float64) / (link_byte_s * link_efficiency)
