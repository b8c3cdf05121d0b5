"""Eq. (5) in closed form: what the differences of two pools say of the idle time that their split of the work costs.

    eta_i = sum_j alpha_ij(w1:w2) |X1_j - X2_j| / max(X1_j, X2_j)       j in (P, B, C, M)

X_j are the pools' totals: arithmetic peak, memory bandwidth, bandwidth of the links inside, memory. Scores do not use
it: there eta is derived, 1 + eta_i = T_step/t_i (docs/model.md, section 5). The closed form stands in for a design
that is not scored, with alpha fitted from designs that are. It has no term for the exchange between pools, which is
eq. (2)'s: fit it from T_step without.

alpha is a small basis of features of the split, alpha_ij(w) = sum_k a_kj phi_ik(w), a_kj >= 0. The one that holds is
a single feature, the shortfall of pool i's share s_i of the work against the share s*_i at which both finish together:

    phi_i = max(0, s*_i - s_i) / (s_i (1 - s*_i))

It is one-sided, since only the pool that is given too little waits, and 0 at the optimal split, as eq. (5) asks. Times
proportional to the shares make it eta itself; they are, once work is counted as load, w + w_half, with the law
t = (w + w_half)/R of docs/model.md, section 2. In serving both pools carry every request, one a phase each: s = 1/2,
and s* is a pool's share of the two phases' rates.

Range: phi alone is then eta, so what eq. (5) adds is that sum_j a_j asym_j stays near 1. It does where the pools
differ by an order of magnitude in some resource, as GPUs and wafers do in memory bandwidth. It cannot for like pools:
equal ones have no asymmetry, so eq. (5) gives them eta = 0 however badly the work is split. Only sum_j a_j asym_j is
determined where asymmetries hardly vary; single a_j then mean nothing.

Source of eq. (5): "When Does Heterogeneity Pay Off? Understanding GPU-WSE System Complementarity", section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from dse.errors import InputError

Floats = NDArray[np.float64]

RESOURCES = ("peak", "bandwidth", "link", "memory")
"""P, B, C, M: the order of the last axis of resources, asymmetries and alpha."""


def pool_resources(
    n: ArrayLike, peak_flop_s: ArrayLike, bandwidth_byte_s: ArrayLike, link_byte_s: ArrayLike, memory_byte: ArrayLike
) -> Floats:
    """Totals of a pool of n devices, in the order of RESOURCES, on a new last axis.

    >>> pool_resources(8, 312e12, 2e12, 3e11, 8e10).tolist()
    [2496000000000000.0, 16000000000000.0, 2400000000000.0, 640000000000.0]
    """
    parts = (np.asarray(x, dtype=np.float64) for x in (peak_flop_s, bandwidth_byte_s, link_byte_s, memory_byte))
    return np.stack(np.broadcast_arrays(*(np.asarray(n, dtype=np.float64) * x for x in parts)), axis=-1)


def asymmetry(x1: ArrayLike, x2: ArrayLike) -> Floats:
    """|X1 - X2| / max(X1, X2) of resources that are not negative: 0 where they are equal, 1 where one pool has none.

    >>> asymmetry([4.0, 1.0, 3.0, 0.0], [1.0, 4.0, 3.0, 0.0]).tolist()
    [0.75, 0.75, 0.0, 0.0]
    """
    a, b = np.asarray(x1, dtype=np.float64), np.asarray(x2, dtype=np.float64)
    most, gap = np.maximum(a, b), np.abs(a - b)
    return np.divide(gap, most, out=np.zeros_like(gap), where=most > 0)


def law_of_two(work_1: ArrayLike, time_1_s: ArrayLike, work_2: ArrayLike, time_2_s: ArrayLike) -> tuple[Floats, Floats]:
    """Rate R [work/s] and w_half [work] of t = (w + w_half)/R through two times of a pool alone; time_2_s > time_1_s.

    A w_half below 0 is rounding of the batch to replicas and micro-batches, and becomes 0.

    >>> rate, half = law_of_two(10.0, 2.0, 40.0, 5.0)
    >>> float(rate), float(half)
    (10.0, 10.0)
    """
    w_1, w_2 = np.asarray(work_1, dtype=np.float64), np.asarray(work_2, dtype=np.float64)
    t_1, t_2 = np.asarray(time_1_s, dtype=np.float64), np.asarray(time_2_s, dtype=np.float64)
    rate = (w_2 - w_1) / (t_2 - t_1)
    return rate, np.maximum(t_2 * rate - w_2, 0.0)


def load_frac(work: ArrayLike, half: ArrayLike, other_work: ArrayLike, other_half: ArrayLike) -> Floats:
    """Pool's share of the load of both: (w + w_half) over the sum of both pools'.

    >>> float(load_frac(10.0, 20.0, 60.0, 10.0))
    0.3
    """
    own = np.asarray(work, dtype=np.float64) + np.asarray(half)
    return np.asarray(own / (own + np.asarray(other_work) + np.asarray(other_half)), dtype=np.float64)


def shortfall(share_frac: ArrayLike, balanced_frac: ArrayLike) -> Floats:
    """phi of a pool's share s > 0 against the balanced s* < 1: max(0, s* - s) / (s (1 - s*)).

    Where times are proportional to the shares, this is the pool's eta: it finishes after s/s* of the other's time
    (1 - s)/(1 - s*).

    >>> shortfall([0.5, 0.75, 0.9], 0.75).tolist()
    [2.0, 0.0, 0.0]
    """
    s, best = np.asarray(share_frac, dtype=np.float64), np.asarray(balanced_frac, dtype=np.float64)
    return np.asarray(np.maximum(best - s, 0.0) / (s * (1.0 - best)), dtype=np.float64)


def eta_closed_form(alpha: ArrayLike, asym: ArrayLike, features: ArrayLike) -> Floats:
    """Eq. (5): eta_n = sum_k sum_j a_kj phi_nk asym_nj, for N pools.

    alpha (K, J), asym (N, J), features (N, K); a single feature may drop its axis: alpha (J,), features (N,).

    >>> eta_closed_form([0.5, 0.0, 0.0, 0.25], [[0.8, 0.9, 0.0, 0.4]], [2.0]).tolist()
    [1.0]
    """
    a, phi = np.atleast_2d(np.asarray(alpha, dtype=np.float64)), _table(features)
    return np.einsum("kj,nj,nk->n", a, np.asarray(asym, dtype=np.float64), phi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """How far a closed form is from the derived eta: |fitted - derived| over N pools."""

    n: int
    eta_median: float
    eta_p90: float
    relative_median: float
    """Of 1 + eta, relative: what the throughput of a pool sees."""
    relative_p90: float


def residuals(fitted: ArrayLike, derived: ArrayLike) -> Residuals:
    """Median and 90th percentile of what the closed form misses.

    >>> found = residuals([0.0, 1.5], [0.0, 1.0])
    >>> found.n, found.eta_median, found.eta_p90, found.relative_median
    (2, 0.25, 0.45, 0.125)
    """
    eta = np.asarray(derived, dtype=np.float64)
    miss = np.abs(np.asarray(fitted, dtype=np.float64) - eta)
    (eta_median, eta_p90), (relative_median, relative_p90) = (
        map(float, np.quantile(x, [0.5, 0.9])) for x in (miss, miss / (1.0 + eta))
    )
    return Residuals(
        n=len(eta),
        eta_median=eta_median,
        eta_p90=eta_p90,
        relative_median=relative_median,
        relative_p90=relative_p90,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaFit:
    """alpha of eq. (5), and what it misses on the pools that it was fitted from."""

    alpha: Floats
    """(K, J)"""
    residuals: Residuals


def fit_alpha(asym: ArrayLike, features: ArrayLike, eta: ArrayLike) -> AlphaFit:
    """Least squares of the relative miss of 1 + eta under alpha >= 0, from N pools whose eta is known.

    Minimise sum_n ((sum_kj a_kj phi_nk asym_nj - eta_n)/(1 + eta_n))^2, so that a pool that hardly works weighs no
    more than its throughput. Everything must be finite: a pool without work has no eta to learn from.

    Source: Lawson, Hanson, "Solving Least Squares Problems", 1974, chapter 23 (non-negative least squares).

    >>> fit = fit_alpha([[0.5, 0.0], [0.0, 0.5], [0.5, 0.5]], [1.0, 1.0, 2.0], [1.0, 0.5, 3.0])
    >>> fit.alpha.round(9).tolist()
    [[2.0, 1.0]]
    """
    a, phi, derived = np.asarray(asym, dtype=np.float64), _table(features), np.asarray(eta, dtype=np.float64)
    _check(a, phi, derived)
    weight = 1.0 / (1.0 + derived)
    terms = np.einsum("nk,nj->nkj", phi, a).reshape(len(derived), -1)
    q, r = np.linalg.qr(terms * weight[:, None])  # ||Ax - b||^2 = ||Rx - Q'b||^2 + const: few rows are left for nnls
    found, _ = nnls(r, q.T @ (derived * weight))
    alpha = np.asarray(found, dtype=np.float64).reshape(phi.shape[1], a.shape[1])
    return AlphaFit(alpha=alpha, residuals=residuals(eta_closed_form(alpha, a, phi), derived))


def _table(features: ArrayLike) -> Floats:
    """Features (N, K), where a single one may come as (N,)."""
    phi = np.asarray(features, dtype=np.float64)
    return phi[:, None] if phi.ndim == 1 else phi


def _check(asym: Floats, features: Floats, eta: Floats) -> None:
    faults = []
    if not len(asym) == len(features) == len(eta):
        faults.append(f"asymmetries of {len(asym)} pools, features of {len(features)}, eta of {len(eta)}; must agree")
    if len(eta) == 0:
        faults.append("no pool to fit alpha from; score at least one design of two pools")
    for name, values in (("asymmetry", asym), ("feature", features), ("eta", eta)):
        bad = int(np.count_nonzero(~(np.isfinite(values) & (values >= 0))))
        if bad:
            faults.append(f"{name}: {bad} of {values.size} values are negative or not finite; leave those pools out")
    if faults:
        raise InputError(faults)
