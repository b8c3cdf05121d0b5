"""Measurement tables: recognised by header, read in SI, names resolved, and bad ones refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_measurements import own_files

from dse.calibration.data import LAYOUTS, Measurements, Names, load_all, named_files, read_measurements
from dse.calibration.fit import log_errors
from dse.calibration.validate import Validation, validations
from dse.errors import InputError

GIVEN: dict[str, str] = {
    "serving, static batches": """device,n_devices,framework,model,batch,input_tokens,output_tokens,e2e_latency_s
A100,2,TensorRT-LLM,Llama-2-7b-hf,4,300,100,2.5
H100,1,vLLM,Mistral-9B-v9,4,300,100,2.5
""",
    "serving under load": """backend,model_path,system,precision,isl,osl,concurrency,tp_size,pp_size,attention_dp_size,\
silicon_ttft_ms,silicon_tpot_ms
trtllm,meta-llama/Llama-3.1-70B-Instruct,h200_sxm,FP8,900,300,24,4,1,1,420,11.5
vllm,meta-llama/Llama-3.1-70B,h200_sxm,fp8,900,300,24,4,2,1,420,11.5
""",
    "serving, phases apart": """model,device,tp,dtype,batch,input_tokens,output_tokens,prefill_ms,decode_ms_per_step,\
avg_power_frac_tdp,flag
llama2-70b,H100-80GB-SXM,4,fp16,2,700,64,80,30,0.55,
llama2-70b,H100-80GB-SXM,4,fp16,2,700,64,80,30,0.55,odd
""",
    "serving, one request": """metric,model,device,n_devices,software,core_grid,input_tokens,value_tok_s_per_request
prefill,LLaMA3-8B,WSE-2,1,WaferLLM,400x400,2000,16000
decode batch 1,LLaMA3-8B,WSE-2,1,WaferLLM,400x400,2000,1600
end to end,LLaMA3-8B,WSE-2,1,WaferLLM,400x400,2000,900
""",
    "training, sharded": """device,model,seq_len,n_gpus,precision,sharding,act_ckpt,microbatch_per_gpu,\
global_batch_seqs,step_time_s
A100-80GB-SXM,7b,4096,16,amp_bf16,FULL_SHARD,True,2,96,12.5
H100-80GB-SXM,7b,4096,16,amp_fp8,FULL_SHARD,False,2,96,6.5
A100-80GB-SXM,7b,4096,16,amp_bf16,SHARD_GRAD_OP,True,2,96,12.5
""",
    "training, wafer": """device,n_systems,model,seq_len,global_batch_seqs,samples_per_s
WSE-3,2,GPT-3-13B,2048,200,50
""",
    "matrix products": """system,gemm_dtype,m,n,k,latency_ms
h100_sxm,bfloat16,1000,2000,3000,0.04
h100_sxm,fp8,1000,2000,3000,0.025
""",
    "attention, prefill": """system,batch_size,isl,num_heads,kv,attn_dtype,latency_ms
b200_sxm,2,1000,32,8,bfloat16,0.1
""",
    "attention, decode": """system,batch_size,kv_len,num_heads,kv,kv_cache_dtype,latency_ms
b200_sxm,8,1000,32,4,fp8,0.03
""",
    "all-reduce, NCCL": """system,op_name,nccl_dtype,num_gpus,message_size,latency_ms
h100_sxm,all_reduce,half,8,1000000,0.09
h100_sxm,all_gather,half,8,1000000,0.05
""",
    "all-reduce, TensorRT-LLM": """system,allreduce_dtype,num_gpus,message_size,latency_ms
a100_sxm,bfloat16,4,500,0.006
""",
}  # fmt: skip
"""A table of each layout: the first row is looked at closely, the others are beside the point of the layout."""
LOOK: dict[str, dict[str, Any]] = {
    "serving, static batches": {
        "device": "a100-40gb-sxm", "model": "llama-2-7b", "stack": "tensorrt-llm", "profile": "tensorrt-llm",
        "dtype": "bf16", "shape": "300", "g": 2, "batch": 4, "input_tokens": 300, "output_tokens": 100, "e2e_s": 2.5,
    },
    "serving under load": {
        "device": "h200-141gb-sxm", "model": "llama-3.1-70b", "stack": "tensorrt-llm", "profile": "tensorrt-llm",
        "dtype": "fp8", "g": 4, "users": 24, "input_tokens": 900, "output_tokens": 300, "ttft_s": 0.42,
        "tpot_s": 0.0115,
    },
    "serving, phases apart": {
        "device": "h100-80gb-sxm", "model": "llama-2-70b", "stack": "splitwise", "profile": "splitwise", "g": 4,
        "batch": 2, "prefill_s": 0.08, "decode_step_s": 0.03, "power_mean_frac": 0.55,
    },
    "serving, one request": {
        "device": "wse-2", "model": "llama-3.1-8b", "stack": "waferllm", "profile": "waferllm", "shape": "400x400",
        "g": 1, "prefill_s": 2000 / 16000,
    },
    "training, sharded": {
        "device": "a100-80gb-sxm", "model": "mpt-7b", "stack": "fsdp", "profile": "fsdp", "dtype": "bf16", "n": 16,
        "micro_batch": 2, "global_batch": 96, "sequence_tokens": 4096, "recompute": "full", "step_s": 12.5,
    },
    "training, wafer": {
        "device": "wse-3", "model": "gpt-3-13b", "stack": "cerebras", "profile": "cerebras", "n": 2,
        "global_batch": 200, "sequence_tokens": 2048, "step_s": 4.0,
    },
    "matrix products": {
        "device": "h100-80gb-sxm", "profile": "default", "stack": "kernel", "dtype": "bf16", "flop": 12e9,
        "moved_byte": 2 * (3e6 + 6e6 + 2e6), "call_s": 4e-5,
    },
    "attention, prefill": {
        "device": "b200-180gb-sxm", "dtype": "bf16", "flop": 2 * 2 * 32 * 128 * 1e6,
        "moved_byte": 2 * 1000 * 128 * 2 * (32 + 32 + 8 + 8), "call_s": 1e-4,
    },
    "attention, decode": {
        "device": "b200-180gb-sxm", "dtype": "fp8", "flop": 4 * 8 * 32 * 128 * 1000,
        "moved_byte": 2 * 8 * 1000 * 4 * 128, "call_s": 3e-5,
    },
    "all-reduce, NCCL": {
        "device": "h100-80gb-sxm", "stack": "nccl", "dtype": "bf16", "g": 8, "message_byte": 2e6, "allreduce_s": 9e-5,
    },
    "all-reduce, TensorRT-LLM": {
        "device": "a100-80gb-sxm", "stack": "tensorrt-llm", "dtype": "bf16", "g": 4, "message_byte": 1000,
        "allreduce_s": 6e-6,
    },
}  # fmt: skip
SKIPPED: dict[str, dict[str, int]] = {
    "serving, static batches": {"model not in the catalogue: Mistral-9B-v9": 1},
    "serving under load": {"pipeline or attention data parallel, which the serving model does not have": 1},
    "serving, phases apart": {"flagged in the table: odd": 1},
    "serving, one request": {"neither prefill nor decode at batch 1": 1},
    "training, sharded": {"not fully sharded": 1},
    "all-reduce, NCCL": {"a collective that the model does not have": 1},
}


def read(text: str, folder: Path, names: Names | None = None, profile: str = "") -> Measurements:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return read_measurements(path, names or Names(), profile)


def test_a_table_of_every_layout_is_tried() -> None:
    assert set(GIVEN) == set(LOOK) == {one.name for one in LAYOUTS}


@pytest.mark.parametrize("name", GIVEN)
def test_layout_is_recognised_and_read_in_si(name: str, tmp_path: Path) -> None:
    m = read(GIVEN[name], tmp_path)
    assert m.layout.name == name
    assert m.file == "mine"
    row = m.rows.iloc[0]
    for column, wanted in LOOK[name].items():
        assert row[column] == (pytest.approx(wanted) if isinstance(wanted, float) else wanted), column
    assert row["line"] == 2
    assert m.skipped == SKIPPED.get(name, {})
    assert len(m.rows) + sum(m.skipped.values()) == len(GIVEN[name].splitlines()) - 1


@pytest.mark.parametrize("name", GIVEN)
def test_every_quantity_of_a_usable_row_is_predicted(name: str, tmp_path: Path) -> None:
    """Within a factor of seven: the hand-written times are near what such devices do; a pass is no single kernel."""
    m = read(GIVEN[name], tmp_path)
    first = m.where(m.rows.index == 0)
    device = Names().device(str(first.rows["device"].iloc[0]), str(first.rows["profile"].iloc[0]))
    errors = log_errors(m.layout, first.rows, device, Names().model)
    measured = [q.name for q in m.layout.quantities if first.rows[q.name].notna().all()]
    assert measured
    assert errors[measured].abs().max(axis=None) < (4.0 if m.layout.kernels else 2.0)
    assert errors.drop(columns=measured).isna().all(axis=None)


def test_columns_beyond_the_layout_and_their_order_do_not_matter(tmp_path: Path) -> None:
    head, *rows = GIVEN["all-reduce, TensorRT-LLM"].splitlines()
    text = "\n".join([head + ",note", *(row + ",mine" for row in rows)])
    assert read(text, tmp_path).layout.name == "all-reduce, TensorRT-LLM"
    turned = "\n".join(",".join(reversed(line.split(","))) for line in [head, *rows])
    assert read(turned, tmp_path).rows.iloc[0]["message_byte"] == 1000


def test_stack_names_the_profile_where_the_device_has_it(tmp_path: Path) -> None:
    rows = ["TRT", "vllm", "sglang", "llama.cpp"]
    head, first, *_ = GIVEN["serving, static batches"].splitlines()
    m = read("\n".join([head, *(first.replace("TensorRT-LLM", r) for r in rows)]), tmp_path)
    assert m.rows["stack"].tolist() == ["tensorrt-llm", "vllm", "sglang", "llama.cpp"]
    assert m.rows["profile"].tolist() == ["tensorrt-llm", "vllm", "default", "default"]
    assert set(read(GIVEN["serving, static batches"], tmp_path, profile="hardware").rows["profile"]) == {"hardware"}


def test_rows_of_one_setting_that_disagree_are_not_used(tmp_path: Path) -> None:
    head, first, *_ = GIVEN["serving, static batches"].splitlines()
    m = read(f"{head},dup_conflict\n{first},True\n{first},False\n", tmp_path)
    assert m.skipped == {"two rows of one setting disagree": 1}
    assert m.rows["line"].tolist() == [3]


def test_unknown_devices_and_models_are_counted(tmp_path: Path) -> None:
    head = GIVEN["serving, static batches"].splitlines()[0]
    rows = ["Box,1,vLLM,llama-2-7b,1,9,9,1", "Box,1,vLLM,llama-2-7b,2,9,9,1", "H100,1,vLLM,BERT,1,9,9,1",
            "H100,1,vLLM,llama-2-7b,1,9,9,1", "H100,1,vLLM,llama-2-7b,1,9,9,"]  # fmt: skip
    m = read("\n".join([head, *rows]), tmp_path)
    assert m.skipped == {
        "device not in the catalogue: Box": 2, "model not in the catalogue: BERT": 1, "no time given": 1,
    }  # fmt: skip
    assert m.rows["line"].tolist() == [5]


def test_own_devices_and_models_come_in_by_name(tmp_path: Path) -> None:
    own = own_files(tmp_path)
    config = tmp_path / "mine.json"
    shape = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 8192,
             "vocab_size": 32000}  # fmt: skip
    config.write_text(json.dumps(shape), encoding="utf-8")
    head = GIVEN["serving, static batches"].splitlines()[0]
    text = f"{head}\ntoy,1,vLLM,small,1,9,9,1\nH100,1,vLLM,small,1,9,9,1\n"
    assert read(text.replace("H100", "Box"), tmp_path).skipped.values()
    names = Names(devices=own.devices, models={"small": config})
    m = read(text, tmp_path, names)
    assert not m.skipped
    assert m.rows["device"].tolist() == [str(own.devices["toy"]), "h100-80gb-sxm"]
    assert m.rows["profile"].tolist() == ["default", "vllm"]
    assert names.device(m.rows["device"][0], "default").name == "toy"
    assert names.model(m.rows["model"][0]).layers == 16


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "shown"), [("soon", "'soon'"), ("-2.5", "'-2.5'"), ("inf", "'inf'"), ("1e400", "'inf'")]
)
def test_bad_numbers_are_named_with_line_and_column(cell: str, shown: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(GIVEN["serving, static batches"].replace("4,300,100,2.5", f"4,300,100,{cell}", 1), tmp_path)
    assert caught.value.faults == (f"mine.csv:2 [e2e_latency_s]: got {shown}, must be a number of at least 0",)


def test_every_bad_column_is_reported_and_many_bad_cells_are_counted(tmp_path: Path) -> None:
    head, first, *_ = GIVEN["serving, static batches"].splitlines()
    bad = first.replace(",4,300,", ",many,-1,")
    with pytest.raises(InputError) as caught:
        read("\n".join([head, *[bad] * 7]), tmp_path)
    faults = caught.value.faults
    assert sum("[batch]: got 'many'" in f for f in faults) == 3
    assert "mine.csv [batch]: 4 more cells like these" in faults
    assert sum("[input_tokens]: got '-1'" in f for f in faults) == 3


def test_missing_times_are_not_faults(tmp_path: Path) -> None:
    """An empty cell, or the word for one, says that nothing was measured."""
    for cell in ("", "nan", "NA"):
        m = read(GIVEN["serving, static batches"].replace("4,300,100,2.5", f"4,300,100,{cell}", 1), tmp_path)
        assert m.skipped["no time given"] == 1


def spoiled(name: str, column: str, cell: str) -> str:
    """A table whose first row is good, and whose second is that with one cell changed."""
    head, first, *_ = GIVEN[name].splitlines()
    cells = dict(zip(head.split(","), first.split(","), strict=True)) | {column: cell}
    return f"{head}\n{first}\n{','.join(cells.values())}\n"


@pytest.mark.parametrize(
    ("name", "column", "cell"),
    [
        ("serving, static batches", "batch", ""),
        ("serving, static batches", "batch", "0"),
        ("serving, static batches", "n_devices", ""),
        ("serving, static batches", "n_devices", "0"),
        ("serving, static batches", "e2e_latency_s", "0"),
        ("serving, static batches", "framework", ""),
        ("serving, static batches", "device", ""),
        ("serving, static batches", "model", ""),
        ("serving under load", "precision", "int3"),
        ("serving under load", "precision", ""),
        ("serving under load", "concurrency", "0"),
        ("serving, one request", "value_tok_s_per_request", "0"),
        ("training, sharded", "microbatch_per_gpu", ""),
        ("training, sharded", "n_gpus", "0"),
        ("training, wafer", "n_systems", ""),
        ("training, wafer", "samples_per_s", "0"),
        ("matrix products", "gemm_dtype", "int3"),
        ("matrix products", "m", ""),
        ("all-reduce, NCCL", "num_gpus", "0"),
        ("all-reduce, NCCL", "latency_ms", "0"),
    ],
)
def test_a_row_that_cannot_be_compared_is_counted_or_refused(name: str, column: str, cell: str, tmp_path: Path) -> None:
    """Neither a traceback nor a row without an error among the worst: the cell is named, or the row is not used."""
    fault, lines, m = "", list[Validation](), None
    try:
        m = read(spoiled(name, column, cell), tmp_path)
        lines = list(validations(m, Names(), folds=False))
    except InputError as error:
        fault = str(error)
    if m is None:
        assert "mine.csv:3" in fault
        assert column in fault
        return
    assert lines
    for line in lines:
        assert np.isfinite(line.rows[["measured", "predicted", "error_pct"]].to_numpy(dtype=float)).all()
        assert line.rows["line"].tolist() == [2]
    assert sum(m.skipped.values()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device,n_devices,framework,model,batch,input_tokens\nA100,1,vLLM,llama-2-7b,1,9\n",
         "mine.csv: the header is of no known layout; nearest is 'serving, static batches', which also needs "
         "e2e_latency_s, output_tokens"),
        ("a,b\n1,2\n", "mine.csv: the header is of no known layout"),
        ("", "mine.csv: is not a CSV table (No columns to parse from file)"),
        (GIVEN["training, wafer"].splitlines()[0] + "\n", "mine.csv: has a header but no rows; add measurements"),
        ('a,b\n1,2\n"3,4,5,6\n7', "mine.csv:4: has 1 fields, the header has 2"),
        ("a,b\n1,2,\n", "mine.csv:2: has 3 fields, the header has 2"),
        ("a;b\n1;2\n", "mine.csv: fields are separated by ';'; separate them by commas"),
        ("a,b,a\n1,2,3\n", "mine.csv [a]: the column is there twice; keep one"),
    ],
)  # fmt: skip
def test_files_that_are_no_tables(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(text, tmp_path)
    assert len(caught.value.faults) == 1
    assert caught.value.faults[0].startswith(words)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv: there is no such file"):
        read_measurements(tmp_path / "nowhere.csv")
    (tmp_path / "raw.csv").write_bytes(b"\xff\xfe\x00device,\x80\n\x81\x82")
    with pytest.raises(InputError, match=r"raw\.csv: is not a CSV table"):
        read_measurements(tmp_path / "raw.csv")


def test_folders_give_their_known_tables_and_all_faults_together(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no CSV file of a known layout"):
        load_all([tmp_path], Names(), "")
    (tmp_path / "prices.csv").write_text("device,price\nA100,1\n", encoding="utf-8")
    for i, name in enumerate(("training, wafer", "all-reduce, NCCL")):
        (tmp_path / f"t{i}.csv").write_text(GIVEN[name], encoding="utf-8")
    found = load_all([tmp_path], Names(), "")
    assert [m.layout.name for m in found] == ["training, wafer", "all-reduce, NCCL"]
    for i in (0, 1):
        file = tmp_path / f"t{i}.csv"
        file.write_text(file.read_text().replace(",50\n", ",-50\n").replace("0.09", "soon"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_all([tmp_path, tmp_path / "none.csv"], Names(), "")
    assert [f.split(":")[0].rsplit("/", 1)[-1] for f in caught.value.faults] == ["t0.csv", "t1.csv", "none.csv"]


def test_folder_with_an_empty_file_beside_its_tables(tmp_path: Path) -> None:
    """What is not a known table in a folder is passed over, as a table of prices is."""
    (tmp_path / "a.csv").write_text(GIVEN["training, wafer"], encoding="utf-8")
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    (tmp_path / "raw.csv").write_bytes(b"\xff\xfe\x00\x80\x81")
    assert [m.file for m in load_all([tmp_path], Names(), "")] == ["a"]


def test_named_files(tmp_path: Path) -> None:
    own = own_files(tmp_path).devices["toy"]
    assert named_files([f"Box={own}"], "--device", ".toml") == {"Box": own}
    with pytest.raises(InputError) as caught:
        named_files(["Box", f"={own}", "Box=that.json", "Box=gone.toml"], "--device", ".toml")
    faults = caught.value.faults
    assert [("give NAME=FILE.toml" in f, "there is no file" in f) for f in faults] == [
        (True, False), (True, False), (True, False), (False, True),
    ]  # fmt: skip
