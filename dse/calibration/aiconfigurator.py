"""Pass times of NVIDIA GPUs from the measured tables of the package aiconfigurator, in place of our law.

An optional extra, `pip install 'heterodse[aiconfigurator]'`. The package adds up measured kernels (matrix products,
attention, all-reduce) over the layers of a model; its `EngineHandle` does so in Rust, some 100,000 points a second.

Assumes
    weights are stored in the data type of the arithmetic (fp8: static scales; nvfp4; int8: SmoothQuant)
    an instance is tensor parallel over g devices, experts included
    beyond the largest measured size the package extrapolates
    attention windows are not modelled in prefill; in decode a context counts up to the window
    every layer of a latent-attention model has experts, the first ones too; a cached prefix saves nothing

Source: NVIDIA, aiconfigurator 0.12.0, https://github.com/ai-dynamo/aiconfigurator, read through
`aiconfigurator_core.sdk.EngineHandle`: `predict_prefill_latency`, `predict_decode_latency`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dse.errors import InputError, UnknownNameError, unknown_name
from dse.hardware import Accelerator, Floats
from dse.workload import Transformer

ServingPhase = Literal["prefill", "decode"]
PHASES: tuple[ServingPhase, ...] = ("prefill", "decode")

WHERE = "aiconfigurator"
BACKENDS = ("sglang", "trtllm", "vllm")
SYSTEMS = {
    "a100-80gb-sxm": "a100_sxm",
    "h100-80gb-sxm": "h100_sxm",
    "h200-141gb-sxm": "h200_sxm",
    "b200-180gb-sxm": "b200_sxm",
    "gb200-nvl72": "gb200",
    "l40s": "l40s",
}
"""Device of the catalogue -> the package's system."""

HALF = ("bfloat16",)
GEMM = {"bf16": HALF, "fp16": HALF, "fp8": ("fp8_static", "fp8_block"), "fp4": ("nvfp4",), "int8": ("sq",)}
"""Data type of the arithmetic -> the package's modes of matrix products; the first that has tables is taken."""
EXPERTS = {"bf16": HALF, "fp16": HALF, "fp8": ("fp8", "fp8_block"), "fp4": ("nvfp4",), "int8": ()}
"""The same for the matrix products of experts."""
CACHE = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8"}

LATENT_SHAPE = (128, 1536, 512, 128, 64, 128)
"""heads, q_rank, kv_rank, head_nope, head_rope, head_v of DeepSeek-V3: its latent attention alone was measured."""

_engines: dict[tuple[Tables, int], Any] = {}
_seconds: dict[AiconfiguratorTimes, dict[tuple[int, ...], float]] = {}


@contextmanager
def _quiet() -> Iterator[None]:
    """Neither the package's warnings nor its log reach the user: what matters comes back as an error."""
    level = (log := logging.getLogger("aiconfigurator_core")).level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _package() -> Any:
    """The package's stable facade; an `InputError` without it."""
    try:
        with _quiet():
            return importlib.import_module("aiconfigurator_core.sdk")
    except ImportError:
        raise InputError(
            f"{WHERE}: the package is not installed here; pip install 'heterodse[aiconfigurator]', "
            "or leave its times out for those of the law"
        ) from None


def available() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec("aiconfigurator_core") is not None


def _check_shape(m: Transformer) -> None:
    """An `InputError` for a model whose layers the package cannot describe."""
    latent = (m.heads, m.q_rank, m.kv_rank, m.head_nope, m.head_rope, m.head_v)
    mixed = m.experts and not m.kv_rank and (m.shared_experts or m.n_dense_layers)
    faults = {
        "its feed-forward blocks are not gated": not m.gated,
        "its latent attention is not that of DeepSeek-V3": m.kv_rank and (latent != LATENT_SHAPE or not m.experts),
        "it has shared experts or dense layers beside its experts": mixed,
        "only some of its layers attend to a window": 0 < m.n_window_layers < m.layers,
    }
    if reason := next((text for text, found in faults.items() if found), None):
        raise InputError(
            f"{WHERE}: no tables for model {m.name!r}: {reason}; it knows the shapes of Llama, Mistral, Qwen2.5, "
            "Mixtral and DeepSeek-V3: take such a model, or the law"
        )


def _config(m: Transformer) -> dict[str, Any]:
    """The model as a Hugging Face config: how the package reads a shape."""
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 131072}
    config |= {"num_hidden_layers": m.layers, "hidden_size": m.hidden, "num_attention_heads": m.heads}
    config |= {"num_key_value_heads": m.kv_heads, "head_dim": m.head_size}
    config |= {"intermediate_size": m.feed_forward, "vocab_size": m.vocabulary}
    if m.experts:
        config |= {"num_experts_per_tok": m.experts_per_token, "moe_intermediate_size": m.expert_feed_forward}
        config |= {"architectures": ["MixtralForCausalLM"], "num_local_experts": m.experts}
    if m.kv_rank:
        config |= {"architectures": ["DeepseekV3ForCausalLM"], "n_shared_experts": m.shared_experts}
        config |= {"q_lora_rank": m.q_rank, "kv_lora_rank": m.kv_rank, "first_k_dense_replace": m.n_dense_layers}
        config |= {"qk_nope_head_dim": m.head_nope, "qk_rope_head_dim": m.head_rope, "v_head_dim": m.head_v}
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Which of the package's tables: names only, so that it travels to other processes."""

    system: str
    backend: str
    model: Transformer
    gemm: str
    experts: str | None
    cache: str
    attention: str

    def engine(self, g: int) -> Any:
        """The package's engine for instances of g devices, made once per process."""
        if (self, g) in _engines:
            return _engines[self, g]
        text = json.dumps(_config(self.model), sort_keys=True)
        modes = {"gemm_quant_mode": self.gemm, "moe_quant_mode": self.experts}
        modes |= {"kvcache_quant_mode": self.cache, "fmha_quant_mode": self.attention}
        sizes = {"tp_size": g, "moe_tp_size": g if self.model.experts else 1, "moe_ep_size": 1}
        handle = _package().EngineHandle
        with _quiet(), tempfile.TemporaryDirectory(prefix="dse-") as folder:
            # The package remembers configs by path: the path names the shape, so none stands in for another.
            path = Path(folder) / hashlib.sha256(text.encode()).hexdigest()
            path.mkdir()
            (path / "config.json").write_text(text)
            _engines[self, g] = handle.compile(str(path), self.system, self.backend, **sizes, **modes)
        return _engines[self, g]


@dataclass(frozen=True, slots=True, kw_only=True)
class AiconfiguratorTimes:
    """Times of one phase: satisfies `dse.hardware.PassTimes`. Answers are remembered per process."""

    tables: Tables
    phase: ServingPhase

    def pass_s(self, g: Floats, batch: Floats, tokens: Floats) -> Floats:
        """Time of a pass of g devices over `batch` sequences [s], communication included; arguments broadcast.

        Prefill: prompts of `tokens` each. Decode: one step at the mean context `tokens`, the new token counted.
        All three are rounded to whole numbers, at least 1. Raises `InputError` where the package has no answer,
        such as a g that does not divide the heads.
        """
        grid = np.broadcast_arrays(*(np.maximum(np.rint(x), 1.0).astype(np.int64) for x in (g, batch, tokens)))
        points, place = np.unique(np.stack([x.ravel() for x in grid], axis=1), axis=0, return_inverse=True)
        known = _seconds.setdefault(self, {})
        rows: list[tuple[int, int, int]] = [tuple(row) for row in points.tolist()]
        known.update({row: self._point_s(*row) for row in rows if row not in known})
        return np.array([known[row] for row in rows])[place.ravel()].reshape(grid[0].shape)

    def _point_s(self, g: int, batch: int, tokens: int) -> float:
        t, model = self.tables, self.tables.model
        context = min(tokens, model.sliding_window) if model.n_window_layers else tokens
        try:
            engine = t.engine(g)
            if self.phase == "prefill":
                ms = float(engine.predict_prefill_latency(batch, tokens))
            else:  # an output of 2 tokens takes one step, at one token more than the input
                ms = float(engine.predict_decode_latency(batch, context - 1, 2))
            if 0.0 < ms < np.inf:
                return ms * 1e-3
            reason = f"it answers {ms} ms"
        except InputError:
            raise
        except Exception as error:  # of many kinds, AssertionError among them
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(
            f"{WHERE}: no {self.phase} time of {model.name} on {g} {t.system} ({t.backend}, {t.gemm}) at batch {batch} "
            f"and {tokens} tokens: {reason}; take an instance_size that divides its {model.heads} heads, or the law"
        )


def _found(system: str, backend: str, model: Transformer, compute: str, kv: str) -> Tables | None:
    """The first of the package's modes for these data types that answers in both phases; None if none does."""
    gemm, experts = GEMM.get(compute, ()), EXPERTS.get(compute, ()) if model.experts else (None,)
    if model.kv_rank:  # published with scales per block
        gemm, experts = gemm[::-1], experts[::-1]
    low = compute in {"fp8", "fp4"} and kv == "fp8"
    for attention, mode, expert in product(("fp8", "bfloat16") if low else HALF, gemm, experts):
        modes = {"system": system, "backend": backend, "gemm": mode, "cache": CACHE[kv], "attention": attention}
        tables = Tables(model=model, experts=expert, **modes)
        with suppress(InputError):
            for phase in PHASES:
                AiconfiguratorTimes(tables=tables, phase=phase).pass_s(np.array(1.0), np.array(1.0), np.array(1024.0))
            return tables
    return None


def with_aiconfigurator(
    device: Accelerator, model: Transformer, *, compute_dtype: str, kv_dtype: str, backend: str = "trtllm"
) -> Accelerator:
    """The device with measured times of prefill and decode of this model; `train` and all else as it was.

    `compute_dtype`: arithmetic and weights. `InputError` without the package, or for what it has no tables for.
    """
    _package()
    if device.name not in SYSTEMS:
        raise InputError(
            f"{WHERE}: no measured tables for device {device.name!r}; there are: {', '.join(SYSTEMS)}; "
            "take one of these names, or the law"
        )
    if backend not in BACKENDS:
        raise UnknownNameError(unknown_name(WHERE, "backend", backend, BACKENDS))
    _check_shape(model)
    system = SYSTEMS[device.name]
    tables = _found(system, backend, model, compute_dtype, kv_dtype) if kv_dtype in CACHE else None
    if tables is None:
        pairs = product(("bf16", "fp8", "fp4", "int8"), ("bf16", "fp8"))
        has = [f"{c} with {k}" for c, k in pairs if _found(system, backend, model, c, k)]
        raise InputError(
            f"{WHERE}: no tables of {model.name} on {device.name} with {backend} for {compute_dtype} arithmetic with a "
            f"{kv_dtype} cache; there are: {', '.join(has) or 'none'}; change data types or backend, or take the law"
        )
    efficiency = dict(device.efficiency)
    for phase in PHASES:
        e, times = efficiency[phase], AiconfiguratorTimes(tables=tables, phase=phase)
        own = {d: replace(x, times=times) if x is e.at(compute_dtype) else x for d, x in e.by_dtype.items()}
        efficiency[phase] = replace(e, times=times, by_dtype=own)
    return replace(device, efficiency=efficiency)
