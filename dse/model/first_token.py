"""The time to first token under load, as a mixture over pools, routes and classes (docs/model.md, section 6).

Prefill     the wait W of each pool is that of G/G/c with the two moments of Allen and Cunneen,
            Wq = C/(c mu - lambda) (ca2 + cs2)/2,  P(W > t) = C exp(-t C/Wq); ca2 of the trace's gaps, 1 for Poisson
TTFT        W + prefill latency + transfer + wait for the link (M/G/1). On an instance that also decodes half a step is
            added, the wait for room, and with chunks a step between two of them

Source: Allen, Probability, Statistics and Queueing Theory (2nd ed., 1990), section 5.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dse.model.decode_load import DecodeLoad
from dse.model.fleet import share_of
from dse.model.queueing import erlang_c, mean_wait_s
from dse.model.serving_flow import Flow, Queues, between_pools, transfer_s
from dse.model.serving_system import System, pair_byte_s, weighted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HALVINGS: Final = 28
"""Of the bracket of a percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """TTFT as a mixture: per part (pool, route, class) its share, what it takes without a wait, and the wait's tail."""

    share: Floats
    fixed_s: Floats
    waits: Floats
    """Probability of waiting at all."""
    decay_s: Floats
    """All (N, M); infinite where the queue is not stable."""

    def below(self, limit_s: Floats) -> Floats:
        """Probability that a part's TTFT is at most so long (N, M); limit (N,)."""
        left = limit_s[:, None] - np.where(np.isfinite(self.fixed_s), self.fixed_s, np.finfo(np.float64).max)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            over = self.waits * np.exp(-np.maximum(left, 0.0) / np.maximum(self.decay_s, 1e-300))
        return np.where((left >= 0) & np.isfinite(self.decay_s), 1.0 - over, 0.0)

    def percentile(self, part: float) -> Floats:
        """TTFT that a share `part` of requests does not exceed (N,)."""
        used = self.share > 0
        slowest = np.where(used, self.fixed_s, 0.0).max(axis=1)
        decay = np.where(used, self.decay_s, 0.0).max(axis=1)
        stable = np.isfinite(decay) & np.isfinite(slowest) & used.any(axis=1)
        slowest = np.where(stable, slowest, 0.0)
        total = self.share.sum(axis=1)
        high = slowest + np.where(stable, decay, 0.0) * np.log(1.0 / (1.0 - part)) + 1e-12

        def enough(limit_s: Floats) -> Bools:
            return np.asarray((self.share * self.below(limit_s)).sum(axis=1) >= part * total)

        return np.where(stable, least(enough, high), np.inf)


def first_token(
    system: System, link: Ints, flow: Flow, rate: Floats, queues: Queues, decodes: list[DecodeLoad], between: Floats
) -> tuple[FirstToken, Floats]:
    """The mixture, and the mean TTFT (N,); `between` is what chunks add, decode steps (N, P, C)."""
    n, n_pools, _, n_classes = flow.z.shape
    arrivals = rate[:, None] * queues.share
    cv2 = queues.cv2 + system.load.arrival_cv2 - 1.0
    wait_s = mean_wait_s(arrivals, queues.servers, queues.mean_s, cv2)
    waits = erlang_c(queues.servers, arrivals * queues.mean_s)
    room_s = np.where(flow.combined, np.stack([d.room_s for d in decodes], axis=1), 0.0)
    room = np.where(room_s > 0, np.stack([d.full for d in decodes], axis=1), 0.0)
    wait_s, waits = wait_s + room_s, 1.0 - (1.0 - waits) * (1.0 - room)
    decay_s = np.where(np.isfinite(wait_s), share_of(np.where(np.isfinite(wait_s), wait_s, 0.0), waits), np.inf)
    step_s = np.where(flow.combined, np.stack([d.step_s for d in decodes], axis=1), 0.0)
    step_s = np.where(np.isfinite(step_s), step_s, 0.0)  # beyond capacity the wait is infinite as it is
    active = np.stack([d.active for d in decodes], axis=1)
    own_s = queues.latency_s + (0.5 * active * step_s)[:, :, None] + between * (active * step_s)[:, :, None]
    moved_s = transfer_s(system, link) + _link_wait_s(system, link, flow, rate)[:, :, :, None]
    crosses = ~np.eye(n_pools, dtype=np.bool_)[None, :, :, None]
    fixed = own_s[:, :, None, :] + np.where(crosses, moved_s, 0.0)
    shape = (n, n_pools * n_pools * n_classes)

    def parts(values: Floats) -> Floats:
        return np.broadcast_to(values, flow.z.shape).reshape(shape)

    mixture = FirstToken(
        share=parts(flow.z),
        fixed_s=parts(fixed),
        waits=parts(waits[:, :, None, None]),
        decay_s=parts(decay_s[:, :, None, None]),
    )
    mean = weighted(queues.share, wait_s).sum(axis=1) + weighted(flow.z, fixed).sum(axis=(1, 2, 3))
    return mixture, mean


def _link_wait_s(system: System, link: Ints, flow: Flow, rate: Floats) -> Floats:
    """Mean wait for the link of each ordered pair, one transfer after the other: M/G/1 (N, P, P) [s]."""
    z, byte_s = between_pools(flow.z), pair_byte_s(system, link)
    share = z.sum(axis=3)
    each_s = system.class_kv_byte / byte_s[:, :, :, None]
    mean_s = share_of(weighted(z, each_s).sum(axis=3), share)
    second = share_of(weighted(z, each_s**2).sum(axis=3), share)
    cv2 = np.maximum(share_of(second, mean_s**2) - 1.0, 0.0)
    busy = (share > 0) & (mean_s > 0)
    wait = mean_wait_s(rate[:, None, None] * share, 1.0, np.where(busy, mean_s, 1.0), cv2)
    return np.where(busy, wait, 0.0)


def least(enough: Callable[[Floats], Bools], high: Floats) -> Floats:
    """Least value in [0, high] that is enough, where all larger ones are (N,), by bisection."""
    low = np.zeros_like(high)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        ok = enough(middle)
        low, high = np.where(ok, low, middle), np.where(ok, middle, high)
    return high
