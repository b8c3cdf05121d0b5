"""Intervals of a score: what each source does to it alone, and how they add up."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from one_process import dse
from random_designs import draw
from random_training import draw_dp, draw_pp

from dse.columns import COLUMNS
from dse.errors import InputError
from dse.model.phases import decode_time, prefill_time
from dse.resolve import Study
from dse.scoring import explain, score_index
from dse.scoring import score as scored
from dse.uncertainty import INTERVALS, Source, explained, score, slowed, time_sources, with_intervals

PASSES = {"compute": 0.5, "memory": 0.8, "fixed_layer_s": 6e-5}
GPU: dict[str, Any] = {
    "name": "gpu", "kind": "gpu", "arrangement": "tensor", "peak_flop_s": {"bf16": 3e14}, "memory_byte": 80e9,
    "memory_bandwidth_byte_s": 2e12, "node_size": 8, "link_byte_s": 3e11, "link_latency_s": 1e-5,
    "link_efficiency": 0.5, "scale_out_byte_s": 2.5e10, "scale_out_latency_s": 2e-5, "idle_w": 50.0, "full_w": 400.0,
    "host_w": 250.0, "rental_usd_per_h": 2.0, "rental_range_usd_per_h": [1.5, 3.0], "capex_usd": 1e4,
    "capex_range_usd": [8e3, 15e3],
    "efficiency": {
        "train": PASSES | {"interval": {"low": 0.9, "high": 1.2, "quantity": "step_s", "n": 30}},
        "prefill": PASSES | {"interval": {"low": 0.8, "high": 1.25, "quantity": "prefill_s", "n": 40}},
        "decode": PASSES | {"interval": {"low": 0.9, "high": 1.1, "quantity": "decode_step_s", "n": 50}},
    },
}  # fmt: skip
WAFER = GPU | {
    "name": "wse", "kind": "wse", "arrangement": "pipeline", "peak_flop_s": {"bf16": 12.5e15}, "memory_byte": 44e9,
    "memory_bandwidth_byte_s": 20e15, "node_size": 16, "idle_w": 9000.0, "full_w": 23000.0, "host_w": 4000.0,
    "rental_usd_per_h": 90.0, "rental_range_usd_per_h": [60.0, 150.0], "capex_usd": 2.5e6,
    "capex_range_usd": [2e6, 3e6],
    "efficiency": {phase: {"compute": 0.05, "memory": 0.02, "fixed_layer_s": 1e-5} for phase in ("prefill", "decode")},
}  # fmt: skip
DESIGN = {"n_gpu": "64", "role_gpu": "prefill", "n_wse": "1", "role_wse": "decode"}


def tables(folder: Path, **changes: Any) -> dict[str, Any]:
    for device in (GPU, WAFER):
        (folder / f"{device['name']}.toml").write_text(tomli_w.dumps(device), encoding="utf-8")
    raw: dict[str, Any] = {
        "name": "sure",
        "paradigm": "pd_serving",
        "workload": {
            "model": "llama-2-7b",
            "requests": [{"name": "c", "share": 1.0, "input_tokens": 1000, "output_tokens": 200}],
        },
        "pool": [
            {"device": "gpu.toml", "count": {"min": 0, "max": 64, "step": 32}, "instance_size": [1, 2]},
            {"device": "wse.toml", "count": {"min": 0, "max": 2}},
        ],
        "link": {"bandwidth_gb_s": [1000]},
    }
    return raw | changes


def study(folder: Path, **changes: Any) -> Study:
    return Study.from_dict(tables(folder, **changes), folder=folder)


def one_pool(folder: Path, device: dict[str, Any], **changes: Any) -> Study:
    """A single pool that does both phases."""
    (folder / "one.toml").write_text(tomli_w.dumps(device | {"name": "one"}), encoding="utf-8")
    raw = tables(folder, pool=[{"device": "one.toml", "name": "one", "count": [4, 8], **changes.pop("pool", {})}])
    raw.pop("link")
    return Study.from_dict(raw | changes, folder=folder)


def ends(frame: pd.DataFrame, column: str = "throughput_tok_s") -> tuple[float, float, float]:
    low, high = INTERVALS[column]
    first, value, last = (float(frame[c].iloc[0]) for c in (low, column, high))
    return first, value, last


# -- sources ----------------------------------------------------------------------------------------


def test_sources_are_the_quantities_that_were_measured(tmp_path: Path) -> None:
    found = time_sources(study(tmp_path))
    assert [(s.members, s.low, s.high, s.measured, s.assumed) for s in found] == [
        ((("gpu", "prefill"),), 0.8, 1.25, 40, False),
        ((("gpu", "decode"),), 0.9, 1.1, 50, False),
        ((("wse", "prefill"),), 1 / 1.3, 1.3, 0, True),
        ((("wse", "decode"),), 1 / 1.3, 1.3, 0, True),
    ]
    assert found[0].label == "prefill times of gpu"
    assert found[0].basis == "0.80 to 1.25 of the predicted time, 40 measurements"
    assert found[2].basis == "no measurement: assumed 0.77 to 1.30 of the predicted time"
    carried = replace(found[0], measured=0)
    assert carried.basis == "0.80 to 1.25 of the predicted time, carried over from a relative"


def test_training_has_the_training_interval(tmp_path: Path) -> None:
    raw = tables(tmp_path, paradigm="dp_training", pool=[{"device": "gpu.toml", "count": [8]}])
    raw["workload"] = {"model": "llama-2-7b", "sequence_tokens": 2048, "global_batch": [64]}
    raw.pop("link")
    (found,) = time_sources(Study.from_dict(raw, folder=tmp_path))
    assert (found.members, found.low, found.high, found.measured) == ((("gpu", "train"),), 0.9, 1.2, 30)


def test_phases_measured_together_move_together(tmp_path: Path) -> None:
    e2e = PASSES | {"interval": {"low": 0.8, "high": 1.25, "quantity": "e2e_s", "n": 60}}
    alone = one_pool(tmp_path, GPU | {"efficiency": {"prefill": e2e, "decode": e2e}})
    (source,) = time_sources(alone)
    assert source.members == (("one", "prefill"), ("one", "decode"))
    assert source.label == "prefill and decode times of one"
    # every time of the pool scales, so throughput is exactly inverse
    low, value, high = ends(score(alone, {"n_one": 8}))
    assert low == pytest.approx(value / 1.25, rel=1e-12)
    assert high == pytest.approx(value / 0.8, rel=1e-12)


def test_interval_of_the_data_type_counts(tmp_path: Path) -> None:
    own = PASSES | {"interval": {"low": 0.5, "high": 2.0, "quantity": "tpot_s", "n": 7}}
    e = GPU["efficiency"] | {"decode": GPU["efficiency"]["decode"] | {"by_dtype": {"fp8": own}}}
    device = GPU | {"efficiency": e, "peak_flop_s": {"bf16": 3e14, "fp8": 6e14}}
    for dtype, n in (("bf16", 50), ("fp8", 7)):
        work = tables(tmp_path)["workload"] | {"compute_dtype": dtype}
        found = time_sources(one_pool(tmp_path, device, workload=work))
        assert found[1].measured == n


# -- slowed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrangement", ["tensor", "pipeline"])
@pytest.mark.parametrize("g", [1, 4])
@pytest.mark.parametrize("extra", [{}, {"attention": 0.2, "sequence_s": 1e-4},
                                   {"table_flop": [1e11, 1e14], "table_s": [1e-3, 0.4]}])  # fmt: skip
def test_slowed_passes_take_exactly_so_many_times_longer(
    arrangement: str, g: int, extra: dict[str, Any], tmp_path: Path
) -> None:
    phase = PASSES | extra
    device = GPU | {"arrangement": arrangement, "efficiency": {"prefill": phase, "decode": phase}}
    plain = one_pool(tmp_path, device)
    source = Source(members=(("one", "prefill"),), label="", low=1, high=1, measured=0, assumed=True)
    slow = slowed(plain, source, 1.7)
    a = plain.problem.model
    common = {"g": g, "batch": np.array([1.0, 3.0, 60.0]), "weight_dtype_byte": 2.0, "kv_dtype_byte": 2.0,
              "compute_dtype": "bf16"}  # fmt: skip
    before, after = (s.problem.pools[0].device for s in (plain, slow))
    first, second = (prefill_time(d, a, input_tokens=700.0, hit_frac=0.0, **common) for d in (before, after))
    for name in ("latency_s", "occupancy_s", "compute_s", "memory_s", "communication_s", "fixed_s"):
        assert getattr(second, name) == pytest.approx(1.7 * getattr(first, name), rel=1e-12), name
    assert (first.latency_s > 0).all()
    assert (second.flop == first.flop).all()
    one, two = (decode_time(d, a, context_tokens=700.0, **common) for d in (before, after))
    assert (one.latency_s == two.latency_s).all()  # another phase


@pytest.mark.parametrize("draw_one", [draw_dp, draw_pp])
def test_slowed_training_takes_exactly_so_many_times_longer(draw_one: Any, tmp_path: Path) -> None:
    """A step of one pool alone: all of its times, all-reduces and hops included."""
    compared = 0
    for seed in range(200, 240):
        d = draw_one(seed, tmp_path)
        if len(d.bought) > 1:
            continue
        plain = Study.from_dict(d.raw, folder=tmp_path)
        name = next(n for n, p in zip(d.names, d.pools, strict=True) if p.n)
        before = scored(plain, d.settings).iloc[0]
        if not before["step_time_s"] < math.inf:
            continue
        source = Source(members=((name, "train"),), label="", low=1, high=1, measured=0, assumed=True)
        after = scored(slowed(plain, source, 1.7), d.settings).iloc[0]
        assert after["step_time_s"] == pytest.approx(1.7 * before["step_time_s"], rel=1e-9), d.raw["name"]
        compared += 1
    assert compared >= 3


def test_slowed_by_one_changes_nothing(tmp_path: Path) -> None:
    for seed in range(300, 306):
        d = draw(seed, tmp_path)
        plain = Study.from_dict(d.raw, folder=tmp_path)
        both = ((d.names[0], "prefill"), (d.names[0], "decode"))
        source = Source(members=both, label="", low=1, high=1, measured=0, assumed=True)
        again = slowed(plain, source, 1.0)
        pd.testing.assert_frame_equal(scored(plain, d.settings), scored(again, d.settings))


# -- effects ----------------------------------------------------------------------------------------


def test_effects_by_hand(tmp_path: Path) -> None:
    """Prefill on plenty of GPUs, decode on one wafer: throughput is inverse to the wafer's decode time alone."""
    loaded = study(tmp_path)
    frame, effects = explained(loaded, scored(loaded, DESIGN), DESIGN)
    low, value, high = ends(frame)
    assert value == frame["throughput_tok_s"].iloc[0] > 0
    assert low == pytest.approx(value / 1.3, rel=1e-9)
    # the other end: 1.3 times, or what prefill then allows
    most = scored(slowed(loaded, time_sources(loaded)[3], 1 / 1.3), DESIGN)["throughput_tok_s"].iloc[0]
    assert high == pytest.approx(most, rel=1e-9)
    by_time = [e for e in effects if e.column == "throughput_tok_s"]
    assert [e.source for e in by_time] == ["decode times of wse"]
    assert by_time[0].basis.startswith("no measurement: assumed")
    assert (by_time[0].low, by_time[0].high) == pytest.approx((low, high))
    assert by_time[0].text == f"decode times of wse ({by_time[0].basis})"


def test_effects_of_independent_sources_add_as_squares(tmp_path: Path) -> None:
    alone = one_pool(tmp_path, GPU)
    frame, effects = explained(alone, scored(alone, {"n_one": 8}), {"n_one": "8"})
    low, value, high = ends(frame)
    each = [e for e in effects if e.column == "throughput_tok_s"]
    assert {e.source for e in each} == {"prefill times of one", "decode times of one"}
    assert value - low == pytest.approx(math.hypot(*(value - e.low for e in each)))
    assert high - value == pytest.approx(math.hypot(*(e.high - value for e in each)))
    # each by hand: seconds of an instance per request are s_p and s_d, and the rate is 1/(s_p + s_d)
    detail = explain(alone, {"n_one": 8})[1]
    assert detail["pools"]["one"]["role"] == "both"
    prefill, decode = (next(e for e in each if e.source.startswith(x)) for x in ("prefill", "decode"))
    share = (value / prefill.low - 1) / 0.25  # s_p of the whole
    assert 0 < share < 1
    assert value / prefill.high == pytest.approx(1 - 0.2 * share)
    assert value / decode.low == pytest.approx(1 + 0.1 * (1 - share))
    assert value / decode.high == pytest.approx(1 - 0.1 * (1 - share))
    relative = [(e.high - e.low) / (value if e.column == "throughput_tok_s" else 16.0) for e in effects]
    assert relative == sorted(relative, reverse=True)


def test_every_frame_has_its_values_between_their_ends(tmp_path: Path) -> None:
    for loaded in (study(tmp_path), one_pool(tmp_path, GPU)):
        frame = with_intervals(loaded, score_index(loaded, np.arange(loaded.space.n_designs)))
        assert len(frame) == loaded.space.n_designs
        for column, (low, high) in INTERVALS.items():
            values = frame[[low, column, high]].to_numpy(dtype=float)
            assert not np.isnan(values).any()
            assert (values[:, 0] <= values[:, 1]).all()
            assert (values[:, 1] <= values[:, 2]).all()
            where = list(frame.columns).index(column)
            assert list(frame.columns)[where + 1 : where + 3] == [low, high]
        works = frame["throughput_tok_s"] > 0
        assert works.any()
        assert (frame.loc[works, "throughput_low_tok_s"] < frame.loc[works, "throughput_tok_s"]).all()
        assert (frame.loc[~works, ["throughput_low_tok_s", "throughput_high_tok_s"]] == 0).all(axis=None)


def test_grid_designs_and_single_ones_have_the_same_intervals(tmp_path: Path) -> None:
    loaded = study(tmp_path)
    frame = with_intervals(loaded, score_index(loaded, np.arange(loaded.space.n_designs)))
    rows = frame[frame["feasible"]].iloc[::7]
    assert len(rows) > 3
    for _, row in rows.iterrows():
        settings = loaded.space.settings_of({str(k): v for k, v in row.items()})
        one = explained(loaded, scored(loaded, settings), settings)[0].iloc[0]
        for name in (name for pair in INTERVALS.values() for name in pair):
            assert float(one[name]) == pytest.approx(float(row[name]), rel=1e-9), name


@pytest.mark.slow
def test_random_designs_lie_between_their_ends(tmp_path: Path) -> None:
    for seed in range(6):
        for d in (draw(seed, tmp_path), draw_dp(seed, tmp_path), draw_pp(seed, tmp_path)):
            loaded = Study.from_dict(d.raw, folder=tmp_path)
            frame = score(loaded, d.settings)
            for column in INTERVALS:
                low, value, high = ends(frame, column)
                assert low <= value <= high, (d.raw["name"], column)


# -- prices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "owned", "each"),
    [
        ({"cost_basis": "rental"}, 0, [(-0.5 * 8, 1.0 * 8)]),
        ({"cost_basis": "rental", "upkeep_frac_per_year": 0.0}, 3, [(-0.5 * 5, 1.0 * 5)]),
        ({"cost_basis": "rental", "upkeep_frac_per_year": 0.05}, 8,
         [(-2000 * 8 * 0.05 / 8760, 5000 * 8 * 0.05 / 8760)]),
        ({"cost_basis": "ownership", "life_years": 4, "upkeep_frac_per_year": 0.05}, 0,
         [(-8 * 2000 * (0.25 + 0.05) / 8760, 8 * 5000 * (0.25 + 0.05) / 8760)]),
        ({"cost_basis": "ownership", "life_years": 4, "upkeep_frac_per_year": 0.05}, 3,
         [(-2000 * (5 * 0.30 + 3 * 0.05) / 8760, 5000 * (5 * 0.30 + 3 * 0.05) / 8760)]),
        ({"cost_basis": "ownership", "life_years": 4, "upkeep_frac_per_year": 0.05}, 8,
         [(-2000 * 8 * 0.05 / 8760, 5000 * 8 * 0.05 / 8760)]),
    ],
)  # fmt: skip
def test_cost_interval_is_linear_in_the_price(
    site: dict[str, Any], owned: int, each: list[tuple[float, float]], tmp_path: Path
) -> None:
    """Rent 2 (1.5 to 3) USD/h, price 10,000 (8,000 to 15,000) USD; owned devices cost their upkeep, not their price."""
    alone = one_pool(tmp_path, GPU, site=site, pool={"owned": owned})
    frame = score(alone, {"n_one": 8})
    low, value, high = ends(frame, "cost_usd_per_h")
    ((down, up),) = each
    assert low - value == pytest.approx(down, rel=1e-6)
    assert high - value == pytest.approx(up, rel=1e-6)


def test_prices_without_a_range_are_sure(tmp_path: Path) -> None:
    device = {k: v for k, v in GPU.items() if not k.endswith("range_usd_per_h")}
    low, value, high = ends(score(one_pool(tmp_path, device), {"n_one": 8}), "cost_usd_per_h")
    assert low == value == high == 16.0


def test_two_pools_prices_add_as_squares_and_reach_the_cost_of_a_token(tmp_path: Path) -> None:
    frame = score(study(tmp_path), DESIGN)
    low, value, high = ends(frame, "cost_usd_per_h")
    assert value == pytest.approx(64 * 2.0 + 90.0)
    assert value - low == pytest.approx(math.hypot(64 * 0.5, 30.0))
    assert high - value == pytest.approx(math.hypot(64 * 1.0, 60.0))
    tok_low, tok, tok_high = ends(frame)
    per_low, per, per_high = ends(frame, "usd_per_mtok")
    assert per == pytest.approx(value * 1e6 / 3600 / tok)
    assert per_high == pytest.approx(per * (1 + math.hypot(high / value - 1, tok / tok_low - 1)))
    assert per_low == pytest.approx(per * (1 - math.hypot(1 - low / value, 1 - tok / tok_high)))


# -- what is printed, and what may not be asked ------------------------------------------------------


def test_score_explains_what_a_design_depends_on_most(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(tables(tmp_path)), encoding="utf-8")
    sets = [x for k, v in DESIGN.items() for x in ("--set", f"{k}={v}")]
    done = dse("score", path, *sets, "--explain")
    assert done.returncode == 0, done.stderr
    text = done.stdout[done.stdout.index("uncertainty: 80 % of times") :]
    assert "by decode times of wse (no measurement: assumed 0.77 to 1.30 of the predicted time)" in text
    assert "by price of wse (low and high of its price)" in text
    _, effects = explained(loaded := study(tmp_path), scored(loaded, DESIGN), DESIGN)
    assert f"most depends on: {effects[0].source}" in text
    assert "throughput_low_tok_s" in done.stdout


@pytest.mark.parametrize("name", [name for pair in INTERVALS.values() for name in pair])
def test_ends_of_intervals_are_no_limits_and_no_objectives(name: str, tmp_path: Path) -> None:
    """They come after the search: a study that asks for one is told so, by name."""
    assert next(c for c in COLUMNS if c.name == name).sense is None
    raw = tables(tmp_path) | {"limits": {name: {"max": 1.0}}}
    with pytest.raises(InputError) as caught:
        scored(Study.from_dict(raw, folder=tmp_path), DESIGN)
    assert name in str(caught.value)
    raw = tables(tmp_path) | {"objectives": [name, "cost_usd_per_h"]}
    with pytest.raises(InputError) as caught:
        Study.from_dict(raw, folder=tmp_path)
    assert name in str(caught.value)


def test_data_types_measured_together_in_one_move_phases_together(tmp_path: Path) -> None:
    """More data types on offer never narrow the interval of a design."""
    e2e = PASSES | {"interval": {"low": 0.9, "high": 1.1, "quantity": "e2e_s", "n": 80}}
    apart = {
        phase: PASSES | {"interval": {"low": 0.95, "high": 1.05, "quantity": quantity, "n": 15}}
        for phase, quantity in (("prefill", "ttft_s"), ("decode", "tpot_s"))
    }
    numbers = {phase: e2e | {"by_dtype": {"fp8": apart[phase]}} for phase in ("prefill", "decode")}
    device = GPU | {"efficiency": numbers, "peak_flop_s": {"bf16": 3e14, "fp8": 6e14}}
    work = tables(tmp_path)["workload"] | {"compute_dtype": ["fp8", "bf16"]}
    (source,) = time_sources(one_pool(tmp_path, device, workload=work))
    assert (source.low, source.high, source.measured) == (0.9, 1.1, 80)
    assert source.members == (("one", "prefill"), ("one", "decode"))
