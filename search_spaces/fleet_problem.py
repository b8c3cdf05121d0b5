"""What every paradigm's study resolves alike: links as numbers, and the study as tables that stand alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dse.catalog import load_catalog
from dse.model.cost import amortised_usd_per_h, energy_usd_per_h
from dse.model.links import LinkTable
from dse.study import Link, Site

from .fleet_study import FleetStudy


def portable_tables(study: FleetStudy, folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The study as plain tables, files named without their folder; and the files it needs."""
    raw: dict[str, Any] = study.model_dump(mode="json", exclude_none=True)
    files: dict[str, Path] = {}
    places = [(raw["workload"], "model", ".json")] + [(pool, "device", ".toml") for pool in raw["pool"]]
    for table, key, ending in places:
        if table[key].endswith(ending):
            source = folder / table[key]
            name = source.name
            while name in files and files[name] != source:
                name = f"other-{name}"
            files[name], table[key] = source, name
    return raw, files


def link_table(link: Link | None, site: Site) -> tuple[LinkTable, tuple[str, ...]]:
    """Links ascending in bandwidth; a study with one pool gets one link that nothing uses."""
    if link is None:
        nothing = np.zeros(1)
        return LinkTable(byte_s=np.array([np.inf]), latency_s=nothing, usd_per_h=nothing, power_w=nothing), ("none",)
    if link.bandwidth_gb_s is not None:
        byte_s = np.array(sorted(link.bandwidth_gb_s), dtype=np.float64) * 1e9
        nothing = np.zeros(len(byte_s))
        names = tuple(f"{b / 1e9:.12g} GB/s" for b in byte_s)
        return (
            LinkTable(byte_s=byte_s, latency_s=nothing + link.latency_s, usd_per_h=nothing, power_w=nothing),
            names,
        )
    return tier_links([(t, n) for t in link.tier or () for n in link.count], link.latency_s, site)


def tier_links(choices: list[tuple[str, int]], latency_s: float, site: Site) -> tuple[LinkTable, tuple[str, ...]]:
    """Catalogue tiers side by side, ascending in bandwidth.

    A link is bought (amortised price and upkeep) under either basis; its energy is billed under
    ownership, where all energy is.
    """
    tiers = [(load_catalog().link(t), n) for t, n in choices]
    tiers.sort(key=lambda t: (t[0].bandwidth_byte_s * t[1], t[0].capex_usd * t[1], t[0].name))
    capex = np.array([t.capex_usd * n for t, n in tiers])
    power_w = np.array([t.power_w * n for t, n in tiers]) * site.pue
    usd = amortised_usd_per_h(capex, site.life_years, site.upkeep_frac_per_year)
    if site.cost_basis == "ownership":
        usd = usd + energy_usd_per_h(power_w, site.energy_usd_per_kwh)
    return (
        LinkTable(
            byte_s=np.array([t.bandwidth_byte_s * n for t, n in tiers]),
            latency_s=np.array([t.latency_s for t, _ in tiers]) + latency_s,
            usd_per_h=usd,
            power_w=power_w,
        ),
        tuple(f"{n} x {t.name}" for t, n in tiers),
    )
