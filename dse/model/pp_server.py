"""The wafers that serve every stage, and the step of a pipeline with or without them (docs/training.md).

    GPipe, 1F1B, interleaved   of the stages' times, by `pp_schedule`
    decoupled                  T = one micro-batch's path + (N-1) max(max_s (f_s + b_s), period of the wafer),
                               and no less than N periods

A wafer that serves one pipeline with its own micro-batch is one more stage. Both add the 2K-1 transfers by which a
micro-batch comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.pp_chain import Chain, Placement, PpSystem, across_pools_s
from dse.model.pp_schedule import gpipe_s, interleaved_s, one_f_one_b_bound_s, one_f_one_b_s
from dse.model.pp_stage import LayerTime, layer_time

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The wafers that serve N designs: K k layers of one call of q micro-batches."""

    pool: Ints
    """Position of the pool among the pools."""
    forward_s: Floats
    backward_s: Floats
    compute_s: Floats
    fixed_s: Floats
    layers: Floats
    """K k."""
    calls: Floats
    """Calls for one micro-batch of each pipeline that a wafer serves: R/(W q)."""

    @property
    def call_s(self) -> Floats:
        """Forward and backward of one call: K k tau_wse(q m)."""
        return self.forward_s + self.backward_s

    @property
    def period_s(self) -> Floats:
        """Time for one micro-batch of each pipeline: (R/W/q) K k tau_wse(q m)."""
        return self.calls * self.call_s


def server_of(system: PpSystem, place: Placement, designs: Ints) -> Server | None:
    """The wafers of designs that hand layers over; None where none are."""
    if not system.offload_layers:
        return None
    which = place.server[designs].argmax(axis=1)
    layers = np.asarray(place.n_stages[designs] * float(system.offload_layers), dtype=np.float64)
    m = np.asarray(place.micro_batch[designs] * float(system.collect), dtype=np.float64)
    fields = {name: np.zeros(len(designs)) for name in ("forward", "backward", "compute", "fixed")}
    for p, pool in enumerate(system.fleet.pools):
        at = np.flatnonzero(which == p)
        if not pool.device.streams or not len(at):
            continue
        t: LayerTime = layer_time(pool, m[at], place.g[designs[at], p])
        fields["forward"][at] = t.forward_s
        fields["backward"][at] = t.backward_s
        fields["compute"][at] = t.forward_compute_s + t.backward_compute_s
        fields["fixed"][at] = t.forwards * t.fixed_s
    pipelines = place.replicas[designs] / np.maximum(place.wafers[designs], 1.0)
    return Server(
        pool=which,
        layers=layers,
        calls=pipelines / system.collect,
        **{f"{name}_s": layers * value for name, value in fields.items()},
    )


def scheduled_s(
    system: PpSystem,
    chain: Chain,
    which: Ints,
    n_micro: Floats,
    server: Server | None,
    link: Ints,
    micro_batch: Floats,
    *,
    screening: bool,
) -> Floats:
    """Step without gradients [s]."""
    forward, backward = chain.forward_s[which], chain.backward_s[which]
    transfers = (chain.out_forward_s + chain.out_backward_s).sum(axis=1)[which]
    if server is None:
        return _schedule_s(system, forward, backward, transfers, n_micro, screening=screening)
    n_stages = chain.pool.shape[1]
    returns = (2.0 * n_stages - 1.0) * across_pools_s(system, micro_batch, link)
    step = np.empty(len(n_micro))
    one_more = (server.calls == 1.0) & (system.collect == 1)
    at = np.flatnonzero(one_more)
    if len(at):
        first = np.concatenate([server.forward_s[at, None], forward[at]], axis=1)
        second = np.concatenate([server.backward_s[at, None], backward[at]], axis=1)
        step[at] = _schedule_s(system, first, second, transfers[at], n_micro[at], screening=screening)
    at = np.flatnonzero(~one_more)
    if len(at):
        period = server.period_s[at]
        both = forward[at] + backward[at]
        path = both.sum(axis=1) + server.call_s[at]
        step[at] = np.maximum(path + (n_micro[at] - 1.0) * np.maximum(both.max(axis=1), period), n_micro[at] * period)
    return step + returns


def _schedule_s(
    system: PpSystem, forward_s: Floats, backward_s: Floats, transfers_s: Floats, n_micro: Floats, *, screening: bool
) -> Floats:
    if system.schedule == "gpipe":
        return gpipe_s(forward_s, backward_s, n_micro)
    if system.schedule == "interleaved":
        return interleaved_s(forward_s, backward_s, transfers_s, n_micro, float(system.chunks))
    return (one_f_one_b_bound_s if screening else one_f_one_b_s)(forward_s, backward_s, n_micro)
