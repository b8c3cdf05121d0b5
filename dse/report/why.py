"""Why this point: what each pool does with its time and memory, the system's bounds, and one step more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dse.errors import InputError
from dse.explore import Result
from dse.report.numbers import duration, label, number, percent, shown, signed
from dse.report.roles import Row, value_of
from dse.scoring import explain
from dse.whatif import one_more

UNCHANGED: Final = 1e-9
"""Relative change of a score below which it is no change."""
RESCORED: Final = 1e-6
"""Relative difference to the run's own score above which the page says so."""


def _batch(value: float) -> str:
    return f"{value:,.0f} sequences" if math.isfinite(value) else "none up to 16,384"


def _bandwidth(value: float) -> str:
    return f"{number(value * 1e-9)} GB/s" if math.isfinite(value) else "none would do"


SYSTEM_LINES: Final[tuple[tuple[str, str, Callable[[Any], str], str], ...]] = (
    ("requests_s", "Requests", lambda v: f"{number(v)} requests/s", "served at capacity"),
    ("step_s", "Step", duration, "time of one optimizer step"),
    ("compute_s", "Slowest pool", duration, "time until the last pool reaches the barrier"),
    ("path_s", "Path", duration, "one micro-batch through all stages, there and back"),
    ("exposed_s", "Exchange", duration, "all-reduce of gradients that the step waits for"),
    ("micro_batches", "Micro-batches", lambda v: f"{v:,.0f}", "of each pipeline in a step"),
    ("bubble_frac", "Bubble", percent, "mean idle share of the stages: fill, drain, waiting for the slowest"),
    ("layers", "Layers of the stages", str, "number of stages x layers, first to last"),
    ("verdict", "Placement", str, "structurally infeasible, memory violation, or feasible"),
    ("threshold_1_batch", "Threshold 1", _batch, "smallest global batch at which mixing beats each pool alone"),
    ("threshold_2_batch", "Threshold 2", _batch, "from here on within 5 % of the pools side by side"),
    ("least_link_byte_s", "Least bandwidth", _bandwidth, "at which this mix equals its best pool alone"),
    ("wafer_layer_s", "A layer on the wafer", duration, "for one micro-batch, forward and backward"),
    ("offload_threshold_s", "Offload threshold", duration, "a layer on the wafer must take less for offload to pay"),
)
"""Figures that only some paradigms have: key, name, how it is shown, what it is."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A share, drawn and in words."""

    name: str
    share: float
    text: str

    @property
    def width(self) -> float:
        """Percent of the full bar."""
        return round(min(max(self.share, 0.0), 1.0) * 100, 2)


@dataclass(frozen=True, kw_only=True)
class PoolColumn:
    """One pool of the table: its lines as text, its time and its memory as bars."""

    name: str
    lines: dict[str, str]
    time: list[Bar]
    memory: list[Bar]
    outside: list[Bar]
    """What a streaming device keeps outside; empty for others."""


@dataclass(frozen=True, kw_only=True)
class Why:
    """What the page says about the recommended point."""

    pools: list[PoolColumn]
    system: list[tuple[str, str, str]]
    """Quantity, value, what it is."""
    link: Bar | None
    more: list[tuple[str, str, str, str, str]]
    """Change, throughput, cost, power, verdict."""
    raised: list[str]
    """What the least raise of each limit would let in."""
    drift: str
    """Set where today's score differs from the run's: the catalogue or the model has changed since."""


def why(result: Result) -> Why | None:
    """Explains the recommended row; None where there is none or the study cannot score it any more."""
    row = result.recommended
    if row is None:
        return None
    try:
        frame, detail = explain(result.study, result.study.space.settings_of({str(k): v for k, v in row.items()}))
        more = one_more(result.study, row)
    except InputError:
        return None
    pools, system = detail["pools"], detail["system"]
    return Why(
        pools=[pool_column(name, p) for name, p in pools.items()],
        system=system_lines(system),
        link=link_bar(system),
        more=[more_line(m, row) for _, m in more.iterrows()],
        raised=[raised_line(r) for r in result.info.get("raised_limits", [])],
        drift=_drift(frame.iloc[0], row),
    )


def raised_line(raised: Mapping[str, Any]) -> str:
    """One raised limit in a sentence."""
    name, now, needed = str(raised["limit"]), float(raised["now"]), float(raised["needed"])
    return (
        f"{label(name)}: {signed(name, needed - now)} on the limit of {shown(name, now)} lets in a design that is "
        f"{shown(str(raised['objective']), float(raised['gain']))} faster than the fastest within it."
    )


def _drift(again: Row, row: Row) -> str:
    for name in ("throughput_tok_s", "cost_usd_per_h", "power_w"):
        if name not in row.index:
            continue
        new, old = value_of(again, name), value_of(row, name)
        if not math.isclose(new, old, rel_tol=RESCORED):
            return (
                f"Scored today this design has {name} {number(new)}, the run found {number(old)}: "
                "the catalogue or the model has changed since. Run the study again."
            )
    return ""


def pool_column(name: str, p: Mapping[str, Any]) -> PoolColumn:
    """One pool's explanation as the page prints it."""
    instances = f"{p['instances']:,.0f}"
    if p["instances"] > 0 and p["n"] > p["instances"]:
        instances += f" of {p['n'] / p['instances']:g} devices"
    power = f"{shown('power_w', p['power_w'])} provisioned, {shown('power_w', p['power_mean_w'])} mean"
    return PoolColumn(
        name=name,
        lines={
            "Role": "work stealing" if p["role"] == "any" else str(p["role"]),
            "Devices": f"{p['n']:,}",
            "Instances": instances,
            "Busy share": percent(p["busy_frac"]),
            "Binding term": str(p["binding"]),
            "u_HO, when never idle": percent(p["u_ho"]),
            "η, idle over busy": number(p["eta"]),
            "u = u_HO / (1 + η)": percent(p["u"]),
            "Useful rate g": f"{number(p['g_flop_s'] * 1e-12)} TFLOP/s",
            "Alone it would do": shown("throughput_tok_s", p["alone_tok_s"]),
            "Cost": shown("cost_usd_per_h", p["cost_usd_per_h"]),
            "Power": power,
        },
        time=[Bar(name=k, share=v, text=percent(v)) for k, v in p["time_frac"].items()],
        memory=_memory_bars(p["memory"]),
        outside=_outside_bars(p["memory"]),
    )


def _memory_bars(memory: Mapping[str, Any]) -> list[Bar]:
    """What one device holds, its headroom and reserve, as shares of its memory."""
    device, usable = memory["device_byte"], memory["usable_byte"]
    left = usable - sum(memory["held"].values())
    parts = (*memory["held"].items(), ("headroom", left), ("reserve", device - usable))
    return [Bar(name=n, share=b / device, text=shown("mem_margin_byte", b)) for n, b in parts if b > 0]


def _outside_bars(memory: Mapping[str, Any]) -> list[Bar]:
    """What a streaming device keeps outside, as shares of what it may; nothing for others."""
    room = memory["outside_byte"]
    if not room:
        return []
    parts = (*memory["outside"].items(), ("headroom", room - sum(memory["outside"].values())))
    return [Bar(name=n, share=b / room, text=shown("mem_margin_byte", b)) for n, b in parts if b > 0]


def _tflop(value: float | None) -> str:
    return "none: nothing crosses" if value is None else f"{number(value * 1e-12)} TFLOP/s"


def paradigm_lines(s: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What only some paradigms tell of the whole: name, value, what it is."""
    return [(name, show(s[key]), words) for key, name, show, words in SYSTEM_LINES if s.get(key) is not None]


def system_lines(s: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The bounds of eq. (2), what the system reaches, and what else its paradigm tells."""
    whole = s["sum_g_flop_s"] if s.get("f_overlap_flop_s") is None else s["f_overlap_flop_s"]
    bound = whole if s["link_bound_flop_s"] is None else min(whole, s["link_bound_flop_s"])
    lines = [
        ("Σ g", _tflop(s["sum_g_flop_s"]), "useful rate of all pools together"),
        ("v·S", _tflop(s["link_bound_flop_s"]), "rate at which a full link would stop the system"),
        ("f at full overlap", _tflop(bound), "eq. (2): min(Σ g, v·S) if nothing waited for the link"),
        ("f", _tflop(s["f_flop_s"]), "rate reached"),
        *paradigm_lines(s),
        ("Pools side by side", f"{number(s['aggregate_tok_s'])} tok/s", "sum of the pools, each alone"),
        ("Best pool alone", f"{number(s['best_single_tok_s'])} tok/s", "the larger of them"),
    ]
    if s["link_byte_s"] is not None:
        cost, power = shown("cost_usd_per_h", s["link_cost_usd_per_h"]), shown("power_w", s["link_power_w"])
        lines.append(("Links bought", f"{s['links_bought']:,.0f}", f"cost {cost}, power {power}"))
    return lines


def link_bar(s: Mapping[str, Any]) -> Bar | None:
    """What crosses the busiest direction of a link against its bandwidth."""
    if s["link_byte_s"] is None:
        return None
    need, have = (shown("kv_transfer_byte_s", s[key]) for key in ("link_need_byte_s", "link_byte_s"))
    share = s["link_need_byte_s"] / s["link_byte_s"]
    return Bar(name="link", share=share, text=f"{need} of {have} ({percent(share)})")


def more_line(m: Row, row: Row) -> tuple[str, str, str, str, str]:
    """One change in plain words, and whether it pays against the point as it is."""
    gain, cost, power = (float(m[f"d_{k}"]) for k in ("throughput_tok_s", "cost_usd_per_h", "power_w"))
    before = value_of(row, "throughput_tok_s")
    same = abs(gain) <= UNCHANGED * max(abs(before), 1.0)
    throughput = "no change" if same else f"{signed('throughput_tok_s', gain)} ({gain / before * 100:+.2g} %)"
    if m["breaks"]:
        word = f"not allowed: {m['breaks']}"
    elif same:
        word = "buys nothing: it is not what binds"
    elif gain < 0:
        word = "slows the system"
    elif math.isnan(cost) or cost <= 0:
        word = "helps"
    else:
        word = _worth(cost / gain, value_of(row, "cost_usd_per_h") / before)
    return str(m["change"]), throughput, signed("cost_usd_per_h", cost), signed("power_w", power), word


def _worth(step: float, now: float) -> str:
    """Price of the added throughput against what the point pays for its own, both per 1,000 tok/s."""
    against = "cheaper than" if step < now else "dearer than"
    if math.isclose(step, now, rel_tol=RESCORED):
        against = "the same as"
    return f"{number(step * 1e3)} USD/h for 1,000 tok/s more, {against} today's {number(now * 1e3)}"
