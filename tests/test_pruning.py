"""Large spaces are pruned without loss: the frontier is that of full enumeration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import small_study
from random_spaces import random_space

from dse import choice, enumeration, pruning
from dse.choice import choose_method
from dse.explore import run
from dse.pareto import GatheredFront, RunningFront, minimised, nondominated
from dse.progress import Stop, silent
from dse.resolve import Study
from dse.scoring import bounds_of
from search_spaces import partial_fleets
from search_spaces.partial_fleets import Parts, added, best_of_tiles, front_of, in_tiles, joined
from search_spaces.pd_serving_pruning import Linked, Patterns

LARGE = small_study(
    pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 400}},
        {"device": "h100-80gb-sxm", "name": "h100", "count": {"min": 0, "max": 400}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 40}},
    ]
)


def check(seed: int) -> bool:
    """Whether a random space can be pruned; then its frontier must be that of every design looked at."""
    return same_fronts(Study.from_dict(random_space(seed)))


def same_fronts(study: Study) -> bool:
    """Whether a study can be pruned and has a frontier; then it must be that of every design looked at."""
    if pruning.pruning_refusal(study):
        return False
    every = enumeration.enumerate_all(study, workers=1, address="local", report=silent, stop=Stop())
    some = pruning.explore_pruned(study, report=silent, stop=Stop())
    expected, found = np.unique(every.points, axis=0), np.unique(some.points, axis=0)
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-9, atol=0.0)
    assert len(found) == len(some.points), "one design a point"
    assert study.space.legal(some.index).all()
    scored = minimised(study.space.numbers(some.index), study.envelope.objectives.names)
    assert np.allclose(scored, some.points, rtol=1e-9, atol=0.0)
    return len(found) > 0


def test_quick_random_spaces_have_the_frontier_of_full_enumeration() -> None:
    assert sum(check(seed) for seed in range(30)) >= 20


@pytest.mark.slow
def test_random_spaces_have_the_frontier_of_full_enumeration() -> None:
    assert sum(check(seed) for seed in range(1000, 1230)) >= 200


def random_parts(rng: np.random.Generator, n: int) -> Parts:
    """Parts of one pool that spread over all ratios."""
    rate = rng.uniform(0, 10, n)
    return Parts(
        rate=rate,
        usd_per_h=rng.uniform(1, 5, n),
        power_w=rng.uniform(1, 5, n),
        largest=rate * rng.uniform(0.3, 1, n),
        rows=np.arange(n, dtype=np.int64)[:, None],
    )


def test_joins_are_monotone_and_the_best_of_a_tile_bounds_it() -> None:
    patterns = patterns_of(Study.from_dict(LARGE))
    rng = np.random.default_rng(3)
    for full in (np.inf, 0.5, 3.0):
        for join in (added, patterns._cross(Linked(0, 1.0, 2.0, full))):
            a, b = in_tiles(random_parts(rng, 700)), in_tiles(random_parts(rng, 300))
            whole, bound = join(a.down(), b), join(best_of_tiles(a).down(), best_of_tiles(b))
            tile_a, tile_b = np.arange(700) // partial_fleets.TILE, np.arange(300) // partial_fleets.TILE
            at = np.ix_(tile_a, tile_b)
            assert (whole.rate <= bound.rate[at] * (1 + 1e-12)).all()
            assert (whole.usd_per_h >= bound.usd_per_h[at] * (1 - 1e-12)).all()
            assert (whole.power_w >= bound.power_w[at] * (1 - 1e-12)).all()
            slower = Parts(
                rate=a.rate * 0.9, usd_per_h=a.usd_per_h + 1, power_w=a.power_w + 1, largest=a.largest, rows=a.rows
            )
            worse = join(slower.down(), b)
            assert (worse.rate <= whole.rate).all()
            assert (worse.usd_per_h > whole.usd_per_h).all()


def patterns_of(study: Study) -> Patterns:
    space: Any = study.space
    return Patterns(space, 0, study.envelope.objectives.names, bounds_of(study))


def test_the_front_of_two_lists_is_that_of_their_product_and_no_block_is_larger_than_a_tile() -> None:
    rng = np.random.default_rng(5)
    a, b = in_tiles(random_parts(rng, 500)), in_tiles(random_parts(rng, 400))
    judge, n_values = patterns_of(Study.from_dict(LARGE))._side_judge(np.inf)
    found, n_compared = front_of(a, b, added, judge, n_values)
    whole = added(a.down(), b)
    points = np.stack([v.reshape(-1) for v in (-whole.rate, whole.usd_per_h, whole.power_w)], axis=1)
    expected = np.unique(points[nondominated(points)], axis=0)
    got = np.unique(np.stack([-found.rate, found.usd_per_h, found.power_w], axis=1), axis=0)
    assert got.shape == expected.shape
    assert np.allclose(got, expected, rtol=1e-12)
    assert n_compared < points.shape[0] + partial_fleets.SEEDS**2
    lots = joined(a, b, added, judge, RunningFront(n_values))
    assert max(n for _, _, n in lots) <= partial_fleets.TILE**2


@pytest.mark.parametrize("name", ["usd_per_mtok", "throughput_tok_s", "cost_usd_per_h", "power_w"])
def test_a_limit_at_a_points_own_value_lets_it_in(name: str) -> None:
    """Fleets that are alike up to the rounding of their sums stand on either side of such a limit."""
    pool = {"device": "a100-40gb-sxm", "count": {"min": 0, "max": 6}, "roles": ["both"]}
    ends = {"maximise": ["throughput_tok_s"], "minimise": ["cost_usd_per_h"]}
    study = Study.from_dict(small_study(pool=[pool | {"name": f"p{i}"} for i in range(3)], objectives=ends))
    every = enumeration.enumerate_all(study, workers=1, address="local", report=silent, stop=Stop())
    for value in sorted(set(study.space.numbers(every.index)[name].tolist()))[::3]:
        limit = {"min": value} if name == "throughput_tok_s" else value
        assert same_fronts(study.changed({"limits": {name: limit}}))


def test_chunks_that_start_from_a_seed_give_every_design_of_the_front_once() -> None:
    study = Study.from_dict(small_study(pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 400}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 40}},
    ]))  # fmt: skip
    whole = enumeration.enumerate_all(study, workers=1, address="local", report=silent, stop=Stop())
    n_units = study.space.n_units()
    assert n_units > 6
    nothing = enumeration.Shared(study=study, points=whole.points[:0], index=whole.index[:0])
    first = enumeration.search_chunk(nothing, enumeration.Chunk(first=3, last=4))
    seed = enumeration.Shared(study=study, points=first.points, index=first.index)
    assert len(seed.index)
    chunks = [enumeration.Chunk(first=i, last=min(i + 2, n_units)) for i in range(0, n_units, 2)]
    parts = [enumeration.search_chunk(seed, chunk) for chunk in chunks]
    index = np.concatenate([seed.index, *(p.index for p in parts)])
    points = np.concatenate([seed.points, *(p.points for p in parts)])
    keep = nondominated(points)
    assert sorted(index[keep]) == whole.index.tolist()
    assert sum(p.candidates for p in parts) == whole.candidates


def test_a_gathered_front_is_that_of_all_points() -> None:
    points = np.round(np.random.default_rng(1).random((5000, 3)), 1)
    keeps_ties, distinct = GatheredFront(3), GatheredFront(3, distinct=True)
    for at in np.array_split(np.arange(5000), 40):
        keeps_ties.add(points[at], at)
        distinct.add(points[at], at)
    assert not distinct.empty
    for front in (keeps_ties, distinct):
        front.settle()
    assert sorted(keeps_ties.front.index) == np.flatnonzero(nondominated(points)).tolist()
    assert sorted(distinct.front.index) == np.flatnonzero(nondominated(points, distinct=True)).tolist()


def test_a_large_space_is_pruned_and_its_proof_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Study.from_dict(LARGE)
    assert pruning.prunes(large)
    monkeypatch.setattr(choice, "AUTO_EXHAUSTIVE_DESIGNS", 1_000_000)
    assert choose_method(large)[0] == "exhaustive"
    study = Study.from_dict(small_study(pool=[
        {"device": "a100-40gb-sxm", "name": "gpu", "count": {"min": 0, "max": 60}},
        {"device": "wse-3", "name": "wse", "count": {"min": 0, "max": 8}},
    ]))  # fmt: skip
    assert not pruning.prunes(study)
    monkeypatch.setattr(choice, "AUTO_EXHAUSTIVE_DESIGNS", 100)
    monkeypatch.setattr(pruning, "PRUNED_DESIGNS", 100)
    method, why = choose_method(study)
    assert method == "exhaustive"
    result = run(study)
    pruned = result.info["proof"]["pruned"]
    assert result.info["complete"]
    assert 0 < len(result.frontier) <= pruned["scored"]
    assert "dropped unseen" in why
    monkeypatch.setattr(pruning, "pruning_refusal", lambda _: "because")
    every = run(study, method="exhaustive")
    assert every.info["proof"]["not_pruned_because"] == "because"
    names = list(study.envelope.objectives.names)
    assert np.allclose(np.unique(every.frontier[names], axis=0), np.unique(result.frontier[names], axis=0), rtol=1e-9)


REFUSED = {
    "ownership": ({"site": {"cost_basis": "ownership"}}, "busy devices"),
    "stealing": ({"workload": LARGE["workload"] | {"routing": "work_stealing"}}, "work stealing"),
    "objective": ({"objectives": {"minimise": ["energy_j_per_tok"]}}, "does not follow from rate, cost and power"),
    "limit": ({"limits": {"tpot_s": 0.1}}, "a limit on tpot_s"),
    "ceiling": ({"limits": {"requests_s": {"max": 10}}}, "a better requests_s breaks"),
    "ttft": ({"workload": LARGE["workload"] | {"slo": {"ttft_p99_s": 1.0}}}, "several prefilling pools"),
    "link": ({"link": {"tier": ["eth100"], "count": [1, 2], "per_pair": True}}, "has to itself may fill"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_lose_something_is_refused_with_the_reason(name: str) -> None:
    changes, reason = REFUSED[name]
    study = Study.from_dict(LARGE | changes)
    assert reason in pruning.pruning_refusal(study)
    assert not pruning.prunes(study)
