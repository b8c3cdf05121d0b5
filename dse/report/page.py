"""The page: everything put into the template, written beside and renamed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dse.explore import Result
from dse.files import write_whole
from dse.report.charts import figures, script_safe
from dse.report.designs import (
    bill_of_materials,
    columns_of,
    gains,
    headline_figures,
    port_warnings,
    verdict_tag,
)
from dse.report.frontier_rows import all_rows, distinct_rows, frontier_table
from dse.report.layout import setup
from dse.report.panels import explained
from dse.report.proof import GRADES, convergence_rows, evidence, method_lines, study_text
from dse.report.questions import asked, specs_of
from dse.report.relaxed import relaxation_text
from dse.report.robust import compared
from dse.report.rows import Row, part_list
from dse.report.sensitivity import what_if
from dse.report.simulation import checked
from dse.report.trust import trust
from dse.report.words import glossary
from dse.verdict import Verdict, study_verdict

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
    panels = explained(result, distinct)
    turned, replayed, questions = what_if(info), checked(info), asked(study, info)
    question_specs = specs_of(questions)
    return {
        "name": study.name,
        "paradigm": study.envelope.paradigm,
        "complete": result.complete,
        "stopped": _stopped(info),
        "infeasible": info.get("infeasible") if row is None else None,
        "relaxations": _relaxations(info),
        **(_pick(result, row) if row is not None else {"figures": []}),
        "charts": charts,
        "spec": Markup(charts.spec) if charts else "",
        "bundle": Markup(vega_bundle()) if charts or question_specs else "",
        "questions": questions,
        "question_specs": Markup(question_specs),
        "explained": panels,
        "what_if": turned,
        "checked": replayed,
        "replay_spec": Markup(replayed.spec) if replayed else "",
        "scenarios": compared(info),
        "tornado_spec": Markup(turned.spec) if turned else "",
        "why_spec": Markup(panels.spec) if panels else "",
        "rows": Markup(script_safe(all_rows(study, distinct))),
        "script": Markup((HERE / "page.js").read_text(encoding="utf-8")),
        "trust": trust(study, info, None if row is None else {str(k): v for k, v in row.items()}),
        "table": frontier_table(study, distinct),
        "objectives": study.envelope.objectives,
        "method": method_lines(info),
        "convergence": convergence_rows(info),
        "study_text": study_text(study),
        "evidence": evidence(study, date.today()),
        "raw_links": study.problem.raw_links,
        "grades": GRADES,
        "glossary": glossary(study.envelope.paradigm),
        "css": Markup((HERE / "report.css").read_text(encoding="utf-8")),
    }


def _relaxations(info: dict[str, Any]) -> list[dict[str, str]]:
    """What would make an infeasible study feasible."""
    found = (info.get("infeasible") or {}).get("relaxations", [])
    return [{"limits": relaxation_text(r), "design": r["design"]} for r in found]


def _pick(result: Result, row: Row) -> dict[str, Any]:
    """The recommended design and the verdict on mixing, which may be about another one."""
    study = result.study
    verdict = verdict_for(result)
    mix = _design(result, verdict["design_id"])
    headline = headline_figures(study, row)
    return {
        "sentence": bill_of_materials(study, row),
        "setup": "; ".join(setup(study, row)),
        "figures": headline,
        "columns": columns_of(headline),
        "rule": result.info["recommended"]["rule"],
        "design_id": str(row["design_id"]),
        "mixing": verdict["sentence"].replace(" x ", " × "),
        "tag": verdict_tag(verdict),
        "of_pick": verdict["of_pick"],
        "mix": part_list(study, mix) if mix is not None else "",
        "gains": gains(mix) if mix is not None else [],
        "bottleneck": str(row.get("bottleneck", "")),
        "ports": port_warnings(row, study.space.pool_names),
    }


def verdict_for(result: Result) -> Verdict:
    """The run's verdict; made now for a run that was written without one."""
    found: Verdict | None = result.info.get("verdict")
    return found or study_verdict(result.study, result.recommended, result.frontier, result.candidates)


def _design(result: Result, design_id: str | None) -> Row | None:
    """The row of a design, on the frontier or among the candidates."""
    for frame in (result.frontier, result.candidates):
        found = frame[frame["design_id"] == design_id] if len(frame) else frame
        if len(found):
            return found.iloc[0]
    return None


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
