"""Measures, and writes benchmarks/RESULTS.md. Run: `make bench`, or `python benchmarks/run.py [SECTION ...]`.

With names, only these sections are measured; the others stay as they are. A section is written as soon as it is
measured. Each is a module that prints its own table when run alone. All together take about an hour.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from enumeration import enumeration_table
from frontiers import frontier_tables
from kills import kill_table
from methods import method_table
from peers import peer_tables
from placement import placement_table
from robust import robust_table
from samplers import sampler_tables
from scaling import scaling_table
from serving import COLUMNS_READ, memory_table, speed_table
from traffic import traffic_table
from training import training_table

RESULTS = Path(__file__).with_name("RESULTS.md")
VERSIONS = ("numpy", "scipy", "pyomo", "highspy", "optuna", "moocore", "ray")
HEAD = """# Results

Filled by `make bench`; `python benchmarks/run.py SECTION` measures one section again. Sections: {sections}.
Machine: {machine}, {cores} cores, Python {python}, {versions}. One core unless workers are named.
"""


class Section(NamedTuple):
    """A part of RESULTS.md: its heading, what its columns are, and what measures it."""

    heading: str
    about: str
    lines: Callable[[], Iterable[str]]


SECTIONS = {
    "serving": Section(
        "Speed of `pd_serving`",
        "Screening: rate, cost, power, feasibility and legality of every design, in blocks. The numpy pass is one "
        f"multiply-add over the {COLUMNS_READ} float64 values that screening reads per design. Scored in full: every "
        "numeric column of the result frame. Whole run: enumeration with its frontier, nothing pruned.",
        speed_table,
    ),
    "training": Section(
        "Speed of `dp_training` and `pp_training`",
        "Feasible designs in blocks of 16,384. Screening: step time (1F1B: its lower bound), memory, cost, power. "
        "Scored in full: every numeric column, 1F1B by its full recurrence. 1,024 sequences a step.",
        training_table,
    ),
    "memory": Section("Memory of a whole enumeration", "Peak of the process, nothing pruned.", memory_table),
    "enumeration": Section(
        "Time to the exact frontier",
        "Every design looked at, or dropped unseen (`pruned`); each case in a process of its own.",
        enumeration_table,
    ),
    "traffic": Section(
        "Traces of up to four million requests",
        "Cut into twelve classes, and counted in 24 windows; every row is checked. Memory: peak above the imports.",
        traffic_table,
    ),
    "scaling": Section(
        "1 -> 2 workers",
        "Whole enumerations, nothing pruned. Cold: with the start and the end of Ray. Warm: in a Ray that runs "
        "already, as in a batch or on a cluster.",
        scaling_table,
    ),
    "kills": Section(
        "Killed workers and drivers",
        "`kill -9` at random moments, two workers; frontier, count of designs and proof compared with a run left "
        "alone.",
        kill_table,
    ),
    "six_kinds": Section(
        "The exact frontier of six device kinds by MILP (`benchmarks/six_kinds.toml`)",
        "And plain Optuna samplers at the same wall time.",
        frontier_tables,
    ),
    "robust": Section(
        "The cheapest fleet for 24 scenarios by MILP (`benchmarks/robust.py`)",
        "Six device kinds, eight request classes, from the study to the proven optimum, of equals the one with most "
        "headroom. One core.",
        robust_table,
    ),
    "search": Section(
        "Search: hypervolume against time",
        "A plain sampler scores one design a trial; pymoo scores 200 in one call. Random is screened as our search "
        "screens.",
        sampler_tables,
    ),
    "placement": Section(
        "Placement programs: one pipeline, instances of 8, the shortest step", "One thread.", placement_table
    ),
    "methods": Section("Three explorers on the quickstart", "One core.", method_table),
    "peers": Section(
        "Peers: configurations a second and time to first answer",
        "One thread, medians of 3 runs, each tool in an environment of its own. Llama-3.1-70B in bf16 on H100 SXM "
        "80 GB, 1,024 tokens in and 256 out. First answer: from the start of the process to its first result, imports "
        "included. A second: without imports. Memory: the peak of the process.",
        peer_tables,
    ),
}


def sections_of(text: str) -> dict[str, str]:
    """What a results file has under each heading."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


def write(bodies: dict[str, str]) -> None:
    """The file, in the order of `SECTIONS`; what was never measured is left out."""
    head = HEAD.format(
        sections=", ".join(f"`{name}`" for name in SECTIONS),
        machine=platform.machine(),
        cores=os.cpu_count(),
        python=platform.python_version(),
        versions=", ".join(f"{name} {version(name)}" for name in VERSIONS),
    )
    found = [f"## {s.heading}\n\n{bodies[s.heading]}\n" for s in SECTIONS.values() if s.heading in bodies]
    RESULTS.write_text("\n".join([head, *found]), encoding="utf-8")


def main(names: list[str]) -> None:
    """Measures these sections, or all."""
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        sys.exit(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    bodies = sections_of(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in names or SECTIONS:
        section = SECTIONS[name]
        print(f"\n## {section.heading}\n", flush=True)
        lines = []
        for line in section.lines():
            print(line, flush=True)
            lines.append(line)
        bodies[section.heading] = "\n".join([section.about, "", *lines])
        write(bodies)


if __name__ == "__main__":
    main(sys.argv[1:])
