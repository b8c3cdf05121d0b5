"""Every view of the page as a file for papers and slides: SVG, PDF and PNG, rendered without a browser (vl-convert)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dse.errors import InputError
from dse.explore import Result
from dse.files import whole, write_whole
from dse.report.charts import figures
from dse.report.frontier_rows import distinct_rows
from dse.report.panels import explained
from dse.report.sensitivity import what_if
from dse.report.simulation import checked

PIXELS_PER_MM: Final = 96 / 25.4
"""A CSS pixel is 1/96 inch."""
WIDTH_MM: Final = 120.0
MARGIN_PX: Final = 84
"""Room beside the drawing for the axis of a plane."""
LABELS_PX: Final = 230
"""Room for the names of a tornado."""
SCALE: Final = 2.0
"""Pixels of a PNG for each CSS pixel."""
FONT: Final = "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
INK: Final = "#16202c"
ALL: Final = "frontier_all"

Spec = dict[str, Any]


def write_figures(result: Result, folder: Path, *, width_mm: float = WIDTH_MM) -> list[Path]:
    """Writes all views into a folder, each as .svg, .pdf and .png, and returns the files.

    InputError where the run has nothing to draw, or the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--figures {str(folder)!r}: is a file; name a folder")
    specs = dict(views(result, width_mm))
    if not specs:
        raise InputError("--figures: the run has no feasible design, so there is nothing to draw")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [path for name, spec in specs.items() for path in _rendered(folder, name, spec)]
    except OSError as error:
        raise InputError(f"--figures {str(folder)!r}: cannot be written: {error.strerror}") from None


def views(result: Result, width_mm: float) -> Iterator[tuple[str, Spec]]:
    """Name and Vega-Lite specification of each view that a run has."""
    if not len(result.frontier):
        return
    width = width_mm * PIXELS_PER_MM
    objectives = result.study.envelope.objectives.names
    distinct = distinct_rows(result.frontier, objectives, int(result.info["recommended"]["position"]))
    drawn = figures(result, distinct)
    if drawn is not None:
        whole_spec = json.loads(drawn.spec)
        grid, *rest = whole_spec["vconcat"]
        for panel in grid["concat"]:
            yield _slug(panel["title"]), _alone(whole_spec, panel, result.study.name, width, MARGIN_PX)
        for panel in rest:  # parallel coordinates, whose axes need their room
            room = max(width, float(panel["width"]))
            yield _slug(panel["title"]), _alone(whole_spec, panel, result.study.name, room, 0)
        yield ALL, _framed(_still(whole_spec), result.study.name)
    panels = explained(result, distinct)
    if panels is not None:
        reasons = json.loads(panels.spec)
        for panel in reasons["concat"]:
            yield _slug(panel["title"]), _alone(reasons, panel, result.study.name, width, MARGIN_PX)
    turned = what_if(result.info)
    if turned is not None and turned.spec:
        tornado = json.loads(turned.spec)
        tornado["title"] = "What the cost of a token hangs on"
        yield _slug(tornado["title"]), _alone(tornado, tornado, result.study.name, width, LABELS_PX)
    replayed = checked(result.info)
    if replayed is not None:
        parity = json.loads(replayed.spec) | {"title": "Checked by replay"}
        yield _slug(parity["title"]), _framed(_still(parity), result.study.name)


def _slug(title: str) -> str:
    """A title as the name of a file.

    >>> _slug("Output throughput against cost")
    'output_throughput_against_cost'
    """
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


def _alone(whole_spec: Spec, panel: Spec, study: str, width: float, beside: int) -> Spec:
    """One panel with the data and parameters that it needs, as wide as asked."""
    kept = {key: value for key, value in panel.items() if key not in ("name", "datasets", "params")}
    used = json.dumps(kept)
    data = {name: rows for name, rows in whole_spec["datasets"].items() if f'"name": "{name}"' in used}
    params = [p for p in whole_spec.get("params", ()) if "select" not in p]
    spec = {
        "$schema": whole_spec["$schema"], "config": whole_spec["config"], "datasets": data, "params": params,
        **_still(kept), "width": max(width - beside, 60.0),
    }  # fmt: skip
    return _framed(spec, study)


def _still(node: Any) -> Any:
    """The same without what answers to a mouse: selections, and what depends on them."""
    if isinstance(node, list):
        return [_still(part) for part in node]
    if not isinstance(node, dict):
        return node
    found = {key: _still(value) for key, value in node.items()}
    condition = found.get("condition")
    if isinstance(condition, dict) and condition.get("param"):
        return {"value": condition["value"]}
    if "params" in found:
        found["params"] = [p for p in found["params"] if "select" not in p]
    return found


def _framed(spec: Spec, study: str) -> Spec:
    """On white, in a font that papers have, with the study named below the title."""
    config = dict(spec["config"]) | {"background": "white", "font": FONT}
    axis = dict(config.get("axis", {})) | {"labelColor": INK, "titleColor": INK, "gridColor": "#e6eaef"}
    title = dict(config.get("title", {})) | {"anchor": "start", "color": INK, "subtitleColor": "#526070"}
    text = spec.get("title") or ""
    return spec | {
        "config": config | {"axis": axis, "title": title},
        "padding": 8,
        "title": {"text": text, "subtitle": study} if text else {"text": study},
    }


def _rendered(folder: Path, name: str, spec: Spec) -> list[Path]:
    """One view in all three formats."""
    import altair as alt
    import vl_convert

    version = str(alt.SCHEMA_VERSION).removeprefix("v").rsplit(".", 1)[0]
    svg = str(vl_convert.vegalite_to_svg(spec, vl_version=version))
    write_whole(folder / f"{name}.svg", svg)
    with whole(folder / f"{name}.pdf") as beside:
        beside.write_bytes(bytes(vl_convert.vegalite_to_pdf(spec, vl_version=version)))
    with whole(folder / f"{name}.png") as beside:
        beside.write_bytes(bytes(vl_convert.vegalite_to_png(spec, vl_version=version, scale=SCALE)))
    return [folder / f"{name}.{ending}" for ending in ("svg", "pdf", "png")]
