"""`dse validate` through the command: figures for people and machines, pictures, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from one_process import dse
from toy_measurements import TOY, filled, layout, own_files, static

STATIC = "serving, static batches"
KEYS = {
    "data", "device", "phase", "quantity", "profile", "n", "median_pct", "p90_pct", "bias_pct", "coverage80", "reason",
    "worst",
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Rows of a made-up device, one of them 25 % faster than its numbers say, and two that nothing is known of."""
    own_files(tmp_path, TOY)
    raw = filled(static(model=["llama-2-7b", "llama-2-13b"], n_devices=[1]), layout(STATIC), TOY)
    raw.loc[4, "e2e_latency_s"] *= 0.8
    unknown = raw.iloc[:2].assign(model=["BERT", "llama-2-7b"], device=["toy", "Abacus"])
    pd.concat([raw, unknown]).to_csv(tmp_path / "mine.csv", index=False)
    return tmp_path / "mine.csv"


def test_command_of_its_own_process(table: Path) -> None:
    command = [sys.executable, "-m", "dse", "validate", str(table), "--device", f"toy={table.parent / 'toy.toml'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "median %" in done.stdout
    assert "Warning" not in done.stderr


def test_json_has_these_keys_and_no_others(table: Path) -> None:
    own = ("--device", f"toy={table.parent / 'toy.toml'}")
    done = dse("validate", table, *own, "--json")
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout)
    assert set(line) == KEYS
    assert (line["data"], line["phase"], line["quantity"], line["n"]) == ("mine", "prefill+decode", "e2e_s", 24)
    assert (line["median_pct"], line["p90_pct"], line["coverage80"], line["reason"]) == (0.0, 0.0, None, "")
    assert len(line["worst"]) == 5
    assert set(line["worst"][0]) == {"line", "model", "setting", "measured", "predicted", "error_pct"}
    assert line["worst"][0]["line"] == 6
    assert line["worst"][0]["error_pct"] == pytest.approx(25.0)
    assert "mine: 1 rows not used: model not in the catalogue: BERT" in done.stderr
    assert "mine: 1 rows not used: device not in the catalogue: Abacus" in done.stderr
    folds = dse("validate", table, *own, "--json", "--folds")
    (line,) = json.loads(folds.stdout)
    assert set(line) == KEYS | {"held_out"}
    assert [set(h) for h in line["held_out"]] == [{"by", "n", "median_pct", "p90_pct", "bias_pct", "coverage80"}] * 2


def test_people_get_a_line_and_its_worst_rows(table: Path) -> None:
    own = ("--device", f"toy={table.parent / 'toy.toml'}")
    done = dse("validate", table, *own, "--worst", "--folds")
    assert done.returncode == 0, done.stderr
    for part in ("median %", "held out", "by model", "e2e_s", "furthest off", "line 6: +25 %"):
        assert part in done.stdout
    assert "not used" in done.stderr
    assert "not used" not in done.stdout


def test_out_holds_every_row_and_a_picture(table: Path) -> None:
    out = table.parent / "found" / "here"
    done = dse("validate", table, "--device", f"toy={table.parent / 'toy.toml'}", "--out", out)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in out.iterdir()) == ["mine-e2e_s.png", "mine-e2e_s.svg", "rows.csv"]
    rows = pd.read_csv(out / "rows.csv")
    assert rows["line"].tolist() == list(range(2, 26))
    assert rows["error_pct"].abs().max() == pytest.approx(25.0)
    assert rows["predicted"].to_numpy() == pytest.approx(rows["measured"] * (1 + rows["error_pct"] / 100))
    assert (out / "mine-e2e_s.svg").read_text().startswith("<svg")
    assert (out / "mine-e2e_s.png").read_bytes().startswith(b"\x89PNG")


def test_without_data_it_prints_what_the_catalogue_knows_of_itself() -> None:
    shown = dse("validate")
    assert shown.returncode == 0, shown.stderr
    for part in ("h100-80gb-sxm", "tensorrt-llm", "waferllm", "carried"):
        assert part in shown.stdout
    rows: list[dict[str, Any]] = json.loads(dse("validate", "--json").stdout)
    assert len(rows) > 40
    assert all(row["source"] and row["low"] < row["high"] for row in rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "the header is of no known layout"),
        ("", "is not a CSV table"),
        ("device,n_devices,framework,model,batch,input_tokens,output_tokens,e2e_latency_s\nH100,1,vLLM,x,1,9,9,soon\n",
         "mine.csv:2 [e2e_latency_s]: got 'soon', must be a number of at least 0"),
    ],
)  # fmt: skip
def test_bad_tables_exit_2_with_a_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(text, encoding="utf-8")
    done = dse("validate", tmp_path / "mine.csv")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr


def test_bad_options_exit_2_with_a_sentence(table: Path) -> None:
    for options, words in (
        (("--device", "toy"), "--device 'toy': give NAME=FILE.toml"),
        (("--model", "x=gone.json"), "--model x: there is no file gone.json"),
        (("--profile", "vlm"), "vlm"),
        (("--out", table), "cannot be written"),
    ):
        own = ("--device", f"toy={table.parent / 'toy.toml'}") if options[0] == "--out" else ()
        target = table if options[0] != "--profile" else written(table.parent)
        done = dse("validate", target, *own, *options)
        assert done.returncode == 2, (options, done.stdout)
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert "internal error" not in done.stderr


def written(folder: Path) -> Path:
    """A good table of a device that the catalogue has."""
    path = folder / "known.csv"
    filled(static(n_devices=[1], batch=[1]), layout(STATIC), TOY).assign(device="H100").to_csv(path, index=False)
    return path
