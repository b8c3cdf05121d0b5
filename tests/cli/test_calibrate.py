"""`dse calibrate` through the command: a device file that loads and scores, its residuals, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
from conftest import small_study
from one_process import dse
from toy_measurements import TOY, apart, filled, layout, own_files, reduced, static

from dse.catalog import load_catalog, load_device_file


@pytest.fixture
def serving(tmp_path: Path) -> Path:
    """Static batches of the made-up device, and its file with wrong numbers."""
    own_files(tmp_path)
    filled(static(), layout("serving, static batches"), TOY, 0.02).to_csv(tmp_path / "mine.csv", index=False)
    return tmp_path / "mine.csv"


def test_device_file_validates_against_its_own_rows_and_scores(serving: Path, tmp_path: Path) -> None:
    new = tmp_path / "sub" / "new.toml"
    done = dse("calibrate", serving, "--phase", "serving", "--device", tmp_path / "toy.toml", "--name", "toy-vllm",
               "--out", new, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {
        "device_file", "residuals", "rows", "numbers", "left_out", "errors", "held_out", "interval80",
    }  # fmt: skip
    assert found["rows"] == len(static())
    assert [n["number"] for n in found["numbers"]] == ["compute", "memory", "fixed_layer_s", "sequence_s"]
    assert found["numbers"][0]["goes_to"] == ["prefill.compute", "decode.compute"]
    assert found["numbers"][0]["value"] == pytest.approx(0.55, rel=0.05)
    device = load_device_file(new)
    assert device.name == "toy-vllm"
    assert device.efficiency["decode"].memory == pytest.approx(0.75, rel=0.05)
    residuals = pd.read_csv(found["residuals"])
    assert Path(found["residuals"]) == new.with_name("new-residuals.csv")
    assert residuals["line"].tolist() == list(range(2, len(static()) + 2))
    (line,) = json.loads(dse("validate", serving, "--device", f"toy={new}", "--json").stdout)
    assert line["median_pct"] == pytest.approx(found["errors"]["e2e_s"]["median_pct"], rel=1e-6)
    study = small_study(pool=[{"device": str(new), "name": "gpu", "count": [4]}])
    study.pop("link")
    (tmp_path / "study.toml").write_text(tomli_w.dumps(study), encoding="utf-8")
    row = json.loads(dse("score", tmp_path / "study.toml", "--json").stdout)
    assert 0 < row["throughput_low_tok_s"] < row["throughput_tok_s"]


def test_people_read_numbers_and_errors(serving: Path, tmp_path: Path) -> None:
    done = dse("calibrate", serving, "--phase", "serving", "--device", "toy.toml", "--hold", "compute", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for part in ("72 rows", "memory", "to", "(80 %)", "e2e_s: error", "that the fit did not see", "device file"):
        assert part in done.stdout
    assert "\n  compute" not in done.stdout  # held
    assert (tmp_path / "toy-vllm.toml").is_file()
    assert load_device_file(tmp_path / "toy-vllm.toml").efficiency["decode"].compute == 0.4


def test_catalogue_device_starts_from_the_hardware(tmp_path: Path) -> None:
    raw = filled(reduced(), layout("all-reduce, NCCL"), TOY, 0.01).assign(system="h100_sxm")
    raw.to_csv(tmp_path / "links.csv", index=False)
    done = dse("calibrate", tmp_path / "links.csv", "--phase", "link", "--device", "h100-80gb-sxm", "--out",
               tmp_path / "h.toml")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, known = load_device_file(tmp_path / "h.toml"), load_catalog().device("h100-80gb-sxm", "hardware")
    assert found.name == "h100-80gb-sxm-nccl"
    assert found.link_latency_s == pytest.approx(6e-6, rel=0.05)
    assert found.link_efficiency * known.link_byte_s == pytest.approx(0.7 * 300e9, rel=0.05)
    assert found.efficiency["decode"].compute == known.efficiency["decode"].compute


def test_table_in_place_of_the_law(tmp_path: Path) -> None:
    own_files(tmp_path)
    filled(apart(), layout("serving, phases apart"), TOY).to_csv(tmp_path / "mine.csv", index=False)
    done = dse("calibrate", tmp_path / "mine.csv", "--phase", "prefill", "--device", tmp_path / "toy.toml", "--table",
               "--out", tmp_path / "t.toml")  # fmt: skip
    assert done.returncode == 0, done.stderr
    e = load_device_file(tmp_path / "t.toml").efficiency["prefill"]
    assert len(e.table_flop) > 10
    assert list(e.table_s) == sorted(e.table_s)


def test_refusals_and_bad_input_exit_2_without_a_traceback(serving: Path, tmp_path: Path) -> None:
    filled(apart(), layout("serving, phases apart"), TOY).to_csv(tmp_path / "apart.csv", index=False)
    toy = ("--device", tmp_path / "toy.toml")
    for arguments, words in (
        ((serving, "--phase", "serving"), "--device is missing"),
        ((serving, "--phase", "serving", "--device", "h100"), "no device named 'h100'"),
        ((serving, "--phase", "serving", "--device", "h100-80gb-sxm"), "no row of device 'h100-80gb-sxm'"),
        ((serving, "--phase", "train", *toy), "measures no train"),
        ((serving, "--phase", "serving", *toy, "--hold", "speed"), "no such number of phase serving"),
        ((serving, "--phase", "serving", *toy, "--stack", "sglang"), "no such rows of this device"),
        ((serving, "--phase", "serving", *toy, "--out", tmp_path / "x.csv"), "a device file ends in .toml"),
        ((tmp_path / "apart.csv", "--phase", "decode", *toy), "cannot tell compute of decode"),
        ((tmp_path / "gone.csv", "--phase", "decode", *toy), "there is no such file"),
        ((tmp_path, "--phase", "alpha"), "holds no candidates.parquet"),
    ):
        done = dse("calibrate", *arguments, folder=tmp_path)
        assert done.returncode == 2, (arguments, done.stdout)
        assert words in " ".join(done.stderr.split()), (arguments, done.stderr)
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*-residuals.csv"))


@pytest.mark.parametrize("text", ["", "\xff\xfe\x00", "a,b\n1,2\n"])
def test_files_that_are_no_tables_exit_2(text: str, tmp_path: Path) -> None:
    """Also beside a device file of one's own, whose name is looked for in the table first."""
    own_files(tmp_path)
    (tmp_path / "bad.csv").write_bytes(text.encode("latin-1"))
    done = dse("calibrate", tmp_path / "bad.csv", "--phase", "decode", "--device", tmp_path / "toy.toml")
    assert done.returncode == 2, done.stderr
    assert "bad.csv" in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.usefixtures("blank_page")
def test_alpha_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(tomli_w.dumps(small_study()), encoding="utf-8")
    assert dse("run", tmp_path / "study.toml", "--out", tmp_path / "run").returncode == 0
    done = dse("calibrate", tmp_path / "run", "--phase", "alpha", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["alpha"]) == 4
    assert all(value >= 0 for value in found["alpha"].values())
    assert found["pools"] > 10


def test_outputs_that_cannot_be_are_refused_before_fitting(serving: Path, tmp_path: Path) -> None:
    before = serving.read_text(encoding="utf-8")
    mine = tmp_path / "w-residuals.csv"
    mine.write_text(before, encoding="utf-8")
    common = ("--phase", "serving", "--device", tmp_path / "toy.toml")
    for file, options, words in (
        (serving, ("--name", "bad name!"), "--name 'bad name!'"),
        (serving, ("--name", "x", "--out", tmp_path / "x.json"), "ends in .toml"),
        (mine, ("--name", "w", "--out", tmp_path / "w.toml"), "would overwrite"),
    ):
        done = dse("calibrate", file, *common, *options)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert mine.read_text(encoding="utf-8") == before
    assert not (tmp_path / "w.toml").exists()
