"""One test over all search spaces and one over all formulations."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pyomo.environ as pyo
import pytest
from conftest import small_study
from pyomo.repn import generate_standard_repn

from dse.columns import limit_sense
from dse.paradigms import PARADIGMS
from dse.resolve import Study
from dse.scoring import explain, score_index

THREE = small_study(
    pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 8, "step": 2}, "instance_size": [1, 2]},
        {"device": "h100-80gb-sxm", "name": "h100", "count": [0, 1, 3],
         "prefill_batch": [1, 4], "max_decode_batch": [32, 64]},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 2}, "roles": ["decode"]},
    ],
    workload={
        "model": "llama-2-7b",
        "requests": [{"share": 1.0, "input_tokens": 512, "output_tokens": 128}],
        "routing": ["work_stealing", "split"],
        "weight_dtype": ["bf16", "int8"],
    },
)  # fmt: skip
TRAINED: dict[str, Any] = {
    "name": "contract",
    "paradigm": "dp_training",
    "workload": {
        "model": "llama-2-7b",
        "sequence_tokens": 2048,
        "global_batch": [64, 96],
        "recompute": ["selective", "full"],
        "train_tokens": 1e11,
    },
    "pool": [
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 16, "step": 4}, "instance_size": [2, 4],
         "micro_batch": [1, 2], "zero_stage": [1, 3]},
        {"device": "h100-80gb-sxm", "name": "h100", "count": [0, 4, 8], "instance_size": [4], "micro_batch": [1, 2]},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 2}},
    ],
    "link": {"bandwidth_gb_s": [5, 50]},
    "failures": {"mtbf_device_h": 40_000, "checkpoint_s": 60, "restart_s": 300},
}  # fmt: skip
PIPELINED = TRAINED | {
    "paradigm": "pp_training",
    "pool": [
        TRAINED["pool"][0]
        | {
            "stages": [1, 2, 4],
            "schedule": ["gpipe", "1f1b", "interleaved"],
            "chunks": [2, 4],
            "offload_layers": [0, 1, 3],
            "collect": [1, 2],
        },
        TRAINED["pool"][1] | {"stages": [1, 2]},
        TRAINED["pool"][2],
    ],
}
ROBUST = small_study(
    paradigm="robust_serving",
    pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 8, "step": 4}, "instance_size": [1, 2],
         "roles": ["prefill", "both"]},
        {"device": "h100-80gb-sxm", "name": "h100", "count": [0, 1, 3], "max_decode_batch": [32, 64],
         "roles": ["prefill", "decode"]},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 2}, "roles": ["decode"], "spares": 1},
    ],
    workload={
        "model": "llama-2-7b",
        "requests": [
            {"name": "chat", "share": 0.6, "input_tokens": 512, "output_tokens": 256},
            {"name": "summary", "share": 0.4, "input_tokens": 3000, "output_tokens": 100},
        ],
    },
    scenario=[
        {"name": "day", "weight": 3, "demand_requests_s": 0.5, "mix": {"chat": 1.0}},
        {"name": "night", "demand_requests_s": 0.25, "growth": 2, "available_frac": {"gpu": 0.5}},
    ],
    link={"tier": "eth100", "count": [1, 4]},
)  # fmt: skip
STUDIES: dict[str, dict[str, Any]] = {
    "pd_serving": THREE, "dp_training": TRAINED, "pp_training": PIPELINED, "robust_serving": ROBUST,
}  # fmt: skip
LEAST = {
    "pd_serving": "requests_s", "dp_training": "throughput_tok_s", "pp_training": "throughput_tok_s",
    "robust_serving": "headroom",
}  # fmt: skip
"""A column whose minimum a program knows."""
DESIGN_KEYS = (
    "n_", "instance_", "role_", "prefill_b", "max_d", "link_gb", "routing", "weight", "micro_batch_", "zero_stage_",
    "stages_", "adaptation", "recompute", "schedule", "chunks", "offload_layers", "collect", "global_batch",
)  # fmt: skip


@pytest.mark.parametrize("name", PARADIGMS)
def test_what_is_drawn_and_moved_is_screened_as_it_is_scored(name: str) -> None:
    space, rng = Study.from_dict(STUDIES[name]).space, np.random.default_rng(0)
    drawn = space.drawn(rng, 200)
    index = np.unique(np.concatenate([drawn, space.moved(rng, drawn, 400)]))
    assert 0 <= index.min() <= index.max() < space.n_designs
    assert len(space.screen_designs(index[:0])[1]) == 0
    screen, legal = space.screen_designs(index)
    assert (legal == space.legal(index)).all()
    assert legal.mean() > 0.1
    numbers, runs = space.numbers(index[legal]), screen.feasible[legal]
    assert ((numbers["throughput_tok_s"] > 0) == runs).all() or not screen.exact
    for column, values in screen.columns.items():
        known, scored = values[legal][runs], numbers[column][runs]
        if screen.exact:
            assert known == pytest.approx(scored, rel=1e-12), column
        elif limit_sense(column) == "max":
            assert (known >= scored * (1 - 1e-12)).all(), column
        else:
            assert (known <= scored * (1 + 1e-12)).all(), column


@pytest.mark.parametrize("name", PARADIGMS)
def test_a_design_belongs_to_its_outer_structure_and_is_given_by_its_digits(name: str) -> None:
    space = Study.from_dict(STUDIES[name]).space
    index = np.arange(space.n_designs)
    index = index[space.legal(index)][:: max(space.n_designs // 200, 1)]
    sizes = np.array([size for _, size in space.digit_axes])
    digits = space.digits(index)
    assert ((digits >= 0) & (digits < sizes)).all()
    assert len(np.unique(digits, axis=0)) == len(index)
    for design in index[::10].tolist():
        inner = space.inner(space.outer_of(design))
        assert design in inner
        assert len(inner) <= space.largest_inner


@pytest.mark.parametrize("name", PARADIGMS)
def test_a_thousand_draws_are_legal_and_grid_indices_round_trip(name: str) -> None:
    study = Study.from_dict(STUDIES[name])
    space: Any = study.space
    trials = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    drawn = 0
    for _ in range(1000):
        index = space.inner(space.suggest(trials.ask()))
        assert space.legal(index).all()
        drawn += len(index)
    assert drawn > 1000
    index = np.arange(space.n_designs)
    regime, link, rows = space.grid.decode(index)
    again = np.concatenate(
        [space.grid.encode(int(r), link[regime == r], rows[:, regime == r]) for r in np.unique(regime)]
    )
    assert again.tolist() == index.tolist()


@pytest.mark.parametrize("name", PARADIGMS)
def test_blocks_cover_the_grid_once_and_no_design_appears_twice(name: str) -> None:
    study = Study.from_dict(STUDIES[name])
    space: Any = study.space
    legal = np.zeros(space.n_designs, dtype=bool)
    at = 0
    for unit in space.units():
        _, ok, first = space.screen_unit(unit)
        assert first == at
        legal[first : first + ok.size] = ok.reshape(-1)
        at += ok.size
    assert at == space.n_designs
    assert space.n_units() == len(list(space.units()))
    assert (legal == space.legal(np.arange(space.n_designs))).all()
    columns = space.score(np.flatnonzero(legal))
    keys = [k for k in columns if k.startswith(DESIGN_KEYS)]
    designs = set(zip(*(columns[k].tolist() for k in keys), strict=True))
    assert len(designs) == int(legal.sum())


@pytest.mark.parametrize("name", PARADIGMS)
def test_screen_is_what_scoring_says(name: str) -> None:
    study = Study.from_dict(STUDIES[name])
    space: Any = study.space
    for unit in space.units():
        screen, legal, first = space.screen_unit(unit)
        numbers = space.numbers(np.arange(first, first + legal.size))
        ok = (legal & screen.feasible).reshape(-1)
        for column, bound in screen.columns.items():
            seen = np.broadcast_to(bound, legal.shape).reshape(-1)[ok]
            exact = numbers[column][ok]
            if screen.exact or column in ("cost_usd_per_h", "power_w"):
                assert np.allclose(seen, exact, rtol=1e-9, atol=0.0)
            elif limit_sense(column) == "max":
                assert (seen >= exact * (1 - 1e-9)).all()
            else:
                assert (seen <= exact * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", [name for name, paradigm in PARADIGMS.items() if paradigm.formulation])
def test_formulation_docstring_names_every_constraint(name: str) -> None:
    make = PARADIGMS[name].formulation
    assert make is not None
    formulation = make()
    study = Study.from_dict(STUDIES[name])
    space: Any = study.space
    parts = {inspect.getmodule(value) or formulation for value in vars(formulation).values()}
    documented = set(re.findall(r"\w+", "".join(p.__doc__ or "" for p in parts if "formulations" in p.__name__)))
    of_products = ("_at_most_pick", "_at_most_share", "_at_least")
    bounds = {"cost_usd_per_h": (-np.inf, 1000.0), LEAST[name]: (1.0, np.inf)}
    found = formulation.programs(space, study.envelope.objectives.names, bounds)
    assert found
    for data in found[:: len(found) // 12 + 1]:
        model = formulation.build_model(data)
        for constraint in model.component_objects(pyo.Constraint):
            base = constraint.name
            if base.endswith(of_products):
                continue
            assert base in documented, base
        for variable in model.component_objects(pyo.Var):
            assert variable.name in documented, variable.name


@pytest.mark.parametrize("name", [*STUDIES, "quickstart", "six kinds"])
def test_coefficients_of_programs_lie_within_a_factor_of_a_million(name: str) -> None:
    root = Path(__file__).parents[1]
    files = {"quickstart": root / "experiments/quickstart.toml", "six kinds": root / "benchmarks/six_kinds.toml"}
    study = Study.load(files[name]) if name in files else Study.from_dict(STUDIES[name])
    make = study.paradigm.formulation
    assert make is not None
    formulation = make()
    found = formulation.programs(study.space, study.envelope.objectives.names, study.envelope.limits.bounds())
    for data in found[:: len(found) // 6 + 1]:
        rows = formulation.build_model(data).component_data_objects(pyo.Constraint, active=True)
        sizes = [abs(c) for row in rows for c in generate_standard_repn(row.body).linear_coefs if c]
        assert max(sizes) / min(sizes) < 1e6


def test_building_a_model_loads_no_solver() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from test_contracts import THREE\n"
        "from dse.resolve import Study\n"
        "s = Study.from_dict(THREE); f = s.paradigm.formulation()\n"
        "d = f.programs(s.space, ['power_w'], {})[0]\n"
        "f.build_model(d)\n"
        "assert 'highspy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=__file__.rsplit("/", 2)[0])


def test_importing_dse_is_fast_because_heavy_libraries_wait() -> None:
    code = (
        "import dse, dse.cli.app, sys\n"
        "heavy = {'ray', 'pyomo', 'optuna', 'altair', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("routing", ["split", "work_stealing"])
def test_a_design_read_from_the_tables_is_the_design_scored_alone(
    routing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.from_dict(small_study(limits={"ttft_p99_s": 60.0}) | {"link": {"bandwidth_gb_s": [25, 100]}})
    raw = study.envelope.model_dump(mode="json", exclude_unset=True)
    raw["workload"]["routing"] = routing
    study = Study.from_dict(raw)
    index = np.arange(study.space.n_designs)
    index = index[study.space.legal(index)]
    frame = score_index(study, index[:: max(len(index) // 40, 1)])
    for _, row in frame.iterrows():
        settings = study.space.settings_of({str(k): v for k, v in row.items()})
        read, told = explain(study, settings)
        with monkeypatch.context() as patch:
            patch.setattr("search_spaces.pd_serving.TABLES_KEPT", 0)
            alone, told_alone = explain(Study.from_dict(raw), settings)
        pd.testing.assert_frame_equal(read, alone, rtol=1e-12)
        assert set(told["pools"]) == set(told_alone["pools"])
        system, system_alone = (
            {k: -1.0 if v is None else v for k, v in d["system"].items()} for d in (told, told_alone)
        )
        assert system == pytest.approx(system_alone, rel=1e-12)
