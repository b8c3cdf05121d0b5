"""Section 6, pipeline training: the schedules, held to an event-by-event replay."""

from __future__ import annotations

import numpy as np
import pipeline_replay as replay
import pytest
from numpy.typing import NDArray

from dse.errors import UnknownNameError
from dse.model.pp_schedule import (
    gpipe_s,
    in_flight,
    interleaved_s,
    one_f_one_b_bound_s,
    one_f_one_b_s,
    one_f_one_b_screen_s,
)

Floats = NDArray[np.float64]


def random_stages(rng: np.random.Generator, kind: int, *shape: int) -> Floats:
    """Four kinds of unequal stages: any, twelve decades, many zeros, whole numbers (ties)."""
    if kind == 0:
        return rng.random(shape)
    if kind == 1:
        return 10.0 ** rng.uniform(-6, 6, shape)
    if kind == 2:
        return rng.random(shape) * (rng.random(shape) > 0.4)
    return rng.integers(0, 4, shape).astype(np.float64)


def random_pipelines(seed: int, count: int) -> list[tuple[list[float], list[float], int]]:
    rng = np.random.default_rng(seed)
    cases = []
    for c in range(count):
        f, b = random_stages(rng, c % 4, 2, int(rng.integers(1, 9))).tolist()
        cases.append((f, b, int(rng.integers(1, 41))))
    return cases


def test_by_hand() -> None:
    # equal stages: (n + K - 1)(f + b) under both
    assert gpipe_s([[1.0] * 4], [[2.0] * 4], 8).tolist() == [33.0]
    assert one_f_one_b_s([[1.0] * 4], [[2.0] * 4], 8).tolist() == [33.0]
    # one stage, one micro-batch, no work
    assert one_f_one_b_s([[1.0]], [[2.0]], 5).tolist() == gpipe_s([[1.0]], [[2.0]], 5).tolist() == [15.0]
    assert one_f_one_b_s([[1.0, 2.0, 3.0]], [[2.0, 5.0, 1.0]], 1).tolist() == [14.0]
    assert one_f_one_b_s(np.zeros((2, 3)), np.zeros((2, 3)), 100).tolist() == [0.0, 0.0]


def test_gpipe_is_the_replay() -> None:
    """In either order of the backwards, with or without a flush; and no shorter where the end does not wait."""
    for f, b, n in random_pipelines(1, 1000):
        step = float(gpipe_s([f], [b], n)[0])
        for last_first in (False, True):
            schedule = replay.gpipe(len(f), n, last_first=last_first)
            assert replay.replay_s(schedule, f, b) == pytest.approx(step, rel=1e-9)
        assert replay.replay_s(schedule, f, b, flush=True) == pytest.approx(step, rel=1e-9)
        assert replay.replay_s(replay.gpipe(len(f), n, eager_end=True), f, b) <= step * (1 + 1e-9)


def test_1f1b_is_the_replay() -> None:
    for f, b, n in random_pipelines(2, 1000):
        exact = replay.replay_s(replay.one_f_one_b(len(f), n), f, b)
        assert float(one_f_one_b_s([f], [b], n)[0]) == pytest.approx(exact, rel=1e-9)
        assert float(one_f_one_b_bound_s([f], [b], n)[0]) <= exact * (1 + 1e-12)


def test_1f1b_stops_early_only_when_steady() -> None:
    """Many micro-batches, against the replay to 1e-12; the last cases have rival stages and settle late or never."""
    rng = np.random.default_rng(3)
    for c in range(12):
        n_stages, n = int(rng.integers(2, 9)), int(rng.integers(200, 600))
        f, b = random_stages(rng, c % 4, 2, n_stages)
        if c >= 8:
            f, b = 1.0 + 10.0 ** -(c - 5) * rng.random((2, n_stages))
        exact = replay.replay_s(replay.one_f_one_b(n_stages, n), f.tolist(), b.tolist())
        assert float(one_f_one_b_s([f], [b], n)[0]) == pytest.approx(exact, rel=1e-12)


def screen_error(ratio: float, n_stages: int, count: int = 4000) -> Floats:
    """Screening over exact, less 1: stages up to `ratio` apart, more micro-batches than screening follows."""
    rng = np.random.default_rng(n_stages)
    f = ratio ** rng.random((count, n_stages))
    b = 2.0 * f
    b[count // 2 :] = ratio ** rng.random((count - count // 2, n_stages))
    n = np.exp(rng.uniform(np.log(6 * n_stages + 1), np.log(1024), count)).astype(np.int64)
    return one_f_one_b_screen_s(f, b, n) / one_f_one_b_s(f, b, n) - 1.0


@pytest.mark.parametrize("ratio", [1.0, 1.5, 3.0, 10.0, 1e6])
def test_screening_error(ratio: float) -> None:
    """Never below exact; within 1 % for 999 of 1,000, whatever the ratio, and within 2 % for all of these."""
    error = np.concatenate([screen_error(ratio, n_stages) for n_stages in (2, 3, 4, 6, 8)])
    rank = np.quantile(error, 0.999)
    found = f"stages up to {ratio:g} apart: max {error.max():.2e}, 99.9 % {rank:.2e}, median {np.median(error):.2e}"
    print(found, f"share above 1 %: {(error > 0.01).mean():.1e}")
    assert error.min() >= -1e-12, found
    assert rank <= 0.01, found
    assert error.max() <= 0.02, found


def test_screening_of_few_micro_batches_is_exact() -> None:
    f, b = np.random.default_rng(5).random((2, 200, 5))
    n = 1 + np.arange(200) % 30
    assert one_f_one_b_screen_s(f, b, n).tolist() == one_f_one_b_s(f, b, n).tolist()


def test_bound_is_exact_for_equal_stages() -> None:
    for n_stages in range(1, 9):
        n = np.arange(1, 80)
        f, b = (np.repeat(t[:, np.newaxis], n_stages, axis=1) for t in np.random.default_rng(n_stages).random((2, 79)))
        step = one_f_one_b_s(f, b, n)
        np.testing.assert_allclose(step, (n + n_stages - 1) * (f + b)[:, 0], rtol=1e-12)
        np.testing.assert_allclose(one_f_one_b_bound_s(f, b, n), step, rtol=1e-12)


def test_bound_is_below_exact_for_many() -> None:
    for kind in range(4):
        rng = np.random.default_rng(kind)
        f, b = random_stages(rng, kind, 2, 3000, 7)
        n = rng.integers(1, 300, 3000)
        exact = one_f_one_b_s(f, b, n)
        assert (one_f_one_b_bound_s(f, b, n) <= exact * (1 + 1e-12)).all()
        assert (exact <= gpipe_s(f, b, n) * (1 + 1e-12)).all()


def test_a_shorter_stage_never_lengthens_the_step() -> None:
    rng = np.random.default_rng(6)
    f, b = rng.random((2, 2000, 6))
    n = rng.integers(1, 60, 2000)
    shorter = f.copy()
    shorter[np.arange(2000), rng.integers(6, size=2000)] *= rng.random(2000)
    for step_s in (gpipe_s, one_f_one_b_s):
        assert (step_s(shorter, b, n) <= step_s(f, b, n) * (1 + 1e-12)).all()
        assert (step_s(f, shorter, n) <= step_s(f, f, n) * (1 + 1e-12)).all()


def test_one_more_micro_batch() -> None:
    """GPipe adds max f + max b. 1F1B never shortens, but may add less than max(f + b): passes fill idle time."""
    f, b = np.random.default_rng(7).random((2, 1000, 5))
    steps = np.array([one_f_one_b_s(f, b, n) for n in range(1, 40)])
    assert (np.diff(steps, axis=0) >= -1e-12).all()
    np.testing.assert_allclose(gpipe_s(f, b, 9) - gpipe_s(f, b, 8), f.max(axis=1) + b.max(axis=1), rtol=1e-12)
    # by hand: a second micro-batch adds 1 s although stage 1 takes 2 s
    assert [float(one_f_one_b_s([[1.0, 0.0]], [[1.0, 1.0]], n)[0]) for n in (1, 2, 3)] == [3.0, 4.0, 6.0]


def test_array_equals_scalars() -> None:
    rng = np.random.default_rng(8)
    f, b = rng.random((2, 300, 6))
    n = rng.integers(1, 200, 300)
    v = rng.integers(1, 4, 300)
    for step_s in (gpipe_s, one_f_one_b_s, one_f_one_b_screen_s, one_f_one_b_bound_s):
        one_by_one = [float(step_s([f[d]], [b[d]], int(n[d]))[0]) for d in range(300)]
        np.testing.assert_allclose(step_s(f, b, n), one_by_one, rtol=1e-13)
        np.testing.assert_array_equal(step_s(f, b, n.astype(np.float64)), step_s(f, b, n))
    one_by_one = [float(interleaved_s([f[d]], [b[d]], 0.1, n[d], v[d])[0]) for d in range(300)]
    np.testing.assert_allclose(interleaved_s(f, b, np.full(300, 0.1), n, v), one_by_one, rtol=1e-13)
    assert in_flight("interleaved", 6, n, v).shape == (300, 6)


def test_interleaved_of_equal_stages_is_the_replay() -> None:
    rng = np.random.default_rng(9)
    for _ in range(200):
        n_stages, chunks = (int(x) for x in rng.integers(1, 6, 2))
        n = n_stages * int(rng.integers(1, 6))
        f, b = ([float(t)] * n_stages for t in rng.random(2))
        exact = replay.replay_s(replay.interleaved(n_stages, n, chunks), f, b, chunks=chunks)
        assert float(interleaved_s([f], [b], 0.0, n, chunks)[0]) == pytest.approx(exact, rel=1e-9)
    assert interleaved_s([[1.0, 1.0]], [[2.0, 2.0]], 0.25, 4, 2).tolist() == [4 * 3 + 3 / 2 + 2 * 0.25]


def test_interleaved_of_unequal_stages_is_somewhat_long() -> None:
    rng = np.random.default_rng(10)
    errors = []
    for _ in range(200):
        n_stages, chunks = int(rng.integers(2, 9)), int(rng.integers(2, 5))
        n = n_stages * int(rng.integers(2, 9))
        f = (3.0 ** rng.random(n_stages)).tolist()
        b = [2.0 * t for t in f]
        exact = replay.replay_s(replay.interleaved(n_stages, n, chunks), f, b, chunks=chunks)
        errors.append(float(interleaved_s([f], [b], 0.0, n, chunks)[0]) / exact - 1.0)
    found = f"interleaved, stages up to 3 apart: {min(errors):.1e} to {max(errors):.3f}, median {np.median(errors):.3f}"
    print(found)
    assert min(errors) >= -1e-9, found
    assert max(errors) <= 0.15, found


def test_in_flight_is_what_the_replayed_order_holds() -> None:
    for n_stages in range(1, 8):
        for n in range(1, 20):
            for name, schedule in (("gpipe", replay.gpipe(n_stages, n)), ("1f1b", replay.one_f_one_b(n_stages, n))):
                assert in_flight(name, n_stages, n).tolist() == [[replay.held(passes) for passes in schedule]]
        for chunks in (1, 2, 3):
            schedule = replay.interleaved(n_stages, 3 * n_stages, chunks)
            held = [replay.held(passes, chunks) for passes in schedule]
            assert in_flight("interleaved", n_stages, 3 * n_stages, chunks)[0] == pytest.approx(held, rel=1e-12)
    assert float(in_flight("interleaved", 8, 64, 4)[0, 0]) == 8 + 7 / 4


def test_unknown_schedule() -> None:
    with pytest.raises(UnknownNameError, match="did you mean gpipe"):
        in_flight("gpip", 4, 8)
