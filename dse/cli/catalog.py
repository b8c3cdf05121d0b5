"""`dse catalog`: what is known, with source and grade of every number."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from dse.cli.check import AsJson


class Kind(StrEnum):
    """What the catalogue holds."""

    devices = "devices"
    models = "models"
    links = "links"


def catalog(
    kind: Annotated[Kind, typer.Argument(help="devices, models or links.")],
    name: Annotated[str | None, typer.Argument(help="One entry, with source and grade of every number.")] = None,
    as_json: AsJson = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="One device as a device file, to edit and use.")] = False,
    profile: Annotated[str, typer.Option(help="Efficiency profile of the device file.")] = "default",
) -> None:
    """List what the catalogue knows, or every number of one entry with its source."""
    from dse.catalog import load_catalog
    from dse.errors import InputError, UnknownNameError, unknown_name

    known = load_catalog()
    names = {"devices": known.devices, "models": known.models, "links": known.links}[kind.value]
    if name is not None and name not in names:
        raise UnknownNameError(unknown_name("catalog", kind.value[:-1], name, names))
    if as_toml and (name is None or kind is not Kind.devices):
        raise InputError("--toml: name one device, e.g. dse catalog devices wse-3 --toml")
    if name is None:
        if as_json:
            typer.echo(json.dumps(sorted(names), indent=2))
        else:
            _list(kind)
    elif as_toml:
        _print_file(name, profile)
    else:
        _print_facts(kind, name, as_json)


def _print_file(name: str, profile: str) -> None:
    from dse.catalog import device_file_text, load_catalog

    known = load_catalog()
    typer.echo(device_file_text(known.device(name, profile), known.device_sources(name, profile)), nl=False)


def _print_facts(kind: Kind, name: str, as_json: bool) -> None:
    from dse.catalog import load_catalog

    known = load_catalog()
    facts = known.facts_of(kind.value, name)
    if as_json:
        rows = [
            {
                "parameter": f.label,
                "value": f.value,
                "unit": f.unit,
                "low": f.low or None,
                "high": f.high or None,
                "source": known.citations[f.source],
                "date": f.date,
                "grade": f.grade,
            }
            for f in facts
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    for f in facts:
        spread = f" ({f.low} to {f.high})" if f.low or f.high else ""
        mark = "  estimate" if f.grade == "D" else ""
        typer.echo(f"{f.label:<32} {f.value} {f.unit}{spread}  [{f.grade}, {f.date}]{mark}")
        typer.echo(f"{'':<32}   {known.citations[f.source]}")


def _list(kind: Kind) -> None:
    from rich.table import Table

    from dse.catalog import load_catalog
    from dse.cli.tables import console, figure
    from dse.model.transformer import arithmetic

    known = load_catalog()
    table = Table(box=None, pad_edge=False, header_style="bold")
    if kind is Kind.devices:
        for title in ("device", "kind", "bf16 TFLOP/s", "memory GB", "GB/s", "W", "USD/h", "USD", "profiles"):
            table.add_column(title, justify="left" if title in ("device", "kind", "profiles") else "right")
        for d in known.devices.values():
            table.add_row(
                d.name,
                d.kind,
                figure((d.peak("bf16") or 0) / 1e12),
                figure(d.memory_byte / 1e9),
                figure(d.memory_bandwidth_byte_s / 1e9),
                figure(d.full_w + d.host_w),
                "-" if d.rental_usd_per_h is None else figure(d.rental_usd_per_h),
                "-" if d.capex_usd is None else figure(d.capex_usd),
                ", ".join(known.profiles[d.name]),
            )
    elif kind is Kind.models:
        for title in ("model", "layers", "hidden", "parameters", "active", "KV byte/token (16 bit)"):
            table.add_column(title, justify="left" if title == "model" else "right")
        for m in known.models.values():
            a = arithmetic(m)
            table.add_row(
                m.name,
                str(m.layers),
                str(m.hidden),
                f"{a.total_parameters / 1e9:.2f} B",
                f"{(a.linear_parameters + a.head_parameters) / 1e9:.2f} B",
                f"{a.kv_entries * 2:,.0f}",
            )
    else:
        for title in ("link", "GB/s", "latency us", "USD", "W"):
            table.add_column(title, justify="left" if title == "link" else "right")
        for link in known.links.values():
            table.add_row(
                link.name,
                figure(link.bandwidth_byte_s / 1e9),
                figure(link.latency_s * 1e6),
                figure(link.capex_usd),
                figure(link.power_w),
            )
    console().print(table)
