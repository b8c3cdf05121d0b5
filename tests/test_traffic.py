"""Traces, their request classes, and their windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse import trace_file
from dse.errors import InputError
from dse.traffic import (
    N_CLASSES,
    WORK,
    Tally,
    read_trace,
    trace_classes,
    trace_tally,
    trace_windows,
    work_of,
)

HEADER = "arrival_s,input_tokens,output_tokens\n"
AZURE = Path(__file__).parents[2] / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"


def written(folder: Path, rows: np.ndarray) -> Path:
    path = folder / "trace.csv"
    path.write_text(HEADER + "".join(f"{a!r},{i:.0f},{o:.0f}\n" for a, i, o in rows.tolist()))
    return path


def random_trace(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(0.5, n))
    return np.stack([arrival_s, rng.integers(1, 5000, n), rng.integers(1, 900, n)], axis=1).astype(float)


@pytest.mark.parametrize("n_classes", [1, 5, 12, 40])
@pytest.mark.parametrize("n", [1, 7, 400])
def test_classes_keep_prefilled_tokens_decode_steps_and_requests(n: int, n_classes: int, tmp_path: Path) -> None:
    trace = random_trace(n, seed=n)
    cut = trace_classes(trace_tally(written(tmp_path, trace)), n_classes)
    assert 1 <= len(cut.classes) <= n_classes
    assert sum(c.share for c in cut.classes) == pytest.approx(1.0)
    assert sum(c.share * c.input_tokens for c in cut.classes) == pytest.approx(trace[:, 1].mean())
    assert sum(c.share * c.output_tokens for c in cut.classes) == pytest.approx(trace[:, 2].mean())
    assert cut.loss["prefill_tokens"] == pytest.approx(0, abs=1e-12)
    assert cut.loss["decode_steps"] == pytest.approx(0, abs=1e-12)
    label = cut.label(trace[:, 1], trace[:, 2])
    for k, c in enumerate(cut.classes):
        assert c.input_tokens == pytest.approx(trace[label == k, 1].mean())


def test_the_stated_loss_is_that_against_every_request(tmp_path: Path) -> None:
    trace = random_trace(3000, seed=5)
    cut = trace_classes(trace_tally(written(tmp_path, trace)))
    whole = work_of(np.ones(3000), trace[:, 1], trace[:, 2])
    kept = work_of(
        np.array([c.share * 3000 for c in cut.classes]),
        np.array([c.input_tokens for c in cut.classes]),
        np.array([c.output_tokens for c in cut.classes]),
    )
    assert list(cut.loss) == list(WORK)
    np.testing.assert_allclose(list(cut.loss.values()), kept / whole - 1, atol=1e-12)
    assert cut.loss["prefill_attention"] < -1e-3


def test_more_classes_lose_less(tmp_path: Path) -> None:
    tally = trace_tally(written(tmp_path, random_trace(3000, seed=2)))
    worst = [max(map(abs, trace_classes(tally, n).loss.values())) for n in (2, 12, 48, 150)]
    assert worst == sorted(worst, reverse=True)
    assert worst[-1] < worst[0] / 10


def test_few_shapes_stay_exact(tmp_path: Path) -> None:
    trace = np.array([[0, 10, 5], [1, 10, 5], [2, 900, 1], [3, 10, 7]], dtype=float)
    cut = trace_classes(trace_tally(written(tmp_path, trace)))
    shapes = {(c.input_tokens, c.output_tokens): c.share for c in cut.classes}
    assert shapes == {(10.0, 5.0): 0.5, (10.0, 7.0): 0.25, (900.0, 1.0): 0.25}
    assert cut.loss == dict.fromkeys(WORK, 0.0)


def test_classes_that_round_alike_have_their_own_names(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,10.1,5\n1,10.2,5\n2,99,5\n")
    names = [c.name for c in trace_classes(trace_tally(path)).classes]
    assert len(set(names)) == 3


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.floats(0.3, 300))
@settings(max_examples=30, deadline=None)
def test_windows_hold_every_request_once(n: int, seed: int, window_s: float) -> None:
    import tempfile

    trace = random_trace(n, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), trace)
        cut = trace_classes(trace_tally(path))
        windows = trace_windows(path, cut, window_s)
    np.testing.assert_allclose(windows.requests.sum(axis=0), np.array([c.share for c in cut.classes]) * n)
    at = np.minimum((trace[:, 0] - trace[0, 0]) // window_s, len(windows.start_s) - 1).astype(int)
    np.testing.assert_array_equal(windows.requests.sum(axis=1), np.bincount(at, minlength=len(windows.start_s)))
    np.testing.assert_allclose(windows.share.sum(axis=1), 1.0)


def test_too_many_windows_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = written(tmp_path, np.array([[0, 1, 1], [1e6, 1, 1]], dtype=float))
    with pytest.raises(InputError, match=r"at most 2000 are allowed; take .* s or more"):
        trace_windows(path, trace_classes(trace_tally(path)), 0.1)


def test_gaps_tell_a_poisson_stream_from_a_metronome(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one = np.ones(4000)
    poisson = written(tmp_path, np.stack([np.cumsum(rng.exponential(1, 4000)), one, one], axis=1))
    assert trace_tally(poisson).gap_cv2 == pytest.approx(1, abs=0.1)
    assert trace_tally(poisson).requests_s == pytest.approx(1, abs=0.05)
    even = written(tmp_path, np.stack([np.arange(4000.0), one, one], axis=1))
    assert trace_tally(even).gap_cv2 == pytest.approx(0, abs=1e-9)


def test_blocks_and_the_grid_of_lengths_change_nothing_but_detail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks and a small limit on different lengths stand for a trace of millions."""
    path = written(tmp_path, random_trace(3000, seed=9))
    whole = trace_tally(path)
    monkeypatch.setattr(trace_file, "BLOCK_BYTE", 700)
    monkeypatch.setattr("dse.traffic.MOST_SHAPES", 500)
    path.touch()
    parts: Tally = trace_tally(written(tmp_path, random_trace(3000, seed=9)))
    np.testing.assert_allclose(parts.work, whole.work, rtol=1e-12)
    assert (parts.n_requests, parts.first_s, parts.last_s) == (whole.n_requests, whole.first_s, whole.last_s)
    assert parts.gap_cv2 == pytest.approx(whole.gap_cv2)
    assert len(parts.count) < len(whole.count)
    coarse, fine = trace_classes(parts), trace_classes(whole)
    assert len(coarse.classes) == len(fine.classes) == N_CLASSES
    assert coarse.loss["prefill_tokens"] == pytest.approx(0, abs=1e-9)
    assert coarse.loss["prefill_attention"] == pytest.approx(fine.loss["prefill_attention"], abs=5e-3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "header is ''"),
        ("time,in,out\n1,2,3\n", "must be 'arrival_s,input_tokens,output_tokens'"),
        (HEADER, "no requests"),
        (HEADER + "\n\n", "no requests"),
        (HEADER + "0,10\n", ":2: got 2 fields"),
        (HEADER + "0,10,5\n1,10,5,9\n", ":3: got 4 fields"),
        (HEADER + "0,ten,5\n", "three numbers"),
        (HEADER + "0,1_0,5\n", "three numbers"),
        (HEADER + "0,,5\n", "three numbers"),
        (HEADER + "0,nan,5\n", "finite"),
        (HEADER + "-1,10,5\n", "not negative"),
        (HEADER + "0,0,5\n", "at least 1"),
        (HEADER + "0,10,1e999\n", "finite"),
        (HEADER + "0,10,2e9\n", "at most 1e+09"),
        (HEADER + "1e11,10,2\n", "let the trace start at 0"),
        (HEADER + "0,10,5\n3.5,10,5\n\n2,10,5\n", ":5: arrival_s goes back from 3.5 to 2.0; sort the file"),
    ],
)
def test_malformed_traces(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        trace_tally(path)
    assert expected in str(caught.value)


def test_order_is_checked_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "BLOCK_BYTE", 50)
    rows = random_trace(200, seed=0)
    rows[120, 0] = 0.001
    with pytest.raises(InputError, match=":122: arrival_s goes back"):
        trace_tally(written(tmp_path, rows))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00a", HEADER.encode() + b"\xff,1,1\n", HEADER.encode() + b"\0" * 99])
def test_bytes_that_are_no_text_are_faults(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(InputError):
        trace_tally(path)
    with pytest.raises(InputError, match="no such trace"):
        trace_tally(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be read"):
        trace_tally(tmp_path)


def test_many_faults_are_counted_not_all_printed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,0,0\n" * 50)
    with pytest.raises(InputError) as caught:
        trace_tally(path)
    assert len(caught.value.faults) == 6
    assert "45 more rows" in caught.value.faults[-1]


@pytest.mark.skipif(not AZURE.exists(), reason="the public trace is not beside this checkout")
def test_quickstart_holds_the_facts_of_the_azure_trace() -> None:
    import tomllib

    cut = trace_classes(trace_tally(AZURE))
    study = tomllib.loads((Path(__file__).parents[1] / "experiments" / "quickstart.toml").read_text())
    shipped = study["workload"]["requests"]
    assert len(shipped) == len(cut.classes) == 12
    for row, found in zip(shipped, cut.classes, strict=True):
        assert row["share"] == pytest.approx(found.share, abs=1e-5)
        assert row["input_tokens"] == pytest.approx(found.input_tokens, abs=0.01)
        assert row["output_tokens"] == pytest.approx(found.output_tokens, abs=0.01)
    assert len(read_trace(AZURE)) == 19_366
