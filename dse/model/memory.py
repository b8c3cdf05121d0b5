"""What fits: resident bytes of a serving device (docs/model.md, section 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def resident_byte(
    weights_byte: ArrayLike, g: ArrayLike, batch: ArrayLike, sequence_kv_byte: ArrayLike, share: ArrayLike
) -> Floats:
    """Bytes one of g devices holds while serving: weights/g + b kv share.

    >>> float(resident_byte(13.4e9, 2, 10, 0.5e9, 0.5))
    9200000000.0
    """
    return np.asarray(weights_byte) / np.asarray(g, dtype=np.float64) + np.asarray(
        batch, dtype=np.float64
    ) * np.asarray(sequence_kv_byte) * np.asarray(share)


def usable_byte(memory_byte: float, reserve_frac: ArrayLike) -> Floats:
    """Memory left after the reserve for activations, fragmentation and the runtime: M (1 - reserve).

    >>> float(usable_byte(40e9, 0.1))
    36000000000.0
    """
    return memory_byte * (1.0 - np.asarray(reserve_frac, dtype=np.float64))


def largest_batch(
    usable: ArrayLike, weights_byte: ArrayLike, g: ArrayLike, sequence_kv_byte: ArrayLike, share: ArrayLike
) -> Floats:
    """Most sequences that fit beside the weights; 0 where not even one does.

    >>> float(largest_batch(36e9, 13.476e9, 1, 1280 * 524288, 1.0))
    33.0
    """
    left = np.asarray(usable) - np.asarray(weights_byte) / np.asarray(g, dtype=np.float64)
    per_sequence = np.asarray(sequence_kv_byte, dtype=np.float64) * np.asarray(share)
    return np.floor(np.maximum(left, 0.0) / per_sequence)
