"""`dse score`: scores one design of a study and explains it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dse.cli.check import AsJson, StudyPath

if TYPE_CHECKING:
    from dse.model.screening import Explanation


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
    from dse.resolve import Study
    from dse.scoring import explain as explained
    from dse.units import json_safe

    loaded = Study.load(study)
    frame, detail = explained(loaded, _settings(set_ or []))
    row = {str(k): _plain(v) for k, v in frame.iloc[0].to_dict().items() if k != "on_front"}
    if as_json:
        typer.echo(json.dumps(json_safe(row | {"explain": detail}), indent=2))
        return
    _print_row(row)
    if explain:
        _print_detail(detail)


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
    from dse.cli.tables import figure
    from dse.columns import column

    width = max(len(k) for k in row)
    for name, value in row.items():
        schema = column(name)
        unit = schema.unit if schema and schema.unit != "1" else ""
        if isinstance(value, (bool, str)):
            shown = str(value)
        else:
            shown = f"{value:,}" if isinstance(value, int) else figure(value)
        typer.echo(f"{name:<{width}}  {shown} {unit}".rstrip())


def _print_detail(detail: Explanation) -> None:
    for name, pool in detail["pools"].items():
        _print_pool(name, pool)
    _print_system(detail["system"])


def _print_pool(name: str, pool: dict[str, Any]) -> None:
    from dse.units import quantity

    memory = pool["memory"]
    parts = ", ".join(f"{k} {v:.1%}" for k, v in pool["time_frac"].items())
    lines = [
        f"{name}: {pool['n']} devices, {pool['instances']:g} instances, {pool['role']}, bound by {pool['binding']}",
        f"  u_HO {pool['u_ho']:.4g}, eta {pool['eta']:.4g}, u {pool['u']:.4g}, "
        f"g {quantity(pool['g_flop_s'], 'flop/s')}, busy {pool['busy_frac']:.1%}",
        f"  parts of its time (they overlap): {parts}",
        f"  memory per device: {quantity(memory['usable_byte'], 'B')} usable; {_held(memory['held'])}"
        + (f"outside {_held(memory['outside'])}" if memory["outside"] else "")
        + f"{quantity(memory['margin_byte'], 'B')} left",
        f"  {pool['cost_usd_per_h']:.2f} USD/h, {quantity(pool['power_w'], 'W')} provisioned, "
        f"{quantity(pool['power_mean_w'], 'W')} mean",
        f"  alone: {pool['alone_tok_s']:,.0f} tok/s",
    ]
    typer.echo("\n" + "\n".join(lines))


def _held(parts: dict[str, float]) -> str:
    from dse.units import quantity

    return "".join(f"{quantity(byte, 'B')} {name}, " for name, byte in parts.items())


def _print_system(system: dict[str, Any]) -> None:
    from dse.report.why import paradigm_lines
    from dse.units import quantity

    bound = system["link_bound_flop_s"]
    link = quantity(bound, "flop/s") if bound else "none"
    lines = [
        f"system: f {quantity(system['f_flop_s'], 'flop/s')} = "
        f"min(sum g {quantity(system['sum_g_flop_s'], 'flop/s')}, link {link})"
    ]
    lines += [f"  {name.lower()}: {text} ({words})" for name, text, words in paradigm_lines(system)]
    if system["link_byte_s"]:
        lines.append(
            f"  link: needs {quantity(system['link_need_byte_s'], 'B/s')} of "
            f"{quantity(system['link_byte_s'], 'B/s')}; {system['link_cost_usd_per_h']:.2f} USD/h, "
            f"{quantity(system['link_power_w'], 'W')}"
        )
    lines.append(
        f"  baselines: aggregate {system['aggregate_tok_s']:,.0f} tok/s, "
        f"best single pool {system['best_single_tok_s']:,.0f} tok/s"
    )
    typer.echo("\n" + "\n".join(lines))
