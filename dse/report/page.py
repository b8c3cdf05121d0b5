"""The page: everything put into the template, written beside and renamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dse.explore import Result
from dse.files import write_whole
from dse.report.charts import figures
from dse.report.designs import bill_of_materials, gains, headline_figures, port_warnings, verdict
from dse.report.frontier_rows import distinct_rows, frontier_table
from dse.report.proof import GRADES, evidence, glossary, method_lines, study_text
from dse.report.roles import ETA_WORDS
from dse.report.why import why

HERE: Final = Path(__file__).parent


def write_report(result: Result, path: Path) -> Path:
    """Writes the self-contained page and returns its path; nothing is ever half there."""
    write_whole(path, page(result))
    return path


def page(result: Result) -> str:
    """The whole page as text."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(context(result))


def context(result: Result) -> dict[str, Any]:
    """What the template prints."""
    study, info = result.study, result.info
    row = result.recommended
    pick = int(info["recommended"]["position"]) if row is not None else -1
    distinct = distinct_rows(result.frontier, study.envelope.objectives.names, pick)
    charts = figures(result, distinct)
    return {
        "name": study.name,
        "paradigm": study.envelope.paradigm,
        "complete": result.complete,
        "stopped": _stopped(info),
        "infeasible": info.get("infeasible") if row is None else None,
        "sentence": bill_of_materials(study, row) if row is not None else "",
        "figures": headline_figures(row) if row is not None else [],
        "rule": info["recommended"]["rule"] if row is not None else "",
        "design_id": str(row["design_id"]) if row is not None else "",
        "verdict": verdict(study, row) if row is not None else ("", ""),
        "study_verdict": info.get("verdict"),
        "gains": gains(row) if row is not None else [],
        "bottleneck": str(row.get("bottleneck", "")) if row is not None else "",
        "ports": port_warnings(row, study.space.pool_names) if row is not None else [],
        "charts": charts,
        "spec": Markup(charts.spec) if charts else "",
        "bundle": Markup(vega_bundle()) if charts else "",
        "why": why(result),
        "table": frontier_table(study, distinct),
        "objectives": study.envelope.objectives,
        "method": method_lines(info),
        "study_text": study_text(study),
        "evidence": evidence(study),
        "raw_links": bool(getattr(study.problem, "raw_links", False)),
        "eta_words": ETA_WORDS[study.envelope.paradigm],
        "grades": GRADES,
        "glossary": glossary(study.envelope.paradigm),
        "css": Markup((HERE / "report.css").read_text(encoding="utf-8")),
    }


def _stopped(info: dict[str, Any]) -> str:
    """Why a run is incomplete, in words."""
    if info["stopped"]:
        return str(info["stopped"])
    unproven = info["proof"].get("unproven") or []
    return f"{len(unproven)} corners of the frontier could not be proven" if unproven else "stopped early"


def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, of the version the charts are written for."""
    import altair as alt
    import vl_convert

    version = str(alt.SCHEMA_VERSION).removeprefix("v").rsplit(".", 1)[0]
    bundle: Callable[..., str] = vl_convert.javascript_bundle
    return bundle(vl_version=version).replace("</script", "<\\/script")
