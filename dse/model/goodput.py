"""Training with failures: the share of wall time that is useful, with checkpoints and restarts.

Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22(3), 2006, doi:10.1016/j.future.2004.11.016.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import lambertw

Floats = NDArray[np.float64]

SMALL_CHECKPOINT = 1e-4
"""Below this share of the mean time between failures, Lambert's W is expanded about its branch point."""

LONG_SEGMENT = 800.0
"""A segment of this many mean times between failures never ends: e^-800 is 0 in double precision."""


def system_mtbf_s(n_devices: ArrayLike, mtbf_device_s: ArrayLike) -> Floats:
    """Mean time between failures of a system that stops when any device fails [s].

    M = 1 / sum_p n_p / M_p over the pools p (last axis); infinite where nothing can fail. Assumes independent,
    exponential failures and counts whatever stops a device (host, link, software) in its M_p. Llama 3 405B: 419
    unexpected stops in 54 days on 16,384 GPUs (arXiv 2407.21783, section 3.3.4), M_p about 5.8 years, M about 3.1 h.

    >>> system_mtbf_s([[1000, 0], [1000, 10], [0, 0]], [1e9, 1e8]).round(3).tolist()
    [1000000.0, 909090.909, inf]
    """
    failure_per_s = np.asarray(n_devices, dtype=np.float64) / np.asarray(mtbf_device_s, dtype=np.float64)
    total = np.asarray(failure_per_s.sum(axis=-1))
    return np.divide(1.0, total, out=np.full(total.shape, np.inf), where=total > 0)


def optimal_interval_s(mtbf_s: ArrayLike, checkpoint_s: ArrayLike) -> Floats:
    """Useful time between two checkpoints that makes a run shortest [s], exactly.

    tau = M (1 + W0(-e^(-delta/M - 1))), W0 Lambert's W; about sqrt(2 delta M) - 2 delta/3 for small delta/M. It
    solves 1 - tau/M = e^(-(tau + delta)/M), does not depend on the restart, and is 0 for free checkpoints, infinite
    without failures (M infinite). Needs M > 0.

    >>> float(optimal_interval_s(24 * 3600.0, 5 * 60.0).round())
    7001.0
    """
    m, delta = np.broadcast_arrays(np.asarray(mtbf_s, dtype=np.float64), np.asarray(checkpoint_s, dtype=np.float64))
    with np.errstate(over="ignore"):  # a checkpoint that outlasts all: tau/M tends to 1
        x = delta / m
    p = np.sqrt(-2.0 * np.expm1(-x))
    near_branch = p * (1.0 + p * (-1 / 3 + p * (11 / 72 + p * (-43 / 540 + p * (769 / 17280 - p * 221 / 8505)))))
    share = np.where(x < SMALL_CHECKPOINT, near_branch, 1.0 + lambertw(-np.exp(-x - 1.0)).real)
    return np.where(np.isinf(m), np.inf, np.where(np.isinf(m), 0.0, m) * share)


def goodput_frac(
    mtbf_s: ArrayLike, checkpoint_s: ArrayLike, restart_s: ArrayLike, interval_s: ArrayLike | None = None
) -> Floats:
    """Share of wall time that is useful work, with a checkpoint after every tau of it.

    T = M e^(R/M) (e^((tau + delta)/M) - 1) T_s/tau, so that with sigma = (tau + delta)/M
    T_s/T = tau/(tau + delta) * sigma/(e^sigma - 1) * e^(-R/M): checkpoints, work lost, restarts.
    Without `interval_s` tau is the optimum, where T_s/T = (1 - tau/M) e^(-R/M).

    Assumes exponential failures, also while checkpointing and restarting; a checkpoint stops the work; a failure
    loses all since the last one and then takes R. Needs M > 0; M may be infinite.

    >>> goodput_frac(3 * 3600.0, 30.0, 600.0, [600.0, 1800.0]).round(3).tolist()
    [0.875, 0.854]
    """
    m, delta, restart, tau = np.broadcast_arrays(
        *(np.asarray(v, dtype=np.float64) for v in (mtbf_s, checkpoint_s, restart_s)),
        optimal_interval_s(mtbf_s, checkpoint_s) if interval_s is None else np.asarray(interval_s, dtype=np.float64),
    )
    segment_s = tau + delta
    not_saving = np.divide(tau, segment_s, out=np.ones(m.shape), where=(segment_s > 0) & np.isfinite(segment_s))
    with np.errstate(over="ignore"):  # what is longer than any M never succeeds: share 0
        sigma = np.minimum(np.divide(segment_s, m, out=np.zeros(m.shape), where=np.isfinite(m)), LONG_SEGMENT)
        restarted = np.exp(-restart / m)
    not_lost = np.divide(sigma * np.exp(-sigma), -np.expm1(-sigma), out=np.ones(m.shape), where=sigma > 0)
    return not_saving * not_lost * restarted
