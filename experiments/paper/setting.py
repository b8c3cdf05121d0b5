"""The paper's machines and models: what the figures' studies have in common.

The paper measures on DGX A100 nodes and a WSE-3 cluster at ALCF (section 5.1) and prints no device counts; each
figure says how its own are chosen. Efficiencies are those of the catalogue's profile `hardware`: the devices at work,
without what a software stack loses. Beside a wafer that trains are 13 TB (the paper's table 2): the catalogue's 1.5 TB
is the smallest MemoryX on sale, and would not hold the largest batches of 35B and 70B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from dse.hardware import Accelerator, Phase
from dse.resolve import Study
from dse.validation import read_toml
from search_spaces.pd_serving_problem import ServingProblem
from search_spaces.pp_training_study import PpProblem
from search_spaces.training_problem import TrainingProblem

FOLDER = Path(__file__).parent
MODELS: Mapping[str, str] = {
    "7B": "llama-2-7b",
    "13B": "llama-2-13b",
    "35B": "codellama-34b",
    "70B": "llama-2-70b",
}
"""The paper's models; it names no shapes, and 35B is taken as CodeLlama-34B."""

PROFILE: Final = "hardware"
MEMORYX_BYTE: Final = 13e12
"""Table 2 of the paper: memory beside one WSE-3."""

Problem = TypeVar("Problem", TrainingProblem, ServingProblem, PpProblem)
Change = Callable[[Accelerator], Accelerator]


def study(file: str, workload: Mapping[str, Any], pools: Mapping[str, Mapping[str, Any]] | None = None) -> Study:
    """A study of this folder with other keys in its workload and, by name, in its pools."""
    raw: dict[str, Any] = dict(read_toml(FOLDER / file))
    changes = pools or {}
    raw["workload"] = {**raw["workload"], **workload}
    raw["pool"] = [{"profile": PROFILE, **pool, **changes.get(pool["name"], {})} for pool in raw["pool"]]
    return Study.from_dict(raw, folder=FOLDER, file=file)


def changed(problem: Problem, pool: str, change: Change) -> Problem:
    """The problem with one pool's device changed: what if."""
    offers: Any = (replace(o, device=change(o.device)) if o.name == pool else o for o in problem.pools)
    return replace(problem, pools=tuple(offers))


def with_efficiency(phase: Phase, **values: Any) -> Change:
    """A device with other efficiencies in one phase."""
    return lambda d: replace(d, efficiency={**d.efficiency, phase: replace(d.efficiency[phase], **values)})


def with_memory(byte: float) -> Change:
    """A device with another memory."""
    return lambda d: replace(d, memory_byte=byte)


def with_memoryx(device: Accelerator) -> Accelerator:
    """A wafer with the memory beside it that the paper has."""
    return replace(device, streaming_byte=MEMORYX_BYTE)
