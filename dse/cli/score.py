"""`dse score`: scores one design of a study and explains it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dse.cli.check import AsJson, StudyPath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.model.screening import Explanation
    from dse.uncertainty import Effect

OVERLAPS = 1e-6
"""Parts of a pool's time that add up to more than this above all of it overlap."""


def score(
    study: StudyPath,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value of the design, e.g. n_wse-3=2; repeatable.", metavar="KEY=VALUE"),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Per pool u, eta, g, what binds, memory, cost and power.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score one design, on or off the study's axes, and explain it."""
    from dataclasses import asdict

    from dse.resolve import Study
    from dse.scoring import explain as explained
    from dse.uncertainty import explained as with_effects
    from dse.units import json_safe

    loaded, settings = Study.load(study), _settings(set_ or [])
    frame, detail = explained(loaded, settings)
    frame, effects = with_effects(loaded, frame, settings)
    row = {str(k): _plain(v) for k, v in frame.iloc[0].to_dict().items() if k != "on_front"}
    if as_json:
        typer.echo(
            json.dumps(json_safe(row | {"explain": {**detail, "uncertainty": [asdict(e) for e in effects]}}), indent=2)
        )
        return
    _print_row(row)
    if explain:
        _print_detail(detail, loaded.envelope.paradigm)
        _print_effects(row, effects)


def _settings(given: list[str]) -> dict[str, str]:
    from dse.errors import InputError

    faults, settings = [], {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            faults.append(f"--set {text!r}: give key=value, e.g. --set n_wse-3=2")
        elif key in settings:
            faults.append(f"--set {key}: is given twice")
        settings[key] = value
    if faults:
        raise InputError(faults)
    return settings


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _print_row(row: dict[str, Any]) -> None:
    from dse.cli.tables import amount, figure
    from dse.columns import column

    width = max(len(k) for k in row)
    for name, value in row.items():
        schema = column(name)
        unit = schema.unit if schema and schema.unit != "1" else ""
        if isinstance(value, (bool, str)):
            shown = str(value)
        elif name.startswith("train_"):
            shown, unit = amount(name, value), ""
        else:
            shown = f"{value:,}" if isinstance(value, int) else figure(value)
        typer.echo(f"{name:<{width}}  {shown} {unit}".rstrip())


def _print_detail(detail: Explanation, paradigm: str) -> None:
    for name, pool in detail["pools"].items():
        _print_pool(name, pool, paradigm)
    _print_system(detail["system"], paradigm)


def _print_pool(name: str, pool: dict[str, Any], paradigm: str) -> None:
    from dse.report.words import words_of
    from dse.units import quantity

    memory = pool["memory"]
    parts = {k: v for k, v in pool["time_frac"].items() if v}
    overlap = " (they overlap)" if sum(parts.values()) > 1 + OVERLAPS else ""
    lines = [
        f"{name}: {pool['n']} devices, {pool['instances']:g} instances, {pool['role']}, bound by {pool['binding']}",
        f"  u_HO {pool['u_ho']:.4g}, eta {pool['eta']:.4g} ({words_of(paradigm).eta}), "
        f"u = u_HO/(1 + eta) = {pool['u']:.4g}",
        f"  g {quantity(pool['g_flop_s'], 'flop/s')}, busy {pool['busy_frac']:.1%}",
        f"  parts of its time{overlap}: {', '.join(f'{k} {v:.1%}' for k, v in parts.items()) or 'none'}",
        f"  memory per device: {_memory_text(memory['held'], memory['usable_byte'])}",
    ]
    if memory["outside"]:
        lines.append(f"  streamed from outside: {_memory_text(memory['outside'], memory['outside_byte'])}")
    lines += [
        f"  {pool['cost_usd_per_h']:.2f} USD/h, {quantity(pool['power_w'], 'W')} provisioned, "
        f"{quantity(pool['power_mean_w'], 'W')} mean",
        f"  alone: {pool['alone_tok_s']:,.0f} tok/s",
    ]
    typer.echo("\n" + "\n".join(lines))


def _print_effects(row: dict[str, Any], effects: Sequence[Effect]) -> None:
    """Intervals, and which assumption each rests on most."""
    from dse.cli.tables import figure
    from dse.uncertainty import INTERVALS

    lines = ["uncertainty: 80 % of times and the range of prices; each source alone at both ends, combined as squares"]
    for column, unit in (("throughput_tok_s", "tok/s"), ("cost_usd_per_h", "USD/h")):
        low, high = (row[name] for name in INTERVALS[column])
        lines.append(f"  {column} {figure(row[column])}: {figure(low)} to {figure(high)} {unit}")
        own = [e for e in effects if e.column == column]
        lines += [f"    {figure(e.low)} to {figure(e.high)} by {e.text}" for e in own]
        if not own:
            lines.append("    nothing known moves it")
    if effects:
        lines.append(f"  most depends on: {effects[0].source}")
    typer.echo("\n" + "\n".join(lines))


def _memory_text(held: dict[str, float], usable_byte: float) -> str:
    from dse.units import quantity

    parts = [f"{quantity(byte, 'B')} {name}" for name, byte in held.items() if byte]
    left = usable_byte - sum(held.values())
    return ", ".join([f"{quantity(usable_byte, 'B')} usable", *parts, f"{quantity(left, 'B')} left"])


def _print_system(system: dict[str, Any], paradigm: str) -> None:
    from dse.report.system import figure_lines, overlap_flop_s, unhindered_flop_s
    from dse.units import quantity

    bound = system["link_bound_flop_s"]
    link = quantity(bound, "flop/s") if bound else "none"
    lines = [
        f"system: f {quantity(system['f_flop_s'], 'flop/s')} reached, "
        f"sum g {quantity(system['sum_g_flop_s'], 'flop/s')}",
        f"  f at full overlap {quantity(overlap_flop_s(system), 'flop/s')} = "
        f"min(sum g without waiting for the link {quantity(unhindered_flop_s(system), 'flop/s')}, link {link})",
    ]
    if system["link_byte_s"]:
        lines.append(
            f"  link: needs {quantity(system['link_need_byte_s'], 'B/s')} of "
            f"{quantity(system['link_byte_s'], 'B/s')}; {system['link_cost_usd_per_h']:.2f} USD/h, "
            f"{quantity(system['link_power_w'], 'W')}"
        )
    for name, value, meaning in figure_lines(system, paradigm):
        lines.append(f"  {name.lower()}: {value}" + (f" ({meaning})" if meaning else ""))
    typer.echo("\n" + "\n".join(lines))
