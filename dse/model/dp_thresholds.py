"""When a data-parallel mix pays: threshold 1, threshold 2, and the least bandwidth between its pools.

[paper] Fig. 5 and 7 (arXiv 2610.39222); docs/training.md. Over the axis G = 1, 2, 4, ... of global batches:
threshold 1 is the smallest at which several pools together beat each alone, threshold 2 the smallest from which on
they stay at 95 % of the sum of the pools and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dse.model.dp_training import crossing_byte, synchronisation_s
from dse.model.fleet import share_of
from dse.model.partition import Partition, best_partition
from dse.model.share_time import ShareTime

Floats = NDArray[np.float64]

LARGEST_BATCH = 2**14
SATURATED = 0.95
"""Share of the aggregate from which on the gains count as saturated."""


def batch_axis(largest: int = LARGEST_BATCH) -> Floats:
    """Global batches 1, 2, 4, ... up to the largest."""
    return np.asarray(2.0 ** np.arange(int(np.log2(largest)) + 1), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScaling:
    """One fleet over an axis of global batches (B,)."""

    batch: Floats
    hybrid: Partition
    """The best division; a single pool where that is best."""
    alone_s: Floats
    """Step time of each pool alone (B, P); infinite where it cannot hold the batch."""
    pools: tuple[ShareTime, ...]
    """Each pool's time, repeated for every batch."""
    parameters: float
    latency_s: float
    overlap_frac: float

    @property
    def least_link_byte_s(self) -> Floats:
        """Bandwidth at which the mix equals the best single pool; infinite if none would do (B,)."""
        return least_link_byte_s(self.pools, self.batch, self.parameters, self.latency_s, self.overlap_frac)

    @property
    def samples_s(self) -> Floats:
        """Throughput of the best division."""
        return share_of(self.batch, self.hybrid.step_s)

    @property
    def aggregate_samples_s(self) -> Floats:
        """Sum of the pools, each alone."""
        return share_of(self.batch[:, None], self.alone_s).sum(axis=1)

    @property
    def threshold_1(self) -> float:
        """Smallest global batch at which a mix beats every single pool; infinite if none does."""
        mixed = self.hybrid.n_active > 1
        return float(self.batch[mixed][0]) if mixed.any() else float("inf")

    @property
    def threshold_2(self) -> float:
        """Smallest global batch from which on the throughput stays at 95 % of the aggregate; infinite if none."""
        below = np.flatnonzero(self.samples_s < SATURATED * self.aggregate_samples_s)
        after = int(below[-1]) + 1 if len(below) else 0
        return float(self.batch[after]) if after < len(self.batch) else float("inf")


def batch_scaling(
    pools: Sequence[ShareTime],
    batch: Floats,
    parameters: float,
    link_byte_s: float,
    latency_s: float,
    overlap_frac: float,
) -> BatchScaling:
    """One fleet (each pool's time of one row) over global batches (B,)."""
    repeated = [p.rows(np.zeros(len(batch), dtype=np.intp)) for p in pools]
    counts = np.arange(len(pools) + 1)
    sync, whole = (
        synchronisation_s(counts, parameters, np.array(link_byte_s), np.array(latency_s), overlap)
        for overlap in (overlap_frac, 0.0)
    )
    return BatchScaling(
        batch=batch,
        hybrid=best_partition(repeated, batch, sync, whole),
        alone_s=np.stack([p.time_s(batch) for p in repeated], axis=1),
        pools=tuple(repeated),
        parameters=parameters,
        latency_s=latency_s,
        overlap_frac=overlap_frac,
    )


def least_link_byte_s(
    pools: Sequence[ShareTime], batch: Floats, parameters: float, latency_s: float, overlap_frac: float
) -> Floats:
    """Bandwidth S at which several pools together are as fast as the best alone [byte/s] (B,).

    With T_p the shortest step of p pools without their exchange and T_1 that of the best pool alone,

        S = min over p of (1 - overlap) 2 (p-1)/p 2 parameters/(T_1 - T_p - (1 - overlap) l)

    and no less than 2 (p-1)/p 2 parameters/(T_1 - l), since the whole exchange must fit into the step; infinite where
    no p leaves time for an exchange.
    """
    alone = np.stack([p.time_s(batch) for p in pools], axis=1).min(axis=1)
    exposed, least = 1.0 - overlap_frac, np.full(len(batch), np.inf)
    for size in range(2, len(pools) + 1):
        free = np.zeros(size + 1)
        together = [best_partition(subset, batch, free).compute_s for subset in combinations(pools, size)]
        fastest = np.minimum.reduce(together)
        both = np.isfinite(alone) & np.isfinite(fastest)
        spare_s = np.where(both, np.where(both, alone, 0.0) - np.where(both, fastest, 0.0), 0.0) - exposed * latency_s
        needed = exposed * crossing_byte(np.array(size), parameters)
        whole_s = np.where(both, np.where(both, alone, 0.0) - latency_s, 0.0)
        fitting = np.divide(crossing_byte(np.array(size), parameters), whole_s, out=np.full(len(batch), np.inf),
                            where=whole_s > 0)  # fmt: skip
        only = np.isfinite(fastest) & ~np.isfinite(alone)
        found = np.divide(needed, spare_s, out=np.full(len(batch), np.inf), where=spare_s > 0)
        least = np.minimum(least, np.where(only, 0.0, np.maximum(found, fitting)))
    return least
