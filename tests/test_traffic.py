"""Traces and their request classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.errors import InputError
from dse.traffic import read_trace, request_classes

HEADER = "arrival_s,input_tokens,output_tokens\n"
AZURE = Path(__file__).parents[2] / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"


@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_classes_keep_all_tokens_and_requests(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trace = np.stack([np.arange(n), rng.integers(1, 5000, n), rng.integers(1, 900, n)], axis=1).astype(float)
    classes = request_classes(trace)
    assert 1 <= len(classes) <= 12
    assert sum(c.share for c in classes) == pytest.approx(1.0)
    assert sum(c.share * c.input_tokens for c in classes) == pytest.approx(trace[:, 1].mean())
    assert sum(c.share * c.output_tokens for c in classes) == pytest.approx(trace[:, 2].mean())


def test_few_shapes_stay_exact() -> None:
    trace = np.array([[0, 10, 5], [1, 10, 5], [2, 900, 1], [3, 10, 7]], dtype=float)
    shapes = {(c.input_tokens, c.output_tokens): c.share for c in request_classes(trace)}
    assert shapes == {(10.0, 5.0): 0.5, (10.0, 7.0): 0.25, (900.0, 1.0): 0.25}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "header is ''"),
        ("time,in,out\n1,2,3\n", "must be 'arrival_s,input_tokens,output_tokens'"),
        (HEADER, "no requests"),
        (HEADER + "0,10\n", "got 2 fields"),
        (HEADER + "0,ten,5\n", "three numbers"),
        (HEADER + "0,nan,5\n", "finite"),
        (HEADER + "-1,10,5\n", "not negative"),
        (HEADER + "0,0,5\n", "at least 1"),
        (HEADER + "0,10,1e999\n", "finite"),
    ],
)
def test_malformed_traces(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert expected in str(caught.value)


def test_many_faults_are_counted_not_all_printed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,0,0\n" * 50)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert len(caught.value.faults) == 6
    assert "45 more rows" in caught.value.faults[-1]


@pytest.mark.skipif(not AZURE.exists(), reason="the public trace is not beside this checkout")
def test_quickstart_holds_the_facts_of_the_azure_trace() -> None:
    import tomllib

    classes = request_classes(read_trace(AZURE))
    study = tomllib.loads((Path(__file__).parents[1] / "experiments" / "quickstart.toml").read_text())
    shipped = study["workload"]["requests"]
    assert len(shipped) == len(classes) == 12
    for row, found in zip(shipped, classes, strict=True):
        assert row["share"] == pytest.approx(found.share, abs=1e-5)
        assert row["input_tokens"] == pytest.approx(found.input_tokens, abs=0.01)
        assert row["output_tokens"] == pytest.approx(found.output_tokens, abs=0.01)
