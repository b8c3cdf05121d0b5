"""What measurement tables call devices, models and stacks, and what the catalogue calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dse.units import DTYPE_BYTE

DEVICES = {
    "a100": "a100-40gb-sxm",
    "a100-40gb": "a100-40gb-sxm",
    "a100-80gb": "a100-80gb-sxm",
    "h100-80gb": "h100-80gb-sxm",
    "h200": "h200-141gb-sxm",
    "a100_sxm": "a100-80gb-sxm",
    "h100": "h100-80gb-sxm",
    "h100_sxm": "h100-80gb-sxm",
    "h200_sxm": "h200-141gb-sxm",
    "b200": "b200-180gb-sxm",
    "b200_sxm": "b200-180gb-sxm",
    "gb200": "gb200-nvl72",
    "cs-2": "wse-2",
    "cs-3": "wse-3",
}
"""A bare A100 is the 40 GB card: so in the tables that do not say."""

MODELS = {
    "llama38b": "llama-3.1-8b",
    "llama370b": "llama-3.1-70b",
    "llama3.370b": "llama-3.1-70b",
    "qwen27b": "qwen2.5-7b",
    "qwen272b": "qwen2.5-72b",
    "deepseekr1": "deepseek-v3",
}
"""Releases that share the shape of one that the catalogue has."""

ELEMENTS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
"""Long names of data types, as tables of kernels write them."""

STACKS = {
    "tensorrt-llm": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
    "trt": "tensorrt-llm",
    "vllm": "vllm",
    "sglang": "sglang",
}

_BETWEEN = re.compile(r"[^a-z0-9.]")
"""What names are spelt with or without; a point is not: 1.3B is not 13B."""
_NOISE = re.compile(r"(^meta-)|(-(hf|chat|instruct|it|fp8|fp4|bf16|v\d+(\.\d+)?|\d{4}))+$")
"""Owner's prefix; tuning, data type, version and date behind the name."""


def device_name(text: str, known: Iterable[str]) -> str:
    """The catalogue's name of a device; empty if there is none.

    >>> [device_name(t, ["a100-40gb-sxm", "wse-3"]) for t in ("A100", "WSE-3", "MI250 (2 GCD)")]
    ['a100-40gb-sxm', 'wse-3', '']
    """
    wanted = text.strip().lower()
    name = DEVICES.get(wanted, wanted)
    return name if name in set(known) else ""


def model_name(text: str, known: Iterable[str]) -> str:
    """The catalogue's name of a model, whatever its owner, its spelling and its release; empty if there is none.

    >>> known = ["llama-2-7b", "llama-3.1-8b", "codellama-34b"]
    >>> [model_name(t, known) for t in ("meta-llama/Llama-2-7b-hf", "Meta-Llama-3-8B", "CodeLLaMA-34B", "BERT-base")]
    ['llama-2-7b', 'llama-3.1-8b', 'codellama-34b', '']
    >>> known = ["mixtral-8x7b", "gpt-3-13b"]
    >>> model_name("mistralai/Mixtral-8x7B-Instruct-v0.1", known), model_name("GPT-3-1.3B", known)
    ('mixtral-8x7b', '')
    """
    plain = text.strip().lower().rsplit("/", 1)[-1]
    while (shorter := _NOISE.sub("", plain)) != plain:
        plain = shorter
    bare = _BETWEEN.sub("", plain)
    by_bare = {_BETWEEN.sub("", name): name for name in known}
    return by_bare.get(_BETWEEN.sub("", MODELS.get(bare, plain)), "")


def stack_name(text: str) -> str:
    """The profile that describes a software stack.

    >>> stack_name("TensorRT-LLM"), stack_name("vLLM"), stack_name("llama.cpp")
    ('tensorrt-llm', 'vllm', 'llama.cpp')
    """
    plain = text.strip().lower()
    return STACKS.get(plain, plain)


def element_types(names: pd.Series[str]) -> tuple[pd.Series[str], NDArray[np.float64]]:
    """Data types by the catalogue's names, and the bytes of an element: 16 bit where the type is not known."""
    short = names.replace(ELEMENTS)
    return short, short.map(lambda d: DTYPE_BYTE.get(str(d), 2.0)).to_numpy(dtype=np.float64)
