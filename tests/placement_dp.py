"""An exact dynamic program for placements whose step is linear in the longest passes: GPipe and interleaved.

Blocks, their order and the settings are given. For bounds on the longest forward and backward (interleaved: on both
together) the least sum over the stages follows stage by stage, over the layers placed so far; bounds run over all
values that passes take. Built on the plain model of the tests, not on the program's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import plain_training as plain
from plain_training import Case, Pool

INF = math.inf


def stage_tables(case: Case, pools: Sequence[Pool], chain: Sequence[int], modes: Sequence[str]) -> list[np.ndarray]:
    """Of each stage, (modes, layers + 1, 3): forward, backward, what is sent; infinite where it does not fit."""
    n_layers, k = case.model.layers, sum(pools[i].stages for i in chain)
    n = case.batch // (pools[chain[0]].replicas * pools[chain[0]].micro)
    found = [np.full((len(modes), n_layers + 1, 3), INF) for _ in range(k)]
    for c, mode in enumerate(modes):
        one = replace(case, recompute=mode)
        for s, stage in enumerate(plain.stages_of(one, pools, chain, pools[chain[0]].micro)):
            p = pools[stage.pool]
            samples = p.micro * plain.in_flight(one, s + 1, k, n)
            least = case.chunks if case.schedule == "interleaved" else 1
            for x in range(least, n_layers + 1):
                parameters = plain.stage_parameters(one.work, x, first=s == 0, last=s == k - 1)
                if plain.pp_margin(one, p, parameters, x, samples) >= 0:
                    found[s][c, x] = stage.forward(x), stage.backward(x), stage.out_f + stage.out_b
    return found


def least_path_s(tables: list[np.ndarray], allowed: list[np.ndarray], n_layers: int) -> float:
    """Least sum of forwards and backwards over all splits whose stages are allowed."""
    best = np.full(n_layers + 1, INF)
    best[0] = 0.0
    for table, ok in zip(tables, allowed, strict=True):
        each = np.where(ok, table[:, :, 0] + table[:, :, 1], INF).min(axis=0)
        following = np.full(n_layers + 1, INF)
        for x in np.flatnonzero(np.isfinite(each)):
            following[x:] = np.minimum(following[x:], best[: n_layers + 1 - x] + each[x])
        best = following
    return float(best[n_layers])


def best_step_s(case: Case, pools: Sequence[Pool], chain: Sequence[int], modes: Sequence[str]) -> float:
    """Shortest step of GPipe or interleaved pipelines over this chain, gradients (of one pipeline: none) aside."""
    tables = stage_tables(case, pools, chain, modes)
    n = case.batch // (pools[chain[0]].replicas * pools[chain[0]].micro)
    n_layers, best = case.model.layers, INF
    if case.schedule == "interleaved":
        v = case.chunks
        sent = v * sum(float(t[np.isfinite(t[:, :, 2])][0, 2]) for t in tables)
        for pace in _values([t[:, :, 0] + t[:, :, 1] for t in tables]):
            path = least_path_s(tables, [t[:, :, 0] + t[:, :, 1] <= pace for t in tables], n_layers)
            best = min(best, n * pace + (path - pace) / v + sent)
        return best
    backward = _values([t[:, :, 1] for t in tables])
    for f in _values([t[:, :, 0] for t in tables]):
        for b in backward:
            if (n - 1) * (f + b) >= best:
                break
            path = least_path_s(tables, [(t[:, :, 0] <= f) & (t[:, :, 1] <= b) for t in tables], n_layers)
            best = min(best, path + (n - 1) * (f + b))
    return best


def _values(tables: list[np.ndarray]) -> list[float]:
    found = np.unique(np.concatenate([t.reshape(-1) for t in tables]))
    return [float(x) for x in found[np.isfinite(found)]]
