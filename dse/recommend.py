"""Which frontier point to pick, by a stated rule, and what one step more would buy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.resolve import Study
from dse.score import score

Floats = NDArray[np.float64]

KNEE = "knee"
CHEAPEST = "cheapest"


def recommend(study: Study, frontier: pd.DataFrame) -> tuple[int, str]:
    """Position of the recommended row, and the rule in words.

    With a demand: the cheapest design that meets it. Otherwise the knee: with every objective scaled to
    0..1 over the frontier, the point whose gain in the first objective exceeds its mean use of the others most.
    Ties go to the narrower link, then to the earlier design.
    """
    objectives = study.envelope.objectives
    if not len(frontier):
        raise ValueError("an empty frontier has no point to recommend")
    demand = getattr(study.problem, "demand_requests_s", None)
    minimise = [o for o in objectives.minimise if o in frontier]
    link = frontier["link_gb_s"] if "link_gb_s" in frontier else pd.Series(0.0, index=frontier.index)
    if demand is not None and minimise:
        order = np.lexsort((link.to_numpy(), *(frontier[o].to_numpy() for o in reversed(minimise))))
        return int(order[0]), f"{CHEAPEST}: lowest {minimise[0]} among designs that serve {demand:g} requests/s"

    def scaled(name: str) -> Floats:
        values = frontier[name].to_numpy(dtype=np.float64)
        width = values.max() - values.min()
        return (values - values.min()) / width if width > 0 else np.zeros(len(values))

    gain = np.mean([scaled(o) for o in objectives.maximise], axis=0) if objectives.maximise else np.zeros(len(frontier))
    spent = np.mean([scaled(o) for o in minimise], axis=0) if minimise else np.zeros(len(frontier))
    order = np.lexsort((link.to_numpy(), -np.round(gain - spent, 12)))
    what = " and ".join(objectives.maximise) or "nothing"
    return int(order[0]), f"{KNEE}: largest scaled {what} less the mean of scaled {' and '.join(minimise) or 'nothing'}"


def settings_of(study: Study, row: pd.Series) -> dict[str, str]:
    """The `--set` keys that give a frame's row again."""
    settings = {k: str(row[k]) for k in ("weight_dtype", "kv_dtype", "compute_dtype", "routing") if k in row}
    for pool in study.space.pool_names:
        settings[f"n_{pool}"] = str(int(row[f"n_{pool}"]))
        if int(row[f"n_{pool}"]) == 0:
            continue
        for key in ("instance_size", "prefill_batch", "max_decode_batch"):
            settings[f"{key}_{pool}"] = str(int(row[f"{key}_{pool}"]))
        role = str(row[f"role_{pool}"])
        if role in ("prefill", "decode", "both"):
            settings[f"role_{pool}"] = role
    if str(row.get("link", "none")) != "none":
        settings["link"] = str(row["link"])
    return settings


def _step(counts: tuple[int, ...], g: int) -> int:
    """The purchase step at the end of an axis, in whole instances."""
    step = counts[-1] - counts[-2] if len(counts) > 1 else g
    return step if step % g == 0 else g


def one_more(study: Study, row: pd.Series) -> pd.DataFrame:
    """What one step more of each thing buys, by scoring the changed design again.

    One more purchase step of each pool that is bought, at the same settings; the next wider link. Columns: change,
    throughput_tok_s, then the differences d_throughput_tok_s, d_cost_usd_per_h, d_power_w, and
    what breaks, if anything.
    """
    base = settings_of(study, row)
    changes: list[tuple[str, dict[str, str]]] = []
    for offer in study.problem.pools:
        n = int(row[f"n_{offer.name}"])
        if n == 0:
            continue
        g = int(row[f"instance_size_{offer.name}"])
        more = next((c for c in offer.counts if c > n and c % g == 0), n + _step(offer.counts, g))
        changes.append((f"{more - n} more {offer.name}", {f"n_{offer.name}": str(more)}))
    names = list(study.problem.link_names)
    if "link" in base and base["link"] in names:
        at = names.index(base["link"])
        if at + 1 < len(names):
            changes.append((f"link {names[at + 1]} instead of {names[at]}", {"link": names[at + 1]}))
        s = float(row["link_gb_s"])
        changes.append(("1 GB/s more of link", {"link_gb_s": repr(s + 1.0)}))
    rows = []
    for label, change in changes:
        settings = {k: v for k, v in base.items() if not ("link_gb_s" in change and k == "link")} | change
        scored = score(study, settings).iloc[0]
        rows.append(
            {
                "change": label,
                "throughput_tok_s": float(scored["throughput_tok_s"]),
                "d_throughput_tok_s": float(scored["throughput_tok_s"] - row["throughput_tok_s"]),
                "d_cost_usd_per_h": float("nan")
                if "link_gb_s" in change
                else float(scored["cost_usd_per_h"] - row["cost_usd_per_h"]),
                "d_power_w": float("nan") if "link_gb_s" in change else float(scored["power_w"] - row["power_w"]),
                "breaks": str(scored["infeasible_reason"]),
            }
        )
    return pd.DataFrame(rows)
