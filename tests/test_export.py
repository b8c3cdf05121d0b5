"""Figures, tables and plans as files: whole, equal to the run, and refused in a sentence where they cannot be."""

from __future__ import annotations

import json
import math
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import small_study
from small_training import data_parallel, pipelined
from typer.testing import CliRunner

from dse.cli.app import app
from dse.deploy import longest
from dse.errors import InputError
from dse.explore import Result, run, with_what_if
from dse.plan import FLEET, PREDICTED, plan_of
from dse.progress import Stop
from dse.report import load_run, write_whole_run
from dse.report.static_figures import ALL, views, write_figures
from dse.resolve import Study

HOSTILE = "<script>alert(1)</script> & co"
DISAGGREGATED = small_study(
    pool=[
        {"device": "h100-80gb-sxm", "name": "front", "count": {"min": 2, "max": 16, "step": 2}, "roles": ["prefill"],
         "instance_size": [2]},
        {"device": "a100-80gb-sxm", "name": "back", "count": {"min": 2, "max": 16, "step": 2}, "roles": ["decode"]},
    ],
    workload={"model": "llama-2-7b", "kv_dtype": "fp8",
              "requests": [{"name": "chat", "share": 1.0, "input_tokens": 1024, "output_tokens": 256}]},
)  # fmt: skip
STUDIES = {
    "stealing": small_study(workload={**small_study()["workload"], "routing": "work_stealing"}),
    "disaggregated": DISAGGREGATED,
    "data parallel": data_parallel(),
    "pipelines": pipelined(),
}


@pytest.fixture(scope="module")
def result() -> Result:
    return with_what_if(run(Study.from_dict(small_study() | {"name": HOSTILE})), Stop())


@pytest.fixture(scope="module")
def drawn(result: Result, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_figures(result, tmp_path_factory.mktemp("figures"), width_mm=90)


@pytest.fixture
def folder(result: Result, tmp_path: Path) -> Path:
    write_whole_run(result, tmp_path / "run")
    return tmp_path / "run"


def called(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_every_view_is_there_in_three_formats(result: Result, drawn: list[Path]) -> None:
    names = {path.stem for path in drawn}
    assert names == {name for name, _ in views(result, 90)}
    assert names >= {
        ALL, "output_throughput_against_cost", "output_throughput_against_provisioned_power", "under_the_roofline",
        "cost_part_by_part", "what_the_cost_of_a_token_hangs_on", "how_the_designs_are_made_up_one_line_a_design",
    }  # fmt: skip
    for name in names:
        assert {p.suffix for p in drawn if p.stem == name} == {".svg", ".pdf", ".png"}


def test_files_are_what_they_say_and_name_the_study(drawn: list[Path]) -> None:
    for path in drawn:
        data = path.read_bytes()
        if path.suffix == ".svg":
            texts = [node.text for node in ET.fromstring(data).iter() if node.tag.endswith("text")]
            assert HOSTILE in texts
        elif path.suffix == ".png":
            assert data.startswith(b"\x89PNG")
            width = int.from_bytes(data[16:20], "big")
            assert width > 500
        else:
            assert data.startswith(b"%PDF")
    svg = next(p for p in drawn if p.name == "output_throughput_against_cost.svg").read_text()
    assert "Output throughput [tok/s]" in svg
    assert "Cost [USD/h]" in svg
    assert 'fill="white"' in svg


def test_training_runs_have_figures_too(tmp_path: Path) -> None:
    files = write_figures(run(Study.from_dict(data_parallel())), tmp_path / "f")
    assert any("training_throughput_against" in f.name for f in files)


def test_tables_round_trip(folder: Path, result: Result, tmp_path: Path) -> None:
    done = called("report", folder, "--csv", tmp_path / "f.csv", "--parquet", tmp_path / "f.parquet")
    assert done.exit_code == 0, done.output
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "f.parquet"), load_run(folder).frontier)
    read = pd.read_csv(tmp_path / "f.csv")
    assert read["throughput_tok_s"].to_numpy() == pytest.approx(result.frontier["throughput_tok_s"].to_numpy(), rel=0)
    told = json.loads(called("report", folder, "--json").stdout)
    assert len(told["frontier"]) == len(result.frontier)
    assert told["run"]["study"] == HOSTILE


@pytest.mark.parametrize("raw", STUDIES.values(), ids=STUDIES)
def test_a_plan_holds_the_figures_of_its_row(raw: dict[str, Any]) -> None:
    result = run(Study.from_dict(raw))
    row = result.recommended
    assert row is not None
    plan = plan_of(result)
    for name in (*PREDICTED, *FLEET):
        assert (name in plan["predicted"] or name in plan["fleet"]) == (name in row.index)
    for name, value in plan["predicted"].items():
        if isinstance(value, float) and math.isfinite(float(row[name])):
            assert value == pytest.approx(float(row[name]), rel=1e-12)
    assert sum(p["cost_usd_per_h"] for p in plan["pools"]) + plan["link"]["link_cost_usd_per_h"] == pytest.approx(
        row["cost_usd_per_h"]
    )
    for pool in plan["pools"]:
        assert pool["n"] == row[f"n_{pool['name']}"]
        divided = pool["parallel"]
        assert divided["tensor"] * divided["pipeline"] * divided["data"] == pool["n"]
        memory = dict(pool["memory_device_byte"])
        assert memory.pop("whole") == pytest.approx(sum(memory.values()))
        assert min(memory.values()) >= -1e-3
    json.dumps(plan, allow_nan=False)


def test_any_design_of_the_run_has_a_plan(result: Result) -> None:
    row = result.frontier.iloc[0]
    plan = plan_of(result, str(row["design_id"]))
    assert plan["design_id"] == row["design_id"]
    assert plan["recommended"] == (row["design_id"] == result.info["recommended"]["design_id"])
    with pytest.raises(InputError, match="--design: no design of the run named 'd99999999'"):
        plan_of(result, "d99999999")
    broken = result.candidates[~result.candidates["feasible"]]
    if len(broken):
        with pytest.raises(InputError, match="is not feasible"):
            plan_of(result, str(broken["design_id"].iloc[0]))


def test_vllm_and_dynamo_are_told_what_the_plan_says() -> None:
    plan = plan_of(run(Study.from_dict(DISAGGREGATED)))
    commands = {one["pool"]: one for one in plan["deploy"]["vllm"]["pools"]}
    pools = {pool["name"]: pool for pool in plan["pools"]}
    assert set(commands) == set(pools) == {"front", "back"}
    for name, command in commands.items():
        words = shlex.split(command["command"])
        assert words == command["arguments"]
        option = dict(zip(words[3::2], words[4::2], strict=True))
        assert option["--tensor-parallel-size"] == str(pools[name]["instance_size"])
        assert option["--max-model-len"] == str(longest(plan)) == "1280"
        assert option["--kv-cache-dtype"] == "fp8"
        assert float(option["--gpu-memory-utilization"]) == pytest.approx(0.9)
        assert int(option["--max-num-seqs"]) <= pools[name]["design"]["max_decode_batch"]
        role = json.loads(option["--kv-transfer-config"])["kv_role"]
        assert role == {"front": "kv_producer", "back": "kv_consumer"}[name]
        assert command["instances"] * pools[name]["instance_size"] == pools[name]["n"]
    manifest = plan["deploy"]["dynamo"]["manifest"]
    services = manifest["spec"]["services"]
    assert services["FrontWorker"]["subComponentType"] == "prefill"
    assert services["BackWorker"]["replicas"] == commands["back"]["instances"]
    assert "--disaggregation-mode" in services["BackWorker"]["extraPodSpec"]["mainContainer"]["args"]


def test_a_wafer_is_no_target_of_vllm_and_says_so() -> None:
    raw = small_study(limits={"n_wse": {"min": 1}, "n_gpu": {"min": 1}})
    plan = plan_of(run(Study.from_dict(raw)))
    told = plan["deploy"]["vllm"]
    assert [one["pool"] for one in told["pools"]] == ["gpu"]
    assert any("wse (wse-3) is no GPU" in note for note in told["notes"])


def test_a_run_folder_has_its_plan_and_an_infeasible_one_has_none(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["design_id"] == load_run(folder).info["recommended"]["design_id"]
    write_whole_run(run(Study.from_dict(small_study(limits={"power_w": 10.0}))), folder)
    assert not (folder / "plan.json").exists()
    done = called("export", folder)
    assert done.exit_code != 0
    assert "no feasible design" in str(done.exception)
    figures = called("report", folder, "--figures", folder.parent / "figures")
    assert "nothing to draw" in str(figures.exception)


def test_the_command_writes_a_plan_or_prints_it(folder: Path, tmp_path: Path, result: Result) -> None:
    other = str(result.frontier["design_id"].iloc[0])
    done = called("export", folder, "--design", other, "--plan", tmp_path / "other.json")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "other.json").read_text())["design_id"] == other
    assert json.loads(called("export", folder, "--plan", "-").stdout)["format"] == "heterodse-plan/1"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("export", "nowhere"), "no such run folder"),
        (("export", "RUN", "--plan", "."), "is a folder; name a file"),
        (("export", "RUN", "--plan", "nowhere/plan.json"), "cannot be written"),
        (("export", "RUN", "--design", "x"), "no design of the run named 'x'"),
        (("report", "RUN", "--csv", "."), "is a folder; name a file"),
        (("report", "RUN", "--parquet", "nowhere/f.parquet"), "cannot be written"),
        (("report", "RUN", "--figures", "RUN/run.json"), "is a file; name a folder"),
        (("report", "RUN", "OTHER", "--figures", "f"), "--figures: is for one run"),
    ],
)
def test_bad_calls_are_told_in_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(folder.parent)
    done = called(*(a.replace("RUN", folder.name) for a in call))
    assert done.exit_code != 0
    assert said in str(done.exception or done.output)
