"""The exact program of data parallel training: brute force, a case by hand, every constraint, every refusal."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
from pyomo.repn import generate_standard_repn
from test_training_explorers import brute_force, every_design, same

from dse import exhaustive
from dse import frontier as milp
from dse.choice import choose_method
from dse.errors import MethodError
from dse.model.partition import best_partition
from dse.model.share_time import Staircase
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import score_index
from dse.solve import Outcome, Solver, Status
from formulations import dp_partition as program
from formulations import dp_partition_data
from formulations.dp_partition_data import TIME, PartitionData
from formulations.dp_partition_options import COST, POWER, TimedOptions

BUY = {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h", "power_w"]}
OBJECTIVES = [
    BUY,
    {"maximise": ["throughput_samples_s"], "minimise": ["power_w"]},
    {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
]
WSE = {"device": "wse-3", "name": "wse", "count": [0, 1, 3]}
TOY = """
name = "toy-gpu"
kind = "gpu"
arrangement = "tensor"
peak_flop_s = { bf16 = 1e15 }
memory_byte = 400e9
memory_bandwidth_byte_s = 3.35e12
streaming_byte = 0
node_size = 8
link_byte_s = 450e9
link_latency_s = 3e-6
link_efficiency = 0.8
scale_out_byte_s = 50e9
scale_out_latency_s = 1e-5
idle_w = 100
full_w = 700
host_w = 300
rental_usd_per_h = 2.0
[efficiency.train]
compute = 0.5
memory = 0.8
fixed_layer_s = 1e-4
"""
SERVING = """
[efficiency.prefill]
compute = 0.5
memory = 0.8
fixed_layer_s = 1e-5
[efficiency.decode]
compute = 0.5
memory = 0.8
fixed_layer_s = 1e-5
"""
MEASURED = "table_flop = [4e13, 9e13, 2e14, 5e14]\ntable_s = [0.2, 0.21, 0.6, 0.9]\n"


def small(seed: int) -> dict[str, Any]:
    """A study whose batch divides by nothing: two or three pools, links, limits that bind."""
    rng = random.Random(seed)
    gpu = {
        "device": "a100-80gb-sxm", "name": "gpu", "count": rng.choice([[0, 4, 12], [4, 8], [0, 4, 8, 20]]),
        "instance_size": [4, 2], "micro_batch": rng.choice([[1, 3], [2, 5]]), "zero_stage": rng.choice([[1, 3], [3]]),
    }  # fmt: skip
    new = {
        "device": "h100-80gb-sxm", "name": "new", "count": rng.choice([[0, 4], [0, 6, 10], [2, 6]]),
        "instance_size": [2], "micro_batch": [rng.choice([1, 3])], "zero_stage": [3],
    }  # fmt: skip
    limits = [{}, {"power_w": 40e3}, {"throughput_tok_s": {"min": 15e3}}, {"cost_usd_per_h": {"min": 30}}, {}]
    links: list[dict[str, Any]] = [
        {"bandwidth_gb_s": [0.5, 5, 50]},
        {"tier": ["eth100", "ndr400"], "count": [1, 4]},
        {"bandwidth_gb_s": [2], "latency_s": 0.2},
    ]
    return {
        "name": "ragged",
        "paradigm": "dp_training",
        "workload": {
            "model": "llama-2-7b",
            "sequence_tokens": 2048,
            "global_batch": rng.sample([13, 29, 37, 61, 97], 1 + seed % 2),
            "recompute": [rng.choice(["selective", "full"])],
            "overlap_frac": [0.0, 0.5, 1.0][seed % 3],
        },
        "pool": [[gpu, WSE], [gpu, new, WSE | {"count": [0, 1]}], [new, WSE], [gpu, new]][seed % 4],
        "link": links[seed % 3],
        "limits": limits[seed % 5],
        "objectives": OBJECTIVES[(seed // 2) % 3],
        "search": {"resolution_frac": 0},
    }


def space_of(study: Study) -> Any:
    """The search space as its paradigm's own type, which the engine's protocol hides."""
    return study.space


def solved(data: PartitionData) -> tuple[pyo.ConcreteModel, Outcome]:
    model = program.build_model(data)
    return model, Solver(model, 0).solve(60.0)


@pytest.mark.parametrize("seed", range(12))
def test_program_enumeration_and_brute_force_agree(seed: int) -> None:
    study = Study.from_dict(small(seed))
    wanted = brute_force(study, every_design(study))
    assert wanted
    grid = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    assert same(grid.points, wanted)
    exact = milp.explore(study, report=silent, stop=Stop())
    assert same(exact.points, wanted)
    assert not exact.unproven


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 72))
def test_many_more_agree(seed: int) -> None:
    test_program_enumeration_and_brute_force_agree(seed)


@pytest.mark.parametrize("micro_batch", [[2, 3], [40]])
def test_measured_micro_steps_are_exact(tmp_path: Path, micro_batch: list[int]) -> None:
    """Neither convex nor concave: the second point comes almost for nothing, the third dear."""
    (tmp_path / "toy.toml").write_text(TOY + MEASURED + SERVING)
    gpu = {"device": "toy.toml", "name": "gpu", "count": [0, 1, 2, 5], "instance_size": [1], "micro_batch": micro_batch}
    raw = small(2) | {"pool": [gpu, WSE], "objectives": BUY, "limits": {}}
    study = Study.from_dict(raw, folder=tmp_path)
    wanted = brute_force(study, every_design(study))
    exact = milp.explore(study, report=silent, stop=Stop())
    assert same(exact.points, wanted)
    assert len(wanted) > 2
    assert any(
        len(v) for v in program.programs(space_of(study), study.envelope.objectives.names, {})[0].pools[0].levels_s
    )


# -- by hand -----------------------------------------------------------------------------------------


def pool(*sample_s: float, **changes: Any) -> TimedOptions:
    """One replica an option, or none at no price; 1 USD/h and 1 W for the first option, 2 for the second, ..."""
    n = len(sample_s)
    fields: dict[str, Any] = {
        "replicas": 1.0, "most": 8.0, "sample_s": np.array(sample_s), "micro_step_s": 0.0, "micro_batch": 8.0,
    } | changes  # fmt: skip
    column = {k: np.broadcast_to(np.asarray(v, dtype=np.float64), (n,)) for k, v in fields.items()}
    once = column["sample_s"] + column["micro_step_s"]
    p = np.ceil(column["most"] / column["replicas"])
    whole = p * column["sample_s"] + np.ceil(p / column["micro_batch"]) * column["micro_step_s"]

    def absent(values: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], values])

    return TimedOptions(
        row=np.arange(n + 1),
        active=np.arange(n + 1) > 0,
        usd_per_h=np.arange(n + 1.0),
        power_w=np.arange(n + 1.0),
        replicas=absent(column["replicas"]),
        most=absent(column["most"]),
        first_s=absent(once),
        sample_s=absent(column["sample_s"]),
        micro_step_s=absent(column["micro_step_s"]),
        micro_batch=np.concatenate([[8.0], column["micro_batch"]]),
        levels_s=[np.empty(0)] * (n + 1),
        whole_s=absent(whole),
    )


def by_hand(*pools: TimedOptions, exchange_s: float = 1.0, **changes: Any) -> PartitionData:
    n = len(pools)
    exchange = np.array([[0.0], [0.0], *([[exchange_s]] * (n - 1))])
    fields: dict[str, Any] = {
        "regime": 0, "pools": pools, "global_batch": 8.0, "exchange_s": exchange, "floor_s": exchange,
        "ring": np.array([0.0, 0.0, 1.0, 3.0])[: n + 1], "link_usd_per_h": np.zeros(1), "link_power_w": np.zeros(1),
        "bounds": {TIME: (-np.inf, np.inf)}, "objectives": [TIME], "work": np.zeros(1), "per_step": np.ones(1),
    }  # fmt: skip
    return PartitionData(**fields | changes)


def step_s(data: PartitionData) -> float:
    model, outcome = solved(data)
    assert outcome.status is Status.OPTIMAL
    return float(pyo.value(model.step)) * data.scale[TIME]


FAST, SLOW = pool(1.0), pool(3.0)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # 6 and 2 samples of 8 take 6 s on both; the exchange 1 s more; the fast pool alone 8 s
        pytest.param(by_hand(FAST, SLOW), 7.0, id="two pools"),
        pytest.param(by_hand(FAST, SLOW, exchange_s=2.5), 8.0, id="an exchange too long: one pool works"),
        pytest.param(
            by_hand(FAST, SLOW, exchange_s=0.0, floor_s=np.array([[0.0], [0.0], [7.5]])),
            7.5,
            id="no step is shorter than the whole exchange",
        ),
        pytest.param(by_hand(pool(1.0, most=5.0), SLOW), 10.0, id="five samples fit: the other takes three"),
        pytest.param(by_hand(pool(1.0, replicas=2.0), SLOW), 4.0, id="two replicas alone"),
        # two rounds of 3 replicas take 6 samples: the last 2 need a third
        pytest.param(by_hand(pool(1.0, replicas=3.0), exchange_s=0.0), 3.0, id="ceil(8/3) samples a replica"),
        # 3 micro-steps of 0.5 s, 8 samples of 1 s
        pytest.param(by_hand(pool(1.0, micro_batch=3.0, micro_step_s=0.5)), 9.5, id="ceil(8/3) micro-steps"),
        # two rounds would take 6 samples, but 5 fit: the other pool takes 3
        pytest.param(
            by_hand(pool(1.0, replicas=3.0, most=5.0), SLOW, exchange_s=0.0), 9.0, id="a memory that cuts a round"
        ),
        pytest.param(
            by_hand(FAST, SLOW, bounds={TIME: (-np.inf, np.inf), COST: (-np.inf, 1.0)}), 8.0, id="money for one pool"
        ),
        pytest.param(
            by_hand(FAST, SLOW, link_power_w=np.array([2.0]), bounds={TIME: (-np.inf, np.inf), POWER: (0.0, 3.0)}),
            8.0,
            id="no power for the link",
        ),
    ],
)
def test_steps_worked_out_by_hand(data: PartitionData, expected: float) -> None:
    assert step_s(data) == pytest.approx(expected, rel=1e-9)


def test_a_pool_that_is_bought_anyway_need_not_work() -> None:
    bought = replace(SLOW, **{
        name: getattr(SLOW, name)[1:] for name in TimedOptions.__slots__
    })  # fmt: skip
    data = by_hand(FAST, bought, exchange_s=2.5)
    model, _ = solved(data)
    assert float(pyo.value(model.step)) * data.scale[TIME] == pytest.approx(8.0)
    assert pyo.value(model.work[1]) == pytest.approx(0.0)
    assert pyo.value(model.pick[1, 0]) == pytest.approx(1.0)


def test_random_staircases_with_odd_memories() -> None:
    """`most` that is no multiple of the replicas, micro-steps, three pools: the model's division is the judge."""
    rng = np.random.default_rng(5)
    for _ in range(12):
        draw = [
            {
                "replicas": float(rng.integers(1, 4)),
                "most": float(rng.integers(3, 9)),
                "micro_batch": float(rng.integers(1, 4)),
                "micro_step_s": float(rng.choice([0.0, 0.3])),
            }
            for _ in range(3)
        ]
        sample = rng.uniform(0.5, 3.0, 3)
        data = by_hand(*(pool(s, **d) for s, d in zip(sample, draw, strict=True)), exchange_s=0.4)
        shares = [
            Staircase(
                replicas=np.array([d["replicas"]]), micro_batch=np.array([d["micro_batch"]]), once_s=np.zeros(1),
                step_s=np.array([d["micro_step_s"]]), sample_s=np.array([s]), most=np.array([d["most"]]),
            )
            for s, d in zip(sample, draw, strict=True)
        ]  # fmt: skip
        expected = best_partition(shares, 8.0, data.exchange_s[:, 0], data.floor_s[:, 0]).step_s[0]
        assert step_s(data) == pytest.approx(expected, rel=1e-9)


# -- the plan against the model ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_the_step_of_the_integers_is_the_models(seed: int) -> None:
    study = Study.from_dict(small(seed) | {"limits": {}})
    names = study.envelope.objectives.names
    for data in program.programs(space_of(study), names, {}):
        model, _ = solved(data)
        plan = program.extract(model, data, space_of(study))
        assert plan.index is not None
        row = score_index(study, np.array([plan.index])).iloc[0]
        assert worked_out_s(model, data) == pytest.approx(row["step_time_s"], rel=1e-9)
        if COST in data.bounds:
            assert pyo.value(model.minimised[COST]) * data.scale[COST] == pytest.approx(row["cost_usd_per_h"], rel=1e-9)


def worked_out_s(m: pyo.ConcreteModel, data: PartitionData) -> float:
    """Step time of the integers as they are, whatever the solver thinks of its own sum."""
    busy = []
    for p, k in m.BOUGHT:
        if pyo.value(m.run[p, k]) > 0.5:
            t = data.pools[p]
            more = round(pyo.value(m.more[p, k])) if (p, k) in m.MORE else 0
            steps = -(-(more + 1) // int(t.micro_batch[k])) - 1
            busy.append(t.first_s[k] + more * t.sample_s[k] + steps * t.micro_step_s[k])
    n, _, link = max(m.STATES, key=lambda i: pyo.value(m.state[i]))
    return float(max(max(busy) + data.exchange_s[n, link], data.floor_s[n, link]))


def moderate() -> dict[str, Any]:
    sizes = {"instance_size": [4, 8], "micro_batch": [1, 2, 4], "zero_stage": [1, 3]}
    return small(0) | {
        "workload": {
            "model": "llama-2-13b", "sequence_tokens": 2048, "global_batch": [1024], "recompute": ["selective"],
        },
        "pool": [
            {"device": "a100-80gb-sxm", "name": "gpu", "count": {"min": 0, "max": 128, "step": 8}, **sizes},
            {"device": "h100-80gb-sxm", "name": "new", "count": {"min": 0, "max": 128, "step": 8}, **sizes},
            {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 99}},
        ],
        "link": {"tier": ["eth100", "ndr400"], "count": [1, 4]},
        "objectives": BUY,
    }  # fmt: skip


def test_coefficients_stay_within_a_millionfold() -> None:
    study = Study.from_dict(moderate())
    (data,) = program.programs(space_of(study), study.envelope.objectives.names, {})
    model = program.build_model(data)
    sizes = [
        abs(c)
        for constraint in model.component_data_objects(pyo.Constraint)
        for c in generate_standard_repn(constraint.body).linear_coefs
        if c
    ]
    assert max(sizes) / min(sizes) < 1e6


def test_options_left_out_are_never_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.from_dict(small(8))
    names = study.envelope.objectives.names
    few = program.programs(space_of(study), names, {})
    wanted = milp.explore(study, report=silent, stop=Stop()).points
    monkeypatch.setattr(
        dp_partition_data, "undominated", lambda _system, _pool, rows, _prices: np.full(len(rows), True)
    )
    all_of_them = program.programs(space_of(study), names, {})
    assert sum(len(t.row) for t in few[0].pools) < sum(len(t.row) for t in all_of_them[0].pools)
    assert same(milp.explore(study, report=silent, stop=Stop()).points, [tuple(p) for p in np.unique(wanted, axis=0)])


def test_a_rate_of_nothing_is_a_step_without_end() -> None:
    data = replace(by_hand(FAST, SLOW), work=np.array([16.0]))
    at = [float(data.scaled(np.array([x]))[0]) for x in (-np.inf, -4.0, -2.0, -0.0, 0.0, np.inf)]
    assert at[0] == 0.0
    assert at[1:3] == [4.0 / data.scale[TIME], 8.0 / data.scale[TIME]]
    assert at[3:] == [np.inf] * 3


# -- what it refuses ---------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "objective": ({"objectives": {"minimise": ["usd_per_mtok"]}}, "objective usd_per_mtok is not linear"),
    "two times": (
        {"objectives": {"maximise": ["throughput_tok_s"], "minimise": ["step_time_s"]}},
        "keep one of them",
    ),
    "limit": ({"limits": {"usd_per_mtok": 5.0}}, "limit on usd_per_mtok is not linear"),
    "ceiling": ({"limits": {"throughput_tok_s": {"max": 1e4}}}, "asks for slow steps"),
    "slow": ({"limits": {"step_time_s": {"min": 1.0}}}, "asks for slow steps"),
    "energy": ({"site": {"cost_basis": "ownership"}}, "energy bill"),
    "failures": (
        {
            "workload": small(0)["workload"] | {"train_tokens": 1e11},
            "failures": {"mtbf_device_h": 4e4, "checkpoint_s": 60, "restart_s": 300},
            "limits": {"train_time_s": 1e7},
        },
        "with failures",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_it_cannot_answer_exactly(name: str) -> None:
    changes, reason = REFUSED[name]
    study = Study.from_dict(small(0) | {"limits": {}} | changes)
    assert reason in milp.refusal(study)
    with pytest.raises(MethodError, match=reason):
        milp.explore(study, report=silent, stop=Stop())
    assert choose_method(study)[0] == "exhaustive"


def test_too_many_measured_points_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy.toml").write_text(TOY + MEASURED + SERVING)
    gpu = {"device": "toy.toml", "name": "gpu", "count": [0, 2], "instance_size": [1], "micro_batch": [3]}
    study = Study.from_dict(small(2) | {"pool": [gpu, WSE]}, folder=tmp_path)
    assert milp.refusal(study) == ""
    monkeypatch.setattr(dp_partition_data, "MOST_LEVELS", 2)
    assert "measured micro-steps are too many" in milp.refusal(study)


def test_energy_of_owned_devices_does_not_matter_where_cost_does_not() -> None:
    study = Study.from_dict(small(1) | {"site": {"cost_basis": "ownership"}, "limits": {}, "objectives": OBJECTIVES[1]})
    assert milp.refusal(study) == ""
    exact = milp.explore(study, report=silent, stop=Stop())
    assert same(exact.points, brute_force(study, every_design(study)))


def test_a_run_in_time_without_failures() -> None:
    raw = small(0) | {
        "workload": small(0)["workload"] | {"train_tokens": 1e11, "global_batch": [29, 97]},
        "objectives": {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]},
    }
    study = Study.from_dict(raw | {"limits": {"train_time_s": 3e6, "global_batch": {"max": 50}}})
    assert milp.refusal(study) == ""
    wanted = brute_force(study, every_design(study))
    assert len(wanted) > 1
    assert same(milp.explore(study, report=silent, stop=Stop()).points, wanted)
