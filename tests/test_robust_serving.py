"""Fleets bought once for several scenarios: by hand, by brute force, by both exact methods, against single plans."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest
import tomli_w
from scipy.optimize import linprog
from small_robust import CHAT, robust_study

from dse import exhaustive, frontier
from dse.errors import InputError, MethodError
from dse.explore import run
from dse.extremes import compared
from dse.model.robust_adaptive import divisions, worth_having
from dse.model.robust_flows import split_capacity, split_flows
from dse.plan import plan_of
from dse.points import programs_of
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import explain, score, score_index
from dse.solve import Solver

POLICIES = ("fixed_split", "work_stealing", "adaptive")


def toy(name: str, folder: Path, *, compute: float, memory_gb: float = 80.0, usd: float = 1.0) -> str:
    """A device whose times are easy: no fixed time, no latency; the file's name."""
    phase = {"compute": compute, "memory": 1.0, "fixed_layer_s": 0.0}
    table = {
        "name": name, "kind": "gpu", "arrangement": "tensor", "peak_flop_s": {"bf16": 1e15},
        "memory_byte": memory_gb * 1e9, "memory_bandwidth_byte_s": 2e12, "node_size": 8, "link_byte_s": 1e11,
        "link_latency_s": 0.0, "link_efficiency": 1.0, "scale_out_byte_s": 1e11, "scale_out_latency_s": 0.0,
        "idle_w": 50.0, "full_w": 400.0, "host_w": 0.0, "rental_usd_per_h": usd, "capex_usd": 1e4,
        "efficiency": {"prefill": phase, "decode": phase},
    }  # fmt: skip
    (folder / f"{name}.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    return f"{name}.toml"


def row_of(raw: dict[str, Any], **settings: Any) -> Any:
    return score(Study.from_dict(raw), settings).iloc[0]


# -- by hand --------------------------------------------------------------------------------------


def seconds_of(raw: dict[str, Any], adaptation: str = "work_stealing") -> tuple[Any, Any, Any]:
    """Prefill and decode seconds of each pool's first configuration (P, C), and KV bytes of a class."""
    study: Any = Study.from_dict(raw | {"adaptation": [adaptation]})
    system = study.space.system(0)
    prefill, decode = (np.stack([getattr(c, f"{k}_s")[0] for c in system.configs]) for k in ("prefill", "decode"))
    return prefill, decode, system.class_kv_byte


def test_a_pool_alone_serves_what_its_seconds_say() -> None:
    raw = robust_study()
    s, d, _ = seconds_of(raw)
    for w, mix in enumerate(([0.9, 0.1], [0.1, 0.9])):
        expected = 4 / float(np.array(mix) @ (s[0] + d[0]))
        _, detail = explain(Study.from_dict(raw), {"adaptation": "work_stealing", "n_a": 4, "n_h": 0})
        assert detail["system"]["scenarios"][w]["requests_s"] == pytest.approx(expected, rel=1e-12)
    row = row_of(raw, adaptation="work_stealing", n_a=4, n_h=0)
    rates = [one["requests_s"] for one in detail["system"]["scenarios"]]
    out = [0.9 * 256 + 0.1 * 100, 0.1 * 256 + 0.9 * 100]
    assert row["throughput_tok_s"] == pytest.approx(0.75 * rates[0] * out[0] + 0.25 * rates[1] * out[1])
    assert row["throughput_worst_tok_s"] == pytest.approx(min(r * o for r, o in zip(rates, out, strict=True)))
    assert row["headroom"] == pytest.approx(min(rates[0] / 8, rates[1] / 2))
    assert row["requests_s"] == pytest.approx(0.75 * rates[0] + 0.25 * rates[1])
    assert row["binding_scenario"] == ("day" if rates[0] / 8 < rates[1] / 2 else "night")


def test_a_fixed_split_is_its_slowest_part() -> None:
    raw = robust_study(link={"bandwidth_gb_s": 1e6})
    s, d, kv = seconds_of(raw)
    design = {"adaptation": "fixed_split", "n_a": 4, "n_h": 2, "role_a": "prefill", "role_h": "decode"}
    _, detail = explain(Study.from_dict(raw), design)
    for w, mix in enumerate(np.array([[0.9, 0.1], [0.1, 0.9]])):
        expected = min(4 / (mix @ s[0]), 2 / (mix @ d[1]))
        assert detail["system"]["scenarios"][w]["requests_s"] == pytest.approx(expected, rel=1e-12)
        narrow = robust_study(link={"bandwidth_gb_s": 0.5})
        _, slow = explain(Study.from_dict(narrow), design)
        assert slow["system"]["scenarios"][w]["requests_s"] == pytest.approx(min(expected, 0.5e9 / (mix @ kv)))


def test_growth_multiplies_the_demand_and_weights_are_normalised() -> None:
    raw = robust_study()
    grown = robust_study()
    grown["scenario"] = [one | {"growth": 2, "weight": one.get("weight", 1) * 7} for one in raw["scenario"]]
    design = {"adaptation": "work_stealing", "n_a": 4, "n_h": 1}
    before, after = row_of(raw, **design), row_of(grown, **design)
    assert after["headroom"] == pytest.approx(before["headroom"] / 2)
    assert after["throughput_tok_s"] == pytest.approx(before["throughput_tok_s"])


def test_spares_are_as_if_one_instance_less_were_there() -> None:
    for adaptation, size in itertools.product(POLICIES, (1, 2)):
        design = {"adaptation": adaptation, "n_h": 1, "role_a": "prefill", "role_h": "decode"}
        raw, spare = robust_study(), robust_study()
        for one in (raw, spare):
            one["pool"][0]["instance_size"] = [size]
        spare["pool"][0]["spares"] = 1
        less, held = row_of(raw, **design, n_a=4 - size), row_of(spare, **design, n_a=4)
        assert held["requests_s"] == pytest.approx(less["requests_s"], rel=1e-9)
        assert held["cost_usd_per_h"] > less["cost_usd_per_h"]
        assert held["power_w"] > less["power_w"]


def test_devices_that_are_down_serve_nothing_there() -> None:
    raw = robust_study()
    half = robust_study()
    half["scenario"][1]["available_frac"] = {"a": 0.5}
    for adaptation in POLICIES:
        design = {"adaptation": adaptation, "n_h": 1, "role_a": "prefill", "role_h": "decode"}
        _, all_up = explain(Study.from_dict(raw), design | {"n_a": 4})
        _, two = explain(Study.from_dict(raw), design | {"n_a": 2})
        _, down = explain(Study.from_dict(half), design | {"n_a": 4})
        rates = [[one["requests_s"] for one in found["system"]["scenarios"]] for found in (all_up, two, down)]
        assert rates[2] == pytest.approx([rates[0][0], rates[1][1]], rel=1e-9)


def test_a_fleet_that_cannot_serve_a_scenario_serves_nothing() -> None:
    raw = robust_study()
    raw["scenario"][1]["available_frac"] = {"a": 0.1}
    row = row_of(raw, adaptation="work_stealing", n_a=4, n_h=0)
    assert row["throughput_tok_s"] == row["headroom"] == 0
    assert row["infeasible_reason"] == "scenario night: no instance is left of a"


def test_a_scenario_is_served_as_if_it_were_alone() -> None:
    raw = robust_study(workload=robust_study()["workload"] | {"slo": {"tpot_s": 0.012}})
    raw["scenario"] = [*raw["scenario"], {"name": "chats", "demand_requests_s": 1, "mix": {"chat": 1.0}}]
    for adaptation in POLICIES[:1]:
        design = {"adaptation": adaptation, "n_a": 4, "n_h": 2, "role_a": "both", "role_h": "both"}
        _, together = explain(Study.from_dict(raw), design)
        for w, one in enumerate(raw["scenario"]):
            _, alone = explain(Study.from_dict(raw | {"scenario": [one]}), design)
            rates = [found["system"]["scenarios"][k]["requests_s"] for found, k in ((together, w), (alone, 0))]
            assert rates[0] == pytest.approx(rates[1], rel=1e-12)
            assert rates[0] > 0


# -- pieces ---------------------------------------------------------------------------------------


def test_the_smallest_cut_is_the_largest_flow() -> None:
    rng = np.random.default_rng(1)
    for n_pools in (2, 3, 5):
        prefill, decode = rng.uniform(0, 10, (2, 30, n_pools))
        takes = rng.random((30, n_pools)) < 0.5
        prefill, decode, most = prefill * takes, decode * ~takes, rng.uniform(0.1, 8, 30)
        rate = split_capacity(prefill, decode, most)
        z = split_flows(prefill, decode, most, rate)
        assert z.sum(axis=(1, 2)) == pytest.approx(rate, rel=1e-7)
        assert (z.sum(axis=2) <= prefill * (1 + 1e-7) + 1e-9).all()
        assert (z.sum(axis=1) <= decode * (1 + 1e-7) + 1e-9).all()
        assert (z <= most[:, None, None] * (1 + 1e-7)).all()
        for i in range(30):
            pairs = list(itertools.product(range(n_pools), range(n_pools)))
            rows = [[float(p == k) for p, _ in pairs] for k in range(n_pools)]
            rows += [[float(o == k) for _, o in pairs] for k in range(n_pools)]
            held = [*prefill[i], *decode[i]]
            best = linprog(-np.ones(len(pairs)), A_ub=rows, b_ub=held, bounds=(0, most[i]))
            assert rate[i] == pytest.approx(-best.fun, rel=1e-7, abs=1e-9)


def test_divisions_leave_no_room_and_pointless_configurations_go() -> None:
    for devices, sizes in ((7, [1, 2]), (9, [2, 4]), (6, [3]), (0, [1, 4])):
        every = [
            n
            for n in itertools.product(*(range(devices // g + 1) for g in sizes))
            if 0 <= devices - sum(a * b for a, b in zip(n, sizes, strict=True)) < min(sizes)
        ]
        found = set(divisions(devices, sizes))
        assert found <= set(every)
        best = {n for n in every if devices - sum(a * b for a, b in zip(n, sizes, strict=True)) < min(sizes)}
        assert found == best
    g, s = np.array([1, 2, 2]), np.array([[2.0, 1.0], [1.0, 0.4], [1.0, 0.5]])
    assert worth_having(g, s, s).tolist() == [0, 1]


# -- exact methods, and brute force ---------------------------------------------------------------


def random_study(seed: int) -> dict[str, Any]:
    """A small study whose grid can be enumerated under every policy."""
    rng = random.Random(seed)
    kinds = ["a100-40gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "b200-180gb-sxm", "wse-3"]
    devices = rng.sample(kinds, 3 if seed % 6 == 5 else 2)
    asked = rng.random() < 0.6
    scenarios: list[dict[str, Any]] = []
    for w in range(rng.choice([1, 2, 3])):
        chat = rng.choice([0.0, 0.2, 0.5, 1.0, rng.random()])
        one: dict[str, Any] = {"weight": rng.uniform(0.1, 3), "mix": {"chat": chat, "summary": 1 - chat}}
        if rng.random() < 0.4:
            one["available_frac"] = {f"p{rng.randrange(2)}": rng.choice([0.3, 0.5, 0.75])}
        if asked:
            one |= {"demand_requests_s": rng.uniform(0.2, 4), "growth": rng.choice([1.0, 1.5])}
        scenarios.append(one | {"name": f"s{w}"})
    pools = []
    for p, device in enumerate(devices):
        step = rng.choice([1, 2])
        most = rng.choice([2, 3]) * step if len(devices) < 3 else step
        sizes = rng.choice([[1], [2], [1, 2]]) if step == 2 else [1]
        count = {"min": 0, "max": most, "step": step}
        pools.append({"device": device, "name": f"p{p}", "count": count, "instance_size": sizes,
                      "spares": rng.choice([0, 0, 1])})  # fmt: skip
    first = rng.choice(["headroom", "throughput_worst_tok_s"] if asked else ["throughput_worst_tok_s"])
    return robust_study(
        scenario=scenarios,
        pool=pools,
        link=rng.choice([{"bandwidth_gb_s": [0.3, 3, 60]}, {"tier": "eth100", "count": [1, 4]}]),
        objectives={
            "maximise": [rng.choice([first, "throughput_tok_s", "requests_s"])],
            "minimise": [rng.choice(["cost_usd_per_h", "power_w"])],
        },
        workload=robust_study()["workload"] | ({"slo": {"tpot_s": 0.02}} if rng.random() < 0.4 else {}),
    )


def fronts(raw: dict[str, Any]) -> tuple[Any, Any]:
    """The frontier by enumeration and by the programs."""
    study = Study.from_dict(raw)
    grid = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    exact = frontier.explore(study, report=silent, stop=Stop())
    assert not exact.unproven
    return np.unique(grid.points, axis=0), np.unique(exact.points.reshape(-1, grid.points.shape[1]), axis=0)


@pytest.mark.parametrize("seed", range(6))
def test_enumeration_and_programs_agree_under_every_policy(seed: int) -> None:
    raw = random_study(seed)
    for adaptation in POLICIES:
        grid, exact = fronts(raw | {"adaptation": [adaptation]})
        assert exact.shape == grid.shape, adaptation
        assert exact == pytest.approx(grid, rel=1e-9)


def brute_rate(study: Any, w: int, rows: Any, byte_s: float) -> float:
    """The largest rate of one design, by one linear program for each way to set its instances up."""
    system = study.space.system(0)
    q, kv, n_pools = system.scenarios.mix[w], system.class_kv_byte, len(system.tables)
    if system.adaptation == "adaptive":
        ways = []
        for c, t, r in zip(system.configs, system.tables, rows, strict=True):
            devices, sizes = int(t.devices[w][r]), [int(g) for g in c.g]
            every = itertools.product(*(range(devices // g + 1) for g in sizes))
            ways.append([y for y in every if sum(a * b for a, b in zip(y, sizes, strict=True)) <= devices])
    else:
        ways = [
            [tuple(float(t.instances[w][r]) if j == t.config[r] else 0.0 for j in range(len(c.g)))]
            for c, t, r in zip(system.configs, system.tables, rows, strict=True)
        ]
    best = 0.0
    for y in itertools.product(*ways):
        flows = [
            (p, j, o, i, c)
            for p, o in itertools.product(range(n_pools), repeat=2)
            for j in range(len(y[p]))
            for i in range(len(y[o]))
            for c in np.flatnonzero(q > 0)
            if np.isfinite(system.configs[p].prefill_s[j, c] + system.configs[o].decode_s[i, c])
            and y[p][j] > 0 and y[o][i] > 0
        ]  # fmt: skip
        places = [(p, j) for p in range(n_pools) for j in range(len(y[p]))]
        pairs = [(p, o) for p, o in itertools.product(range(n_pools), repeat=2) if p != o]
        held = np.zeros((len(places) + len(pairs), len(flows) + 1))
        equal = np.zeros((len(q), len(flows) + 1))
        for k, (p, j, o, i, c) in enumerate(flows):
            held[places.index((p, j)), k] += system.configs[p].prefill_s[j, c]
            held[places.index((o, i)), k] += system.configs[o].decode_s[i, c]
            if p != o:
                held[len(places) + pairs.index((p, o)), k] = kv[c] / byte_s
            equal[c, k] = 1.0
        equal[:, -1] = -q
        upper = [y[p][j] for p, j in places] + [1.0] * len(pairs)
        found = linprog(np.eye(len(flows) + 1)[-1] * -1, A_ub=held, b_ub=upper, A_eq=equal, b_eq=np.zeros(len(q)))
        best = max(best, -found.fun)
    return best


@pytest.mark.parametrize(("seed", "adaptation"), [(s, a) for s in (0, 3, 4) for a in POLICIES[1:]])
def test_scores_are_what_brute_force_finds(seed: int, adaptation: str) -> None:
    study: Any = Study.from_dict(random_study(seed) | {"adaptation": [adaptation]})
    index = np.arange(study.space.n_designs)
    index = index[study.space.legal(index)]
    for i in random.Random(seed).sample(index.tolist(), 6):
        _, link, rows = study.space.grid.decode(np.array([i]))
        byte_s = float(study.problem.links.byte_s[link[0]])
        brute = [brute_rate(study, w, rows[:, 0], byte_s) for w in range(len(study.problem.scenarios))]
        expected = float(study.problem.scenarios.weight @ brute) if min(brute) > 1e-9 else 0.0
        assert float(study.space.numbers(np.array([i]))["requests_s"][0]) == pytest.approx(expected, rel=1e-6)


# -- properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_policies_are_nested(seed: int) -> None:
    raw = random_study(seed)
    study = Study.from_dict(raw | {"adaptation": ["fixed_split"]})
    index = np.arange(study.space.n_designs)
    legal = index[study.space.legal(index)]
    frame = score_index(study, legal[:: len(legal) // 4 + 1])
    for _, row in frame.iterrows():
        settings = study.space.settings_of({str(k): v for k, v in row.items()})
        link = {} if "link" in settings else {"link": study.problem.link_names[0]}
        rates = []
        for adaptation in POLICIES:
            _, detail = explain(study, {**settings, **link, "adaptation": adaptation})
            rates.append([one["requests_s"] for one in detail["system"]["scenarios"]])
        fixed, stealing, adaptive = (np.array(r) for r in rates)
        assert (fixed <= stealing * (1 + 1e-9)).all()
        assert (stealing <= adaptive * (1 + 1e-9)).all()


@pytest.mark.parametrize("adaptation", POLICIES)
def test_more_of_anything_never_serves_less(adaptation: str) -> None:
    raw = robust_study()
    raw["scenario"][0]["available_frac"] = {"a": 0.5, "h": 0.7}
    design = {"adaptation": adaptation, "role_a": "prefill", "role_h": "decode", "n_a": 4, "n_h": 2}
    base = row_of(raw, **design, link_gb_s=3)
    for more in ({"n_a": 6}, {"n_h": 3}, {"link_gb_s": 5}):
        assert row_of(raw, **{**design, "link_gb_s": 3, **more})["requests_s"] >= base["requests_s"] * (1 - 1e-9)
    raw["scenario"][0]["available_frac"] = {"a": 0.8, "h": 0.7}
    assert row_of(raw, **design, link_gb_s=3)["requests_s"] >= base["requests_s"] * (1 - 1e-9)


def tight_rows(raw: dict[str, Any]) -> tuple[set[str], float]:
    """Names of rows that the best plans of a study's first objective leave no room, and the sum of those objectives."""
    study, tight, total = Study.from_dict(raw), set(), 0.0
    formulation: Any = study.paradigm.formulation and study.paradigm.formulation()
    for data in programs_of(study).data:
        model = formulation.build_model(data)
        model.weight[study.envelope.objectives.minimise[0]] = 0.0
        total += Solver(model, 0).solve(20.0).objective
        for row in model.component_data_objects(pyo.Constraint, active=True):
            bounds = [bound for bound in (row.lower, row.upper) if bound is not None]
            if min(abs(pyo.value(row.body) - pyo.value(bound)) for bound in bounds) < 1e-6:
                tight.add(row.parent_component().local_name)
    return tight, total


def test_every_row_of_the_programs_binds_somewhere() -> None:
    raw = robust_study(demand={"headroom": 0.05})
    found: set[str] = set()
    both_ways, firsts = (("prefill", "decode"), ("decode", "prefill")), ("headroom", "throughput_worst_tok_s")
    for adaptation, first, roles, gb_s in itertools.product(POLICIES, firsts, both_ways, ([0.4, 2], [500])):
        pools = [pool | {"roles": [role]} for pool, role in zip(raw["pool"], roles, strict=True)]
        raw["link"] = {"bandwidth_gb_s": gb_s}
        objectives = {"maximise": [first], "minimise": ["power_w"]}
        found |= tight_rows(raw | {"adaptation": [adaptation], "objectives": objectives, "pool": pools})[0]
    wanted = {
        "pick_one_option", "use_one_link", "know_worst", "know_headroom", "count_served", "prefill_at_capacity",
        "decode_at_capacity", "respect_pair", "serve_every_class", "assign_prefill_work", "assign_decode_work",
        "respect_capacity", "divide_devices", "respect_link", "buy_links",
    }  # fmt: skip
    assert wanted <= found, wanted - found


def test_limits_hold_back_the_programs() -> None:
    free = robust_study(adaptation=["work_stealing"], demand={"headroom": 0.05})
    assert tight_rows(free | {"limits": {"cost_usd_per_h": 7}})[1] > tight_rows(free)[1] + 0.01
    dear = free | {"objectives": {"maximise": ["requests_s"], "minimise": ["cost_usd_per_h"]}}
    least = [fronts(dear | {"limits": limits})[1][:, 1].min() for limits in ({}, {"throughput_tok_s": 2500})]
    assert least[1] > least[0]


# -- what planning for all scenarios is worth -----------------------------------------------------


@pytest.mark.parametrize("asked", [True, False])
def test_the_robust_plan_is_never_worse_in_the_worst_scenario(asked: bool) -> None:
    raw = robust_study()
    raw["scenario"][1]["available_frac"] = {"h": 0.4}
    if not asked:
        raw["scenario"] = [{k: v for k, v in s.items() if k != "demand_requests_s"} for s in raw["scenario"]]
        raw |= {"limits": {"cost_usd_per_h": 9}, "objectives": {"maximise": ["throughput_worst_tok_s"]}}
    study = Study.from_dict(raw)
    found = exhaustive.explore(study, workers=1, address="local", report=silent, stop=Stop())
    frame = score_index(study, found.index)
    pick = frame.sort_values("cost_usd_per_h").iloc[0]
    robust = compared(study, pick, Stop())["robust"]
    assert robust["missing"] == ""
    metric = robust["metric"]
    assert metric == ("headroom" if asked else "throughput_worst_tok_s")
    best = robust["robust"][metric]
    assert [one["scenario"] for one in robust["single"]] == ["day", "night"]
    for one in robust["single"]:
        assert one["worst"] <= best * (1 + 1e-9)
        assert one["own"] >= best * (1 - 1e-9) or not asked
        assert one["short_frac"] == pytest.approx(1 - one["worst"] / best)
    values = [one["cost_usd_per_h" if asked else metric] for one in robust["adaptations"]]
    assert values == sorted(values, reverse=asked)
    index = np.arange(study.space.n_designs)
    every = score_index(study, index[study.space.legal(index)])
    within = every[
        (every["adaptation"] == pick["adaptation"]) & (every["cost_usd_per_h"] <= robust["budget_usd_per_h"])
    ]
    assert best == pytest.approx(within[metric].max(), rel=1e-9)


def test_a_single_plan_can_fail_the_others(tmp_path: Path) -> None:
    """Two devices, each quick at one phase: the mix that night wants starves the day."""
    raw = robust_study(
        adaptation=["fixed_split"],
        scenario=[
            {"name": "prompts", "mix": {"summary": 1.0}},
            {"name": "answers", "mix": {"chat": 1.0}},
        ],
        pool=[
            {"device": toy("one", tmp_path, compute=0.5), "count": {"min": 0, "max": 6}, "roles": ["prefill"]},
            {"device": toy("two", tmp_path, compute=0.1), "count": {"min": 0, "max": 6}, "roles": ["decode"]},
        ],
        link={"bandwidth_gb_s": 1000},
        limits={"cost_usd_per_h": 6},
        objectives={"maximise": ["throughput_worst_tok_s"], "minimise": ["cost_usd_per_h"]},
    )
    study = Study.from_dict(raw, folder=tmp_path)
    robust = run(study, method="milp").info["robust"]
    fixed = {one["scenario"]: one for one in robust["single"]}
    parts = [one["parts"] for one in fixed.values()]
    assert parts[0] != parts[1]
    assert max(one["short_frac"] for one in fixed.values()) > 0.05
    assert min(one["short_frac"] for one in fixed.values()) >= -1e-9


def test_comparisons_are_enumerated_where_programs_are_not_exact_and_say_what_is_missing() -> None:
    owned = robust_study(site={"cost_basis": "ownership"})
    study = Study.from_dict(owned)
    pick = score(study, {"adaptation": "work_stealing", "n_a": 4, "n_h": 3}).iloc[0]
    robust = compared(study, pick, Stop())["robust"]
    assert robust["missing"] == ""
    costs = [one["cost_usd_per_h"] for one in robust["adaptations"]]
    assert costs == sorted(costs, reverse=True)
    late = compared(study, pick, Stop(time_limit_s=0.0))["robust"]
    assert late["adaptations"] == late["single"] == []
    assert "adaptive: not found in the time for it" in late["missing"]


# -- the rest of the engine -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_reports_exports_and_says_what_binds(tmp_path: Path) -> None:
    from dse.report import write_whole_run

    raw = robust_study(adaptation=["adaptive"], pool=[
        {"device": "a100-40gb-sxm", "name": "a", "count": [4], "instance_size": [1, 2]},
        {"device": "h100-80gb-sxm", "name": "h", "count": [1]},
    ])  # fmt: skip
    result = run(Study.from_dict(raw))
    page = write_whole_run(result, tmp_path).read_text(encoding="utf-8")
    assert "What the scenarios ask for" in page
    assert result.recommended is not None
    assert result.recommended["binding_scenario"] in ("day", "night")
    plan = plan_of(result)
    assert [one["name"] for one in plan["scenarios"]] == ["day", "night"]
    again = row_of(raw, **plan["settings"])
    assert again["headroom"] == pytest.approx(result.recommended["headroom"], rel=1e-12)


# -- bad input ------------------------------------------------------------------------------------


def spoiled(**changes: Any) -> dict[str, Any]:
    return robust_study() | changes


def scenario_with(**changes: Any) -> list[dict[str, Any]]:
    first, second = robust_study()["scenario"]
    return [first | changes, second]


SPOILED: dict[str, tuple[dict[str, Any], str]] = {
    "no scenario": (spoiled(scenario=[]), r"\[\[scenario\]\] is missing"),
    "unknown class": (spoiled(scenario=scenario_with(mix={"chart": 1.0})), "did you mean chat"),
    "mix of half": (spoiled(scenario=scenario_with(mix={"chat": 0.5})), "shares sum to 0.5"),
    "unknown pool": (spoiled(scenario=scenario_with(available_frac={"b": 1.0})), "available_frac"),
    "some demands": (
        spoiled(scenario=[robust_study()["scenario"][0], {"name": "x"}]),
        "demand_requests_s is missing; give it in all scenarios, or in none",
    ),
    "same names": (spoiled(scenario=scenario_with(name="night")), "is named 'night' like"),
    "growth of nothing": (
        spoiled(scenario=[{"growth": 2.0}], objectives={"maximise": ["throughput_tok_s"]}),
        "growth multiplies demand_requests_s",
    ),
    "headroom of nothing": (spoiled(scenario=[{}]), "headroom is capacity over demand"),
    "pairs": (spoiled(link={"bandwidth_gb_s": 1, "per_pair": True}), "one link for all pairs"),
    "ttft": (spoiled(limits={"ttft_p99_s": 1}), "robust_serving results have no such column"),
    "one token": (
        spoiled(workload={"model": "llama-2-7b", "requests": [CHAT | {"share": 1.0, "output_tokens": 1}]}),
        "must be at least 2",
    ),
    "window without trace": (
        spoiled(workload=robust_study()["workload"] | {"window_s": 60.0}), "trace and window_s go together",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_bad_input_is_told_in_a_sentence(name: str) -> None:
    raw, sentence = SPOILED[name]
    with pytest.raises(InputError, match=sentence):
        Study.from_dict(raw)


def test_what_cannot_be_answered_is_refused_with_the_reason() -> None:
    owned = robust_study(site={"cost_basis": "ownership"})
    with pytest.raises(MethodError, match="energy bill"):
        run(Study.from_dict(owned), method="milp")
    large = robust_study(adaptation=["adaptive"])
    large["pool"] = [pool | {"count": {"min": 0, "max": 400}} for pool in large["pool"]]
    with pytest.raises(MethodError, match="each take a program"):
        run(Study.from_dict(large), method="exhaustive")
