"""What stands behind the numbers: how the space was explored, the proof, and every fact that went in."""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import tomli_w

from dse.catalog import Catalog, Fact, load_catalog
from dse.catalog.device_facts import device_file_facts
from dse.report.numbers import duration, number
from dse.resolve import Study

ESTIMATE: Final = "D"
PRICES: Final = ("rental", "capex", "price")
"""How the parameters that are prices begin."""
OLD_DAYS: Final = 180
FROM_FILE: Final = "From file: every number is the file's own."
GRADES: Final = (
    ("A", "measured, a published configuration, or by definition"),
    ("B", "printed by the vendor or seller"),
    ("C", "derived from published numbers, or carried over from a near relative"),
    ("D", "our own estimate"),
)


@dataclass(frozen=True, kw_only=True)
class FactRow:
    """One fact as the page prints it."""

    parameter: str
    value: str
    span: str
    """Low to high."""
    source: int
    """Number of the citation."""
    date: str
    grade: str


@dataclass(frozen=True, kw_only=True)
class FactTable:
    """The facts of one device, link or model."""

    kind: str
    name: str
    rows: list[FactRow]
    note: str

    @property
    def n_estimates(self) -> int:
        """Rows of grade D."""
        return sum(r.grade == ESTIMATE for r in self.rows)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All facts a study uses, and the citations they point at."""

    tables: list[FactTable]
    citations: list[tuple[str, str]]
    old_prices: list[str]
    """Prices seen more than 180 days before the page was made."""

    @property
    def n_facts(self) -> int:
        """Facts in all tables."""
        return sum(len(t.rows) for t in self.tables)

    @property
    def n_estimates(self) -> int:
        """Facts of grade D in all tables."""
        return sum(t.n_estimates for t in self.tables)


MOST_STEPS = 10
"""Rows of the table on how a search converged."""


def method_lines(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How the run was done."""
    scored = "programs solved" if info["method"] == "milp" else "candidates scored"
    scored = "fleets and parts of fleets compared" if info["proof"].get("pruned") else scored
    lines = [
        ("Method", f"{info['method']}: {info['method_reason']}"),
        ("Proof", proof_text(info)),
        ("Designs in the grid", f"{info['designs_in_grid']:,}"),
        (
            scored.capitalize(),
            f"{info['candidates']:,}; {number(float(info['candidates_per_s'] or 0))} per second",
        ),
        ("Wall time", duration(float(info["wall_s"]))),
        ("Seed", str(info["seed"])),
        ("Workers", str(info["workers"])),
        ("Versions", ", ".join(f"{k} {v}" for k, v in info["versions"].items())),
    ]
    if info.get("trials"):
        lines.insert(4, ("Trials", f"{info['trials']:,}"))
    return lines


def proof_text(info: Mapping[str, Any]) -> str:
    """What is proven about the frontier."""
    proof = info["proof"]
    if not info["complete"]:
        return "none: the run stopped before the space was covered; better designs may exist"
    if proof["kind"] == "exhaustive":
        text = f"exhaustive: all {proof['designs']:,} designs of the grid were judged; the frontier is exact"
        pruned = proof.get("pruned")
        return f"{text} ({pruned['scored']:,} were scored, the others cannot be better)" if pruned else text
    if proof["kind"] == "milp":
        gap = float(proof.get("largest_gap") or 0.0)
        return (
            f"{proof['solves']:,} exact programs over {proof['boxes']:,} boxes, largest proven gap {gap:.2g}; "
            + _cover_text(float(proof["resolution_frac"]))
        )
    ended = "; it ended because it gained no more (search.stop_gain_frac)" if proof.get("converged") else ""
    return f"none: a search found these designs; better ones may exist{ended}"


def convergence_rows(info: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """How a search came to its frontier: time, designs scored, share of the hypervolume it ended with."""
    history = info.get("hypervolume") or []
    shown = sorted({round(i * (len(history) - 1) / (MOST_STEPS - 1)) for i in range(MOST_STEPS)}) if history else []
    return [
        (duration(elapsed_s), f"{int(scored):,}", f"{100 * share:.4g} %")
        for elapsed_s, scored, share in (history[i] for i in shown)
    ]


def _cover_text(resolution_frac: float) -> str:
    if resolution_frac == 0:
        return "every point was found, but for points nearer to another than 1e-7 of an objective's scale"
    return (
        f"for every design there is a point of the frontier that is at most {resolution_frac:.3g} of the range "
        "worse in every objective (search.resolution_frac; 0 finds every point)"
    )


def study_text(study: Study) -> str:
    """The study as resolved."""
    return tomli_w.dumps(study.portable()[0])


def evidence(study: Study, today: date) -> Evidence:
    """Every catalogue fact behind the study, and which prices are old on a day."""
    catalog = load_catalog()
    cited: dict[str, int] = {}
    asked = study.envelope.model_dump()
    tables = [_device_table(catalog, study, p["device"], p["profile"], cited) for p in asked["pool"]]
    tiers = (asked.get("link") or {}).get("tier") or ()
    tables += [_table("Link", tier, catalog.facts_of("links", tier), cited) for tier in tiers]
    model = asked["workload"]["model"]
    if model.endswith(".json"):
        tables.append(FactTable(kind="Model", name=model, rows=[], note=FROM_FILE))
    else:
        tables.append(_table("Model", model, catalog.facts_of("models", model), cited))
    unique = {(t.kind, t.name): t for t in tables}
    citations = [(source, catalog.citations.get(source, source)) for source in cited]
    old = [
        f"{r.parameter} of {t.name}, {r.date}"
        for t in unique.values()
        for r in t.rows
        if r.parameter.startswith(PRICES) and age_days(r.date, today) > OLD_DAYS
    ]
    return Evidence(tables=list(unique.values()), citations=citations, old_prices=old)


def age_days(seen: str, today: date) -> int:
    """Least age of a number dated to a year, a month or a day; 0 where the date says nothing.

    >>> [age_days(seen, date(2026, 12, 1)) for seen in ("2025", "2026-05", "2026-11-30", "2026", "")]
    [335, 184, 1, 0, 0]
    """
    parts = [int(p) for p in seen.split("-") if p.isdigit()]
    if not parts:
        return 0
    year, month = parts[0], parts[1] if len(parts) > 1 else 12
    try:
        last = date(year, month, parts[2] if len(parts) > 2 else calendar.monthrange(year, month)[1])
    except (ValueError, calendar.IllegalMonthError):
        return 0
    return max((today - last).days, 0)


def _device_table(catalog: Catalog, study: Study, device: str, profile: str, cited: dict[str, int]) -> FactTable:
    if device.endswith(".toml"):
        rows = [_row(f, cited) for f in device_file_facts(study.folder / device)]
        return FactTable(kind="Device", name=device, rows=rows, note=FROM_FILE)
    facts = [f for f in catalog.facts_of("devices", device) if _used(f, study, profile, catalog)]
    name = device if profile == "default" else f"{device}, profile {profile}"
    return _table("Device", name, facts, cited)


def _used(fact: Fact, study: Study, profile: str, catalog: Catalog) -> bool:
    """Whether a fact of a device enters this study's numbers."""
    if fact.table == "efficiency":
        own = {(f.profile, f.phase) for f in catalog.facts_of("devices", fact.name)}
        wanted = profile if (profile, fact.phase) in own else "default"
        return fact.profile == wanted and fact.phase in study.paradigm.phases
    if fact.table == "prices":
        rental = study.envelope.site.cost_basis == "rental"
        owns = any(o.owned for o in study.problem.pools if o.device.name == fact.name)
        return fact.parameter == "rental" if rental and not owns else True
    if fact.parameter.startswith("peak_"):
        dtypes = set(study.problem.compute_dtypes)
        twins = {"bf16", "fp16"}
        return fact.parameter.removeprefix("peak_") in (dtypes | twins if dtypes & twins else dtypes)
    return True


def _table(kind: str, name: str, facts: tuple[Fact, ...] | list[Fact], cited: dict[str, int]) -> FactTable:
    rows = [_row(f, cited) for f in facts]
    return FactTable(kind=kind, name=name, rows=rows, note="")


def _row(fact: Fact, cited: dict[str, int]) -> FactRow:
    number_of = cited.setdefault(fact.source, len(cited) + 1)
    unit = "" if fact.unit in ("1", "text") else f" {fact.unit}"
    span = f"{fact.low or '?'} to {fact.high or '?'}{unit}" if fact.low or fact.high else "–"
    phase = f"{fact.phase}: " if fact.phase else ""
    return FactRow(
        parameter=f"{phase}{fact.parameter.replace('_', ' ')}",
        value=f"{fact.value}{unit}",
        span=span,
        source=number_of,
        date=fact.date,
        grade=fact.grade,
    )
