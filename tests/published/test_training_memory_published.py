"""Memory in training against what papers print; `pytest -rP` shows every error.

ZeRO: Rajbhandari et al., SC20, doi:10.1109/SC41405.2020.00024 (tables and sections as in arXiv 1910.02054v3).
Korthikanti: Korthikanti et al., arXiv 2205.05198. Its figures 1 and 7 are bars; their values are taken from Calculon
(Isaev et al., SC23, doi:10.1145/3581784.3607102), calculon/llm/validation.py, which gives them in GiB and percent.

Most of these are the authors' own arithmetic, so agreement says that the formulas are theirs; figure 1's values carry
all digits of equation 5. Measured are the sizes that ran (ZeRO, table 2) and that a training ran at all.
"""

from __future__ import annotations

import pytest

from dse.model.training_memory import activation_byte, boundary_byte, state_byte

GIB = 1024.0**3
SEQUENCE = 2048
A100_BYTE = 80e9

MEGATRON = {
    "22B": {"heads": 64, "hidden": 6144, "layers": 48, "micro_batch": 4, "pipeline": 1, "chunks": 0},
    "175B": {"heads": 96, "hidden": 12288, "layers": 96, "micro_batch": 1, "pipeline": 8, "chunks": 3},
    "530B": {"heads": 128, "hidden": 20480, "layers": 105, "micro_batch": 1, "pipeline": 35, "chunks": 3},
    "1T": {"heads": 160, "hidden": 25600, "layers": 128, "micro_batch": 1, "pipeline": 64, "chunks": 0},
}
"""Korthikanti, table 3 and section 6: tensor parallel 8, sequences of 2048, three chunks where interleaved."""


def compare(what: str, got: float, printed: float, unit: str) -> float:
    """Relative error, printed."""
    error = got / printed - 1.0
    print(f"{what}: {got:.4g} {unit}, published {printed:.4g}, error {error:+.2%}")
    return error


def layer_byte(name: str, recompute: str, sequence_parallel: bool) -> float:
    """One layer and micro-batch on one of 8 devices; plain feed-forward of 4h."""
    c = MEGATRON[name]
    h = c["hidden"]
    return float(activation_byte(SEQUENCE, c["micro_batch"], h, c["heads"], 8 * h, 8, recompute, sequence_parallel))


def first_stage_byte(name: str, recompute: str, sequence_parallel: bool) -> float:
    """Equation 5 and the factor 1 + (p - 1)/(p m) of interleaved schedules, Korthikanti, section 4.2.3."""
    c = MEGATRON[name]
    interleaved = 1 + (c["pipeline"] - 1) / (c["pipeline"] * c["chunks"]) if c["chunks"] else 1.0
    return layer_byte(name, recompute, sequence_parallel) * c["layers"] * interleaved


def parameters(name: str) -> float:
    """12 h^2 per layer: all but embedding, norms and biases."""
    return 12.0 * MEGATRON[name]["hidden"] ** 2 * MEGATRON[name]["layers"]


ZERO_FIGURE_1 = [(0, "120"), (1, "31.4"), (2, "16.6"), (3, "1.9")]


@pytest.mark.parametrize(("stage", "printed_gb"), ZERO_FIGURE_1)
def test_zero_figure_1(stage: int, printed_gb: str) -> None:
    """7.5e9 parameters, 64 replicas: figure 1, and in words in sections 5.1 to 5.3."""
    got = float(state_byte(7.5e9, 1, 64, stage)) / 1e9
    compare(f"7.5B, stage {stage}", got, float(printed_gb), "GB")
    assert f"{got:.{len(printed_gb.partition('.')[2])}f}" == printed_gb


ZERO_TABLE_1 = {
    1: ("120 120 120", "2048 2048 2048", "16000 16000 16000"),
    4: ("52.5 41.3 30", "896 704 512", "7000 5500 4000"),
    16: ("35.6 21.6 7.5", "608 368 128", "4750 2875 1000"),
    64: ("31.4 16.6 1.88", "536 284 32", "4187 2218 250"),
    256: ("30.4 15.4 0.47", "518 263 8", "4046 2054 62.5"),
    1024: ("30.1 15.1 0.12", "513 257 2", "4011 2013 15.6"),
}
"""GB by replicas; for 7.5B, 128B and 1T the stages 1, 2, 3. Some entries are rounded, some cut off."""


@pytest.mark.parametrize("replicas", ZERO_TABLE_1)
def test_zero_table_1(replicas: int) -> None:
    for size, row in zip((7.5e9, 128e9, 1e12), ZERO_TABLE_1[replicas], strict=True):
        for stage, printed in enumerate(row.split(), start=1):
            got = float(state_byte(size, 1, replicas, stage)) / 1e9
            compare(f"{size / 1e9:g}B, {replicas} replicas, stage {stage}", got, float(printed), "GB")
            assert abs(got - float(printed)) < 10.0 ** -len(printed.partition(".")[2])


ZERO_TABLE_2 = {
    1: (2.0, 7.6, 14.4, 128.0, 1.3, 6.2),
    2: (4.0, 15.2, 28.8, 256.0, 2.5, 12.5),
    4: (8.0, 30.4, 57.6, 500.0, 5.0, 25.0),
    8: (16.0, 60.8, 115.2, 1000.0, 10.0, 50.0),
    16: (32.0, 121.6, 230.4, 2000.0, 20.0, 100.0),
}
"""By model parallelism, in 1e9: the largest models 32 GB can hold in stages 0 to 3, the largest that ran in 0 and 1."""


@pytest.mark.parametrize("model_parallel", ZERO_TABLE_2)
def test_zero_table_2(model_parallel: int) -> None:
    """The largest sizes fill 32 GB at 64 replicas; what ran stays within (its activations need the rest)."""
    *largest, ran_0, ran_1 = ZERO_TABLE_2[model_parallel]
    for stage, size in enumerate(largest):
        got = float(state_byte(size * 1e9, model_parallel, 64, stage)) / 1e9
        error = compare(f"{size:g}B over {model_parallel}, stage {stage}", got, 32.0, "GB")
        assert abs(error) < 0.025
    for stage, size in enumerate((ran_0, ran_1)):
        got = float(state_byte(size * 1e9, model_parallel, 64, stage)) / 1e9
        print(f"{size:g}B over {model_parallel}, stage {stage} ran: states {got:.3g} GB of 32")
        assert 0.6 * 32.0 < got < 32.0


def test_zero_checkpoints_of_100b() -> None:
    """ZeRO, section 3.2: around 60 GB with checkpointing, 100B parameters (125 layers of 8192), 32 samples of 1024.

    Its section 6.1 says 33 GB for the same model: the number of entries, at 2 byte each 67 GB.
    """
    assert abs(compare("100B, full recomputation", float(boundary_byte(1024, 32, 8192, 125)) / 1e9, 60.0, "GB")) < 0.15


SELECTIVE_SAVES = [("175B", 80.0, 70.0), ("530B", 64.0, 65.0)]


@pytest.mark.parametrize(("name", "score_term", "saved_percent"), SELECTIVE_SAVES)
def test_selective_recomputation_saves(name: str, score_term: float, saved_percent: float) -> None:
    """Korthikanti, section 5: 5 a s/h is 80 (GPT-3) and 64 (MT-NLG) against 34; selective saves 70 % and 65 %."""
    none, selective = (layer_byte(name, r, True) for r in ("none", "selective"))
    assert 34.0 * (none / selective - 1.0) == pytest.approx(score_term, rel=1e-12)
    got = 100.0 * (1.0 - selective / none)
    compare(f"{name}, saved by selective recomputation", got, saved_percent, "%")
    assert abs(got - saved_percent) < 0.5


FIGURE_7 = {
    "22B": (66.84, 49.42, 16.18, 7.64),
    "175B": (62.04, 56.53, 18.49, 8.71),
    "530B": (58.31, 62.04, 20.27, 9.42),
    "1T": (58.31, 62.04, 20.27, 9.42),
}
"""Percent of the tensor-parallel baseline: sequence parallel, selective, both, full. Read off the bars."""


@pytest.mark.parametrize("name", FIGURE_7)
def test_korthikanti_figure_7(name: str) -> None:
    baseline = layer_byte(name, "none", False)
    kinds = (("none", True), ("selective", False), ("selective", True), ("full", False))
    for (recompute, sequence_parallel), read in zip(kinds, FIGURE_7[name], strict=True):
        got = 100.0 * layer_byte(name, recompute, sequence_parallel) / baseline
        error = compare(f"{name}, {recompute}, sequence parallel {sequence_parallel}", got, read, "%")
        assert abs(error) < 0.015


FIGURE_1 = {
    "22B": (45.5625, 59.25, 9.5625),
    "175B": (45.5625, 66.84375, 12.3515625),
    "530B": (31.640625, 114.0234375, 23.076171875),
    "1T": (32.958984375, 131.25, 26.5625),
}
"""GiB of the first stage's device: states; activations of the baseline; of selective with sequence parallelism."""


@pytest.mark.parametrize("name", FIGURE_1)
def test_korthikanti_figure_1(name: str) -> None:
    """Activations agree; its states count 18 byte per parameter, gradients in fp32, where ZeRO counts 16."""
    states, baseline, present = FIGURE_1[name]
    for label, recompute, sequence_parallel, read in (
        ("baseline", "none", False, baseline),
        ("selective and sequence parallel", "selective", True, present),
    ):
        got = first_stage_byte(name, recompute, sequence_parallel) / GIB
        assert abs(compare(f"{name}, activations, {label}", got, read, "GiB")) < 1e-9
    devices = 8 * MEGATRON[name]["pipeline"]
    error = compare(f"{name}, states", float(state_byte(parameters(name), devices, 1, 0)) / GIB, states, "GiB")
    assert error == pytest.approx(16 / 18 - 1, abs=1e-9)


@pytest.mark.parametrize("name", MEGATRON)
def test_what_fits_an_a100(name: str) -> None:
    """Korthikanti, section 6.1: no model fits 80 GB without, all ran with both techniques."""
    states = float(state_byte(parameters(name), 8 * MEGATRON[name]["pipeline"], 1, 0))
    baseline, present = (first_stage_byte(name, *kind) for kind in (("none", False), ("selective", True)))
    print(f"{name}: states {states / 1e9:.1f} GB, with {baseline / 1e9:.1f} or {present / 1e9:.1f} GB of activations")
    assert states + baseline > A100_BYTE > states + present


def test_korthikanti_output_tensors_of_530b() -> None:
    """Appendix B: freeing the outputs of 35 micro-batches in flight saves s b h p = 2.73 GB (2 byte each; GiB)."""
    got = float(boundary_byte(SEQUENCE, 35, 20480, 1)) / GIB
    assert abs(compare("530B, outputs in flight", got, 2.73, "GiB")) < 0.005


@pytest.mark.parametrize(("hidden", "feed_forward"), [(8192, 28672), (6144, 24576), (4096, 11008)])
def test_megatron_lm_for_any_feed_forward_width(hidden: int, feed_forward: int) -> None:
    """Megatron-LM, megatron/training/theoretical_memory_usage.py: s m h (18 + 4 f/h) per layer, plain feed-forward."""
    got = float(activation_byte(SEQUENCE, 1, hidden, hidden // 128, 2 * feed_forward, 1, "selective"))
    assert got == pytest.approx(SEQUENCE * hidden * (18 + 4 * feed_forward / hidden), rel=1e-12)
