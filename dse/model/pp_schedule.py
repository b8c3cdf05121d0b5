"""Step time of a pipeline under GPipe, 1F1B and interleaved 1F1B (docs/training.md).

Stage s = 1..K of a design takes f_s [s] forward and b_s [s] backward for one micro-batch; an outgoing transfer is
inside, so it keeps its stage busy. A step is n micro-batches: F(s, i) waits for F(s-1, i), B(s, i) for B(s+1, i), and
the passes of a stage run one after the other in the order of the schedule. Times are finite, n >= 1; forward_s and
backward_s are (N, K), one row per design, n_micro is (N,) or one number, and a step time is (N,).

Sources: Huang et al., GPipe, arXiv:1811.06965; Narayanan et al., arXiv:2104.04473 (1F1B, interleaved); Baccelli,
Cohen, Olsder, Quadrat, "Synchronization and Linearity", Wiley, 1992, chapter 3 (why a steady pace is reached).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dse.errors import UnknownNameError, unknown_name

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

SCHEDULES = ("gpipe", "1f1b", "interleaved")

SCREEN_ROUNDS = 6
"""Screening follows min(n, 6 K) micro-batches and adds the pace of the slowest stage for the rest."""

BLOCK = 4096
"""Designs followed together: their state stays in cache."""

STEADY_FRAC = 1e-13
"""A pipeline is steady when no pass shifts by more than this share of max(f + b) from one micro-batch to the next."""


def _by_stage(forward_s: ArrayLike, backward_s: ArrayLike, n_micro: ArrayLike) -> tuple[Floats, Floats, Counts]:
    """Stages first, so that one stage of all designs lies together in memory; n one per design."""
    f = np.ascontiguousarray(np.asarray(forward_s, dtype=np.float64).T)
    b = np.ascontiguousarray(np.asarray(backward_s, dtype=np.float64).T)
    return f, b, np.broadcast_to(np.asarray(n_micro).astype(np.int64), f.shape[1:])


def gpipe_s(forward_s: ArrayLike, backward_s: ArrayLike, n_micro: ArrayLike) -> Floats:
    """Step time of GPipe [s]: T = sum(f + b) + (n - 1) (max f + max b).

    Exact for any stages if every stage runs its n forwards and then its n backwards, the backwards in one order common
    to all stages (first to last or last to first): equal jobs through a chain of stages take sum t + (n - 1) max t, and
    the last stage, which ends the forwards, starts the backwards. A flush of the whole pipeline in between costs
    nothing. It is an upper bound if the last stage starts a backward as soon as its forward is done.

    Source: Huang et al., arXiv:1811.06965, section 2.3.

    >>> gpipe_s([[1.0, 2.0]], [[3.0, 2.0]], 4).tolist()
    [23.0]
    """
    f, b, n = _by_stage(forward_s, backward_s, n_micro)
    return (f + b).sum(axis=0) + (n - 1) * (f.max(axis=0) + b.max(axis=0))


def one_f_one_b_s(forward_s: ArrayLike, backward_s: ArrayLike, n_micro: ArrayLike) -> Floats:
    """Step time of 1F1B [s], by its dependency recurrence; exact up to rounding (1e-12).

    Stage s runs w = min(n, K - s) forwards, then a forward and a backward in turn, then the w backwards left. Round r
    holds the passes F(s, r + K - s) and B(s, r) of all stages; in terms of their ends

        F(s, r + K - s) = max(F(s-1, r + K - s), B(s, r-1)) + f_s,   B(s, r) = max(B(s+1, r), F(s, r + K - s)) + b_s.

    A round follows from the K forward ends of the round before: F(s-1, r + K - s) is one of them, B(s, r-1) a maximum
    of them. Once all K grow by p = max(f + b), so do all later rounds, and a design stops there. Maxima and sums do not
    expand: growth off by a share e of p moves no end by more than e p a round, and T, at least n p, by at most the
    share e. Every pipeline gets there: p is the largest cycle mean, and a stage that attains it is a loop of one round.

    Source: Narayanan et al., arXiv:2104.04473, section 2.2.

    >>> one_f_one_b_s([[1.0, 2.0], [1.0, 1.0]], [[3.0, 2.0], [2.0, 2.0]], [4, 64]).tolist()
    [20.0, 195.0]
    """
    f, b, n = _by_stage(forward_s, backward_s, n_micro)
    step_s = np.empty(n.shape)
    falling = np.argsort(-n, kind="stable")
    for start in range(0, n.size, BLOCK):
        pick = falling[start : start + BLOCK]
        step_s[pick] = _step_s(f[:, pick], b[:, pick], n[pick])
    return step_s


def _step_s(f: Floats, b: Floats, n: Counts) -> Floats:
    """1F1B of one block of designs, n falling: fill, the rounds all stages share, drain.

    Inside the rounds, times count from r p, so that they stay small and a steady state is one that stands still.
    """
    n_stages = len(f)
    pace_s = (f + b).max(axis=0)
    ahead = np.arange(n_stages - 1, -1, -1)[:, np.newaxis]  # K - s
    ends_f = np.cumsum(f, axis=0) + np.minimum(n - 1, ahead) * np.maximum.accumulate(f, axis=0)
    ends_b = np.empty_like(ends_f)
    _backward_pass(ends_f, ends_b, b)
    rounds = np.maximum(n - n_stages, 0)
    _run_rounds(ends_f, ends_b, f - pace_s, b, rounds, STEADY_FRAC * pace_s)
    for drained in range(1, n_stages):
        on = int(np.searchsorted(-n, drained - n_stages))  # n > K - drained: fewer have no such round
        _advance(ends_f[:, :on], ends_b[:, :on], f[:, :on], b[:, :on], drained)
    return ends_b[0] + rounds * pace_s


def _run_rounds(ends_f: Floats, ends_b: Floats, f: Floats, b: Floats, rounds: Counts, still_s: Floats) -> None:
    """Move ends_f and ends_b in place by `rounds` (falling) rounds; drop designs that are through or stand still."""
    column = np.arange(rounds.size)
    state_f, state_b, done = ends_f, ends_b, 0
    while rounds.size and rounds[0] > done:
        until = min(done + len(f), int(rounds[0]))
        for r in range(done + 1, until + 1):
            on = int(np.searchsorted(-rounds, -r, side="right"))
            before = state_f[:, :on].copy() if r == until else state_f
            _advance(state_f[:, :on], state_b[:, :on], f[:, :on], b[:, :on], 0)
        done = until
        ends_f[:, column], ends_b[:, column] = state_f, state_b
        moves = (np.abs(state_f[:, :on] - before) > still_s[:on]).any(axis=0)
        keep = np.flatnonzero(moves & (rounds[:on] > done))
        column, rounds, still_s = column[keep], rounds[keep], still_s[keep]
        state_f, state_b, f, b = (a[:, keep] for a in (state_f, state_b, f, b))


def _advance(ends_f: Floats, ends_b: Floats, f: Floats, b: Floats, drained: int) -> None:
    """One round in place; the first `drained` stages have no forward left, so their backwards follow one another."""
    first = max(drained, 1)
    np.maximum(ends_f[first - 1 : -1], ends_b[first:], out=ends_b[first:])
    np.add(ends_b[drained:], f[drained:], out=ends_f[drained:])
    ends_f[:drained] = ends_b[:drained]
    _backward_pass(ends_f, ends_b, b)


def _backward_pass(ready: Floats, ends_b: Floats, b: Floats) -> None:
    """B(s) = max(B(s+1), ready(s)) + b_s, from the last stage to the first."""
    np.add(ready[-1], b[-1], out=ends_b[-1])
    for s in range(len(b) - 2, -1, -1):
        np.maximum(ends_b[s + 1], ready[s], out=ends_b[s])
        ends_b[s] += b[s]


def one_f_one_b_screen_s(forward_s: ArrayLike, backward_s: ArrayLike, n_micro: ArrayLike) -> Floats:
    """Step time of 1F1B for screening [s]: T(n0) + (n - n0) max(f + b), n0 = min(n, 6 K).

    Exact where the pipeline is steady after n0; else it errs upwards, as rival stages settle late: among random
    pipelines with stages up to a factor of 3 apart by more than 1 % for a few in 100,000, by 1.2 % at most.

    >>> one_f_one_b_screen_s([[1.0, 2.0]], [[3.0, 2.0]], 1000).tolist()
    [4004.0]
    """
    f, b, n = _by_stage(forward_s, backward_s, n_micro)
    followed = np.minimum(n, SCREEN_ROUNDS * len(f))
    return one_f_one_b_s(f.T, b.T, followed) + (n - followed) * (f + b).max(axis=0)


def one_f_one_b_bound_s(forward_s: ArrayLike, backward_s: ArrayLike, n_micro: ArrayLike) -> Floats:
    """Lower bound on the step time of 1F1B [s], O(K); exact for equal stages.

    T >= max over s of sum_{j<s} (f_j + b_j) + n (f_s + b_s) + gaps, with D = sum_{j>s} (f_j + b_j), w = min(n-1, K-s):
    max(0, D - w f_s) + max(0, D - w b_s) if n >= w + 2, else the larger of the two.

    Proof. F(s, 1) starts after sum_{j<s} f_j, and after B(s, n) at least sum_{j<s} b_j follow. From the end of F(s, 1)
    to the start of B(s, 1) at least D passes while stage s has only w forwards to run; from the end of F(s, n) to the
    start of B(s, n) again D, with w backwards to run. If n >= w + 2, B(s, 1) comes before F(s, n): no idle time counts
    twice.

    >>> one_f_one_b_bound_s([[1.0, 2.0], [1.0, 1.0]], [[3.0, 2.0], [2.0, 2.0]], [4, 64]).tolist()
    [20.0, 195.0]
    """
    f, b, n = _by_stage(forward_s, backward_s, n_micro)
    both = f + b
    before = np.zeros(n.shape)
    after = both.sum(axis=0)
    bound = np.zeros(n.shape)
    for s in range(len(f)):
        after = np.maximum(after - both[s], 0.0) if s < len(f) - 1 else np.zeros(n.shape)
        w = np.minimum(n - 1, len(f) - 1 - s)
        fill, drain = np.maximum(after - w * f[s], 0.0), np.maximum(after - w * b[s], 0.0)
        gaps = np.where(n >= w + 2, fill + drain, np.maximum(fill, drain))
        bound = np.maximum(bound, before + n * both[s] + gaps)
        before = before + both[s]
    return bound


def interleaved_s(
    forward_s: ArrayLike, backward_s: ArrayLike, transfer_s: ArrayLike, n_micro: ArrayLike, chunks: ArrayLike
) -> Floats:
    """Step time of interleaved 1F1B with v chunks a stage [s]: T = n p + (sum(f + b) - p)/v + v x, p = max(f + b).

    x = transfer_s (N,) holds all activation transfers of one micro-batch. The schedule needs n to be a multiple of K.
    Exact for equal stages and x = 0; approximate when stages differ (up to a factor of 3 apart, n = 2 K to 8 K: 0 to
    12 % too long, 2 % in the median). f and b may contain a stage's own transfers, once; the v x of the path then
    counts them v times more, on the safe side.

    Source: Narayanan et al., arXiv:2104.04473, section 2.2.2.

    >>> interleaved_s([[1.0, 1.0]], [[2.0, 2.0]], 0.25, 4, 2).tolist()
    [14.0]
    """
    f, b, n = _by_stage(forward_s, backward_s, n_micro)
    v = np.asarray(chunks, dtype=np.float64)
    both = f + b
    pace_s = both.max(axis=0)
    return n * pace_s + (both.sum(axis=0) - pace_s) / v + v * np.asarray(transfer_s, dtype=np.float64)


def in_flight(schedule: str, n_stages: int, n_micro: ArrayLike, chunks: ArrayLike = 1) -> Floats:
    """Most micro-batches whose activations stage s holds at once, (N, K).

    GPipe n; 1F1B min(n, K - s + 1); interleaved min(n, (2 (K - s) + (v - 1) K + 1)/v), that is K + (K - 1)/v on the
    first stage. A micro-batch of which a stage holds one chunk counts 1/v.

    Sources: Narayanan et al., arXiv:2104.04473; Korthikanti et al., arXiv:2205.05198, section 4.2.3.

    >>> in_flight("1f1b", 4, [2, 8]).tolist()
    [[2.0, 2.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0]]
    """
    if schedule not in SCHEDULES:
        raise UnknownNameError(unknown_name("in_flight", "schedule", schedule, SCHEDULES))
    n = np.atleast_1d(np.asarray(n_micro, dtype=np.float64))[:, np.newaxis]
    ahead = np.arange(n_stages - 1, -1, -1, dtype=np.float64)  # K - s
    if schedule == "gpipe":
        return np.repeat(n, n_stages, axis=1)
    if schedule == "1f1b":
        return np.minimum(n, ahead + 1.0)
    v = np.atleast_1d(np.asarray(chunks, dtype=np.float64))[:, np.newaxis]
    return np.minimum(n, (2.0 * ahead + (v - 1.0) * n_stages + 1.0) / v)
