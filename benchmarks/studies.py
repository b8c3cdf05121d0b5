"""The studies of docs/studies, made again: run, replayed, drawn, and their figures put into the pages.

Run: `make studies`, or `python benchmarks/studies.py [NAME ...]`. A page keeps its words; what stands between
`<!-- made: PART -->` and `<!-- end -->` is written anew. About a quarter of an hour for all of them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dse.explore import Result, run, with_answers
from dse.files import whole, write_whole
from dse.progress import Stop
from dse.report import load_run, write_report, write_whole_run
from dse.report.frontier_rows import spread
from dse.report.numbers import duration, number, percent
from dse.report.robust import printed_lines as printed
from dse.report.rows import part_list
from dse.report.simulation import NAMES
from dse.report.static_figures import write_figures
from dse.resolve import Study
from dse.run_folder import write_simulation
from dse.simulate import simulate
from dse.units import json_safe

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / "experiments" / "studies"
PAGES = ROOT / "docs" / "studies"
RUNS = ROOT / "runs" / "studies"
DESIGNS = 20
"""Frontier points that are replayed."""
LOAD_FRAC = 0.8
"""Of its capacity each of them carries: where queues are, and a demand may be far below."""
SHOWN = 8
"""Frontier points in a page's table."""
REPLAY = "checked_by_replay"
"""View of predictions beside replays."""


def main() -> None:
    """Makes the named studies, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = sorted(p.stem for p in STUDIES.glob("*.toml"))
    parser.add_argument("names", nargs="*", choices=[*known, []], help="studies; default all")
    parser.add_argument("--designs", type=int, default=DESIGNS, help="frontier points that are replayed")
    parser.add_argument("--chat-trace", type=Path, help="the Azure trace of 2023, whose requests chat then replays")
    given = parser.parse_args()
    errors = {}
    for name in given.names or known:
        result, spent_s = made(name, given.designs, given.chat_trace if name == "chat" else None)
        page = PAGES / f"{name}.md"
        parts = {"frontier": frontier_table(result), "answers": answers(result), "replay": replay_table(result),
                 "run": [run_line(result, spent_s)]}  # fmt: skip
        write_whole(page, filled(page.read_text(encoding="utf-8"), parts))
        draw(result, name)
        errors[name] = result
        print(f"{name}: {spent_s:.0f} s")
    if not given.names:
        index = PAGES / "README.md"
        write_whole(index, filled(index.read_text(encoding="utf-8"), {"errors": error_table(errors)}))


def made(name: str, designs: int, trace: Path | None) -> tuple[Result, float]:
    """A study, run and replayed, in its run folder."""
    started, folder = time.perf_counter(), RUNS / name
    shutil.rmtree(folder, ignore_errors=True)
    study = Study.load(STUDIES / f"{name}.toml")
    result = with_answers(run(study), Stop())
    write_whole_run(result, folder)
    if "load_requests_s" in result.frontier:
        found = simulate(load_run(folder), top=designs, trace=trace, load_frac=LOAD_FRAC)
        result = replace(result, info=write_simulation(result, found, folder).info)
        write_report(result, folder / "report.html")
    elif result.recommended is not None:
        hardest = of_scenario(study, str(result.recommended["binding_scenario"]))
        found = simulate(run(hardest), top=designs, load_frac=LOAD_FRAC)
        told = json_safe({**found.info, "summary": found.summary, "rows": found.frame.to_dict(orient="records")})
        result = replace(result, info=result.info | {"simulation": told})
    return result, time.perf_counter() - started


def of_scenario(study: Study, name: str) -> Study:
    """One scenario of a robust study as a study of its own, with work stealing: what can be replayed."""
    raw = study.portable()[0]
    scenario = next(s for s in raw["scenario"] if s["name"] == name)
    mix = scenario.get("mix") or {r["name"]: r["share"] for r in raw["workload"]["requests"]}
    work = {k: raw["workload"][k] for k in ("model", "slo", "weight_dtype", "kv_dtype", "compute_dtype")}
    requests = [{**r, "share": mix[r["name"]]} for r in raw["workload"]["requests"] if mix.get(r["name"])]
    pools = [{k: v for k, v in pool.items() if k != "spares"} for pool in raw["pool"]]
    return Study.from_dict(
        {
            "name": f"{study.name}: {name}", "paradigm": "pd_serving", "pool": pools, "link": raw["link"],
            "workload": {**work, "requests": requests, "routing": "work_stealing"}, "limits": raw["limits"],
        }
    )  # fmt: skip


def filled(text: str, parts: Mapping[str, Sequence[str]]) -> str:
    """A page with the marked parts written anew."""
    for part, lines in parts.items():
        mark = re.compile(rf"(<!-- made: {part} -->\n).*?(<!-- end -->)", re.DOTALL)
        body = "\n".join(lines)
        text = mark.sub(lambda m, body=body: f"{m[1]}{body}\n{m[2]}", text)
    return text


def frontier_table(result: Result) -> list[str]:
    """Some points of the frontier."""
    frame, names = result.frontier.drop_duplicates(list(result.study.envelope.objectives.names)), []
    frame = frame.reset_index(drop=True)
    pick = result.recommended
    assert pick is not None
    at = int(frame.index[frame["design_id"] == pick["design_id"]][0])
    lines = [
        "| fleet | output tok/s | requests/s | USD/h | kW | USD/Mtok | TTFT p99 under load | TPOT under load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for k in spread(len(frame), SHOWN, at):
        row = frame.iloc[k]
        mark = "**" if k == at else ""
        cells = [
            f"{mark}{part_list(result.study, row)}{mark}",
            number(row["throughput_tok_s"]), number(row["requests_s"]), number(row["cost_usd_per_h"]),
            number(row["power_w"] / 1e3), number(row["usd_per_mtok"]),
            duration(row["ttft_load_p99_s"]) if "ttft_load_p99_s" in row else "–",
            duration(row["tpot_load_mean_s"]) if "tpot_load_mean_s" in row else "–",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    names.append(f"{len(frame)} distinct points; {len(lines) - 2} of them, the recommended one in bold.")
    return [*lines, "", *names]


def answers(result: Result) -> list[str]:
    """What the study's questions were answered."""
    lines = [f"- {record['line']}" for record in result.info.get("answers") or []]
    if result.info.get("robust"):
        lines += ["```text", *printed(result.info), "```", ""]
    verdict = result.info["verdict"]
    return [*lines, f"- Does mixing pay? {verdict['word']}. {verdict['sentence']}"]


def replay_table(result: Result) -> list[str]:
    """How far predictions are off."""
    found = result.info.get("simulation")
    if not found:
        return ["Not replayed."]
    lines = ["| quantity | median error | 90 % within | median gap |", "|---|---|---|---|"]
    for name, e in found["summary"].items():
        sign = "+" if e["bias"] > 0 else "−" if e["bias"] < 0 else ""
        lines.append(
            f"| {NAMES[name]} | {percent(e['median'])} | {percent(e['p90'])} | {sign}{percent(abs(e['bias']))} |"
        )
    n = len(found["rows"])
    return [
        *lines,
        "",
        f"{n} designs of the frontier, each at {percent(LOAD_FRAC)} of its capacity; {found['requests']:,} requests, "
        f"{found['source']}.",
    ]


def error_table(results: Mapping[str, Result]) -> list[str]:
    """Median and p90 of the errors of all studies."""
    shown = ("throughput_tok_s", "ttft_mean_s", "ttft_p99_s", "tpot_mean_s")
    lines = ["| study | designs | " + " | ".join(NAMES[n] for n in shown) + " |", "|---|---|---|---|---|---|"]
    for name, result in results.items():
        found = result.info.get("simulation")
        if not found:
            continue
        cells = [
            f"{percent(found['summary'][n]['median'])} / {percent(found['summary'][n]['p90'])}"
            if n in found["summary"] else "–"
            for n in shown
        ]  # fmt: skip
        lines.append(f"| [{name.replace('_', ' ')}]({name}.md) | {len(found['rows'])} | " + " | ".join(cells) + " |")
    return lines


def run_line(result: Result, spent_s: float) -> str:
    """How the frontier was found, and how long all of it took."""
    info = result.info
    how = {"exhaustive": "proven by enumeration", "milp": "proven by exact programs"}.get(
        info["proof"]["kind"], "found"
    )
    return (
        f"{info['designs_in_grid']:,} designs; the frontier, {how}, took {info['wall_s']:.1f} s, with the replay "
        f"{spent_s:.0f} s on one core."
    )


def draw(result: Result, name: str) -> None:
    """The figures beside the page: the first plane of the frontier, and predictions beside replays."""
    with tempfile.TemporaryDirectory() as folder:
        files = {p.stem: p for p in write_figures(result, Path(folder), width_mm=150) if p.suffix == ".png"}
        planes = [stem for stem in files if "_against_" in stem]
        for view, short in ((planes[0] if planes else "", "frontier"), (REPLAY, "replay")):
            if view in files:
                with whole(PAGES / f"{name}_{short}.png") as beside:
                    shutil.copyfile(files[view], beside)


if __name__ == "__main__":
    main()
