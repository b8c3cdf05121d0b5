"""Spoiled studies: each gives clear sentences and the right exit code, never a traceback."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import small_study

from dse.cli import main
from dse.errors import InputError
from dse.resolve import Study


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command in this process; its exit code."""
    monkeypatch.setattr("sys.argv", ["dse", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    code = exit_info.value.code
    return code if isinstance(code, int) else 0


def _with(path: str, value: object) -> dict[str, Any]:
    """The small study with one value replaced; path like pool.0.device."""
    study = small_study()
    node: Any = study
    *parents, last = path.split(".")
    for part in parents:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    node[int(last) if last.isdigit() else last] = value
    return study


def _without(key: str) -> dict[str, Any]:
    study = small_study()
    del study[key]
    return study


TWO_SHARES = [
    {"share": 0.7, "input_tokens": 100, "output_tokens": 10},
    {"share": 0.5, "input_tokens": 200, "output_tokens": 10},
]

SPOILED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "typo'd device": (
        _with("pool.0.device", "a100-40b-sxm"),
        ["pool[0].device", "did you mean", "a100-40gb-sxm"],
    ),
    "typo'd model": (_with("workload.model", "lama-2-7b"), ["workload.model", "llama-2-7b"]),
    "typo'd key": (_with("pool.0.instance_sizes", [1]), ["pool[0]", "did you mean instance_size"]),
    "typo'd paradigm": (_with("paradigm", "pd_servin"), ["paradigm", "pd_serving"]),
    "negative count": (
        _with("pool.0.count", {"min": -4, "max": 8}),
        ["count", "-4", "greater than or equal to 0"],
    ),
    "min above max": (_with("pool.0.count", {"min": 9, "max": 8}), ["count", "min 9 is above max 8"]),
    "shares sum to 1.2": (
        _with("workload.requests", TWO_SHARES),
        ["workload.requests", "sum to 1.2", "0.83"],
    ),
    "no requests": (_with("workload", {"model": "llama-2-7b"}), ["workload", "requests", "trace"]),
    "empty space": (_with("pool.0.count", [0]), ["pool[0]", "no positive value"]),
    "empty axis": (_with("pool.0.instance_size", []), ["instance_size", "at least one value"]),
    "NaN": (_with("site.energy_usd_per_kwh", math.nan), ["energy_usd_per_kwh", "nan"]),
    "infinite bandwidth": (_with("link.bandwidth_gb_s", [math.inf]), ["bandwidth_gb_s", "finite"]),
    "wrong type": (_with("pool.0.count", "many"), ["pool[0].count", "'many'"]),
    "text for a number": (_with("demand.requests_s", "40"), ["demand.requests_s", "'40'", "number"]),
    "no count fits an instance": (
        _with("pool.1.instance_size", [5]),
        ["pool[1]", "multiple of any instance size"],
    ),
    "limit min above max": (
        _with("limits.power_w", {"min": 5.0, "max": 1.0}),
        ["power_w", "min 5.0 is above max 1.0"],
    ),
    "limit on nothing": (_with("limits.power_kw", 5.0), ["limits", "power_w"]),
    "limit without a side": (_with("limits.gpu_wse_ratio", 5.0), ["gpu_wse_ratio", "min"]),
    "limit on an unknown pool": (_with("limits.n_gpus", 5.0), ["n_gpus", "did you mean gpu"]),
    "contradictory limits": (
        _with("limits.requests_s", {"max": 3.0}) | {"demand": {"requests_s": 9.0}},
        ["at most 3", "asks for 9"],
    ),
    "two pools, no link": (_without("link"), ["link", "missing"]),
    "unknown tier": (_with("link", {"tier": "eth40"}), ["eth40", "eth400"]),
    "tier and bandwidth": (
        _with("link", {"tier": "eth400", "bandwidth_gb_s": 3.0}),
        ["either bandwidth_gb_s or tier"],
    ),
    "pools of one name": (_with("pool.1.name", "gpu"), ["pool[1]", "its own name"]),
    "unknown profile": (_with("pool.0.profile", "vlm"), ["profile", "'vlm'", "did you mean vllm?"]),
    "objective under the wrong head": (_with("objectives.maximise", ["power_w"]), ["power_w", "minimise"]),
    "dtype the device lacks": (
        _with("workload.compute_dtype", ["int8"]),
        ["pool[1]", "wse-3", "int8", "bf16"],
    ),
    "role of no kind": (_with("pool.0.roles", ["prefil"]), ["roles", "prefil"]),
    "value listed twice": (_with("pool.0.instance_size", [1, 1]), ["instance_size", "listed twice"]),
    "no pool": (_with("pool", []), ["pool", "at least 1 item"]),
    "trace that is not there": (
        _with("workload", {"model": "llama-2-7b", "trace": "nowhere.csv"}),
        ["workload.trace", "no such trace"],
    ),
    "whole share missing": (
        _with("workload.requests", [{"input_tokens": 5, "output_tokens": 5}]),
        ["requests[0].share", "missing"],
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_study(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, expected = SPOILED[name]
    path = tmp_path / "spoiled.toml"
    path.write_text(tomli_w.dumps(raw))
    for command in ("check", "run", "score"):
        assert invoke(monkeypatch, command, str(path)) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "Traceback" not in shown.err
        assert "spoiled.toml" in shown.err
        for part in expected:
            assert part in shown.err
        assert len(shown.err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def _zero_bytes(path: Path) -> None:
    path.write_bytes(b"")


def _directory(path: Path) -> None:
    path.mkdir()


def _binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00\x01")


def _broken(path: Path) -> None:
    path.write_text('name = "x')


def _nothing(_: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_zero_bytes, "is empty"),
        (_directory, "is a directory"),
        (_binary, "not UTF-8"),
        (_broken, "not valid TOML"),
        (_nothing, "no such file"),
    ],
)
def test_file_that_is_no_study(
    make: Callable[[Path], None],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "study.toml"
    make(path)
    for command in ("check", "run", "score"):
        assert invoke(monkeypatch, command, str(path)) == 2
        shown = capsys.readouterr()
        assert expected in shown.err
        assert len(shown.err.splitlines()) == 1


def test_all_faults_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = small_study()
    raw["pool"][0]["device"] = "a100"
    raw["pool"][1]["count"] = {"min": 3, "max": 1}
    raw["workload"]["model"] = "llama"
    raw["workload"]["requests"] = TWO_SHARES
    raw["site"] = {"pue": 0.5}
    raw["surprise"] = 1
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(raw))
    assert invoke(monkeypatch, "check", str(path)) == 2
    faults = capsys.readouterr().err.splitlines()
    assert len(faults) == 6
    for part in (
        "pool[0].device",
        "pool[1].count",
        "workload.model",
        "workload.requests",
        "site.pue",
        "surprise",
    ):
        assert sum(part in f for f in faults) == 1


def test_model_too_big_for_every_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(_with("workload.model", "llama-3.1-405b")))
    assert invoke(monkeypatch, "run", str(path), "--out", str(tmp_path / "out")) == 3
    shown = capsys.readouterr().err
    assert "lacks" in shown
    assert "GB per device" in shown
    assert (tmp_path / "out" / "run.json").exists()


def test_limits_that_no_design_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = small_study(limits={"cost_usd_per_h": 100.0}, demand={"requests_s": 5000.0})
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(raw))
    for method in ("exhaustive", "milp", "optuna"):
        out = str(tmp_path / method)
        assert invoke(monkeypatch, "run", str(path), "--out", out, "--method", method) == 3
        shown = capsys.readouterr().err
        assert "Nearest is d" in shown
        assert "of 5000 requests/s" in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "n_gpu"], "give key=value"),
        (["--set", "n_gpus=4"], "did you mean n_gpu"),
        (["--set", "n_gpu=-4"], "at least 0"),
        (["--set", "n_gpu=4", "--set", "role_gpu=both", "--set", "n_gpu=5"], "given twice"),
        (["--set", "n_gpu=5", "--set", "instance_size_gpu=2"], "multiple of instance_size_gpu"),
        (["--set", "n_gpu=0", "--set", "n_wse=0"], "every pool has 0 devices"),
        (["--set", "n_gpu=4", "--set", "link_gb_s=nan"], "a number of GB/s"),
        (["--set", "n_gpu=4", "--set", "role_gpu=cook"], "must be one of prefill"),
    ],
)
def test_bad_design(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(small_study()))
    assert invoke(monkeypatch, "score", str(path), *arguments) == 2
    shown = capsys.readouterr()
    assert expected in shown.err
    assert shown.out == ""


def test_infeasible_design_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(_with("workload.model", "llama-3.1-70b")))
    assert invoke(monkeypatch, "score", str(path), "--set", "n_wse=1", "--json") == 0
    shown = capsys.readouterr().out
    assert '"feasible": false' in shown
    assert "lacks" in shown


def test_space_that_cannot_be_numbered() -> None:
    counts = {"min": 0, "max": 100}
    pools = [{"device": "a100-40gb-sxm", "name": f"p{i}", "count": counts} for i in range(8)]
    with pytest.raises(InputError, match="designs, more than can be numbered; shorten an axis"):
        Study.from_dict(small_study(pool=pools))
