"""What any training design comes to: tokens, money, power, and the run to a number of tokens (docs/training.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dse.model.bill import PoolBill
from dse.model.fleet import baseline_columns, bill_columns, gathered, gpu_wse_ratio
from dse.model.goodput import goodput_frac, system_mtbf_s
from dse.model.links import LinkTable
from dse.model.roofline import idle_over_busy, u_ho
from dse.model.training_pool import TrainingPool, TrainingSettings
from dse.study import Site
from dse.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMALLEST_USE = 1e-9
"""A pool less busy than this share of a step is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What is to be trained, and what interrupts it."""

    tokens: float | None
    """None: no run is asked for."""
    mtbf_device_s: Floats
    """Mean time between failures of one device of each pool (P,); infinite: never."""
    checkpoint_s: float
    restart_s: float
    interval_s: float | None
    """Useful time between checkpoints; None: the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUse:
    """What each pool does in one step (N, P); eq. (3)-(4)."""

    step_s: Floats
    """(N,)"""
    total_s: Floats
    """Seconds of the step in which the pool works: t_i, so that 1 + eta = T_step/t_i."""
    compute_s: Floats
    communication_s: Floats
    fixed_s: Floats
    flop: Floats
    """Arithmetic done by all its devices, recomputation included."""
    model_flop: Floats
    """The same without recomputation."""
    n: Floats
    """Devices."""
    busy_frac: Floats
    u_ho: Floats
    eta: Floats
    u: Floats


def training_use(
    pools: Sequence[TrainingPool],
    n: Floats,
    flop: Floats,
    model_flop: Floats,
    step_s: Floats,
    parts: tuple[Floats, Floats, Floats],
    total_s: Floats,
) -> TrainingUse:
    """Reads u_HO, eta and u off the times: compute, communication and fixed parts of t_i, each (N, P)."""
    compute, communication, fixed = parts
    peak = np.array([p.peak_flop_s if p.computes else np.inf for p in pools])
    offered = np.multiply(n, peak, out=np.zeros_like(n), where=n > 0)
    ideal_s = np.divide(flop, offered, out=np.zeros_like(flop), where=n > 0)
    step = step_s[:, None]
    busy = np.divide(total_s, step, out=np.zeros_like(total_s), where=np.isfinite(step))
    busy = np.where(busy < SMALLEST_USE, 0.0, np.minimum(busy, 1.0))
    reached = u_ho(np.stack([ideal_s, communication]), np.stack([compute, communication]), total_s)
    eta = idle_over_busy(busy)
    return TrainingUse(
        step_s=step_s,
        total_s=total_s,
        compute_s=compute,
        communication_s=communication,
        fixed_s=fixed,
        flop=flop,
        model_flop=model_flop,
        n=n,
        busy_frac=busy,
        u_ho=reached,
        eta=eta,
        u=reached / (1.0 + eta),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFleet:
    """What the designs of one regime share besides their pools' times."""

    pools: tuple[TrainingPool, ...]
    settings: tuple[TrainingSettings, ...]
    bills: tuple[PoolBill, ...]
    alone_s: tuple[Floats, ...]
    """Step time of each pool's settings alone, at the same global batch; infinite where it cannot (K,)."""
    alone_busy: tuple[Floats, ...]
    """Share of that step in which the pool's instances work, on average (K,)."""
    links: LinkTable
    global_batch: int
    site: Site
    run: TrainingRun

    @property
    def batch_tokens(self) -> float:
        """Tokens of one step."""
        return self.global_batch * self.pools[0].work.sequence_tokens

    def devices(self, rows: Ints) -> Floats:
        """Devices of each pool (N, P)."""
        return gathered([s.n for s in self.settings], rows).astype(np.float64)


def tokens_per_s(batch_tokens: float, step_s: Floats) -> Floats:
    """Throughput of a step [tok/s]; 0 where the step never ends."""
    return np.divide(batch_tokens, step_s, out=np.zeros_like(step_s), where=np.isfinite(step_s) & (step_s > 0))


def training_columns(
    fleet: TrainingFleet, rows: Ints, link: Ints, pairs: Floats, use: TrainingUse
) -> dict[str, Floats]:
    """Columns that every training paradigm has, of N designs."""
    tok_s = tokens_per_s(fleet.batch_tokens, use.step_s)
    link_usd, link_w = pairs * fleet.links.usd_per_h[link], pairs * fleet.links.power_w[link]
    bills = bill_columns(list(fleet.bills), rows, use.busy_frac, link_usd, link_w, tok_s, fleet.site)
    alone = [tokens_per_s(fleet.batch_tokens, alone_s[r]) for alone_s, r in zip(fleet.alone_s, rows, strict=True)]
    return {
        "gpu_wse_ratio": gpu_wse_ratio([p.device.kind for p in fleet.pools], use.n),
        "global_batch": np.full(len(tok_s), float(fleet.global_batch)),
        "throughput_tok_s": tok_s,
        "throughput_samples_s": tok_s / fleet.pools[0].work.sequence_tokens,
        "step_time_s": use.step_s,
        **bills,
        **run_columns(fleet, rows, tok_s, bills["cost_usd_per_h"], bills["power_mean_w"]),
        **baseline_columns(alone, tok_s),
    }


def run_columns(
    fleet: TrainingFleet, rows: Ints, tok_s: Floats, cost_usd_per_h: Floats, power_mean_w: Floats
) -> dict[str, Floats]:
    """Share of time that is useful under failures; time, energy and cost of the run that is asked for, if any."""
    run = fleet.run
    mtbf = system_mtbf_s(fleet.devices(rows), run.mtbf_device_s)
    useful = goodput_frac(mtbf, run.checkpoint_s, run.restart_s, run.interval_s)
    columns = {"goodput_frac": useful}
    if run.tokens is not None:
        rate = tok_s * useful
        runs, time_s = rate > 0, np.full_like(rate, np.inf)
        np.divide(run.tokens, rate, out=time_s, where=runs)
        columns |= {
            "train_time_s": time_s,
            "train_energy_j": np.multiply(time_s, power_mean_w, out=np.full_like(rate, np.inf), where=runs),
            "train_cost_usd": np.multiply(
                time_s / SECONDS_PER_HOUR, cost_usd_per_h, out=np.full_like(rate, np.inf), where=runs
            ),
        }
    return columns


def training_pool_columns(fleet: TrainingFleet, use: TrainingUse) -> dict[str, Floats]:
    """Columns per pool that every training paradigm has, each (N, P)."""
    peak = np.array([p.peak_flop_s for p in fleet.pools])
    runs = np.isfinite(use.step_s)[:, None] & (use.n > 0)
    offered = np.multiply(use.n * peak, use.step_s[:, None], out=np.zeros_like(use.n), where=runs)
    return {
        "busy": use.busy_frac,
        "u": use.u,
        "eta": use.eta,
        "mfu": np.divide(use.model_flop, offered, out=np.zeros_like(offered), where=offered > 0),
    }
