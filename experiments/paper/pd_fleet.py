"""The fleets of figures 16 and 17 and table 3: A100s prefill, WSE-3s decode (section 5.4).

The paper prints no counts. Ours:

- A100 of 40 GB (the paper's table 2) unless said otherwise.
- The smallest instance that holds the model and one request of 8K in and 8K out: one GPU and one wafer for 7B, four and
  four for 70B. Four GPUs are also the node of the paper's table 3, and 32 its cluster.
- 70B is Llama-2-70B as published, with its grouped keys and values.
- Prefill batch 1; a decode batch as large as memory allows, 256 at most; no limits on latency; a link that never binds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from search_spaces.pd_serving import ServingSpace

from .setting import MODELS, Change, changed, study

TOKENS: Final = (128, 256, 512, 1024, 2048, 4096, 6144, 8192)
"""Both axes of the paper's maps: 128 to 8K."""
A100_40: Final = "a100-40gb-sxm"
A100_80: Final = "a100-80gb-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One model, and how its instances are formed."""

    model: str
    gpu_size: int
    wse_size: int
    gpu: str = A100_40


PAIRS: Final[Mapping[str, Pair]] = {
    "7B": Pair(model=MODELS["7B"], gpu_size=1, wse_size=1),
    "70B": Pair(model=MODELS["70B"], gpu_size=4, wse_size=4),
}


def design(
    pair: Pair,
    input_tokens: int,
    output_tokens: int,
    *,
    n_gpu: int,
    n_wse: int,
    gpu: Change | None = None,
    wse: Change | None = None,
) -> dict[str, Any]:
    """Every column of one fleet under one request shape; devices may be changed to ask what if."""
    request = {"share": 1.0, "input_tokens": input_tokens, "output_tokens": output_tokens}
    pools: dict[str, dict[str, Any]] = {
        "gpu": {"device": pair.gpu, "count": [n_gpu], "instance_size": [pair.gpu_size]},
        "wse": {"count": [n_wse], "instance_size": [pair.wse_size]},
    }
    loaded = study("prefill_decode.toml", {"model": pair.model, "requests": [request]}, pools)
    problem = loaded.problem
    for pool, change in (("gpu", gpu), ("wse", wse)):
        problem = changed(problem, pool, change) if change else problem
    columns, _ = ServingSpace(problem).score_design({})
    return {name: values[0] for name, values in columns.items()}


def optimal_ratio(pair: Pair, input_tokens: int, output_tokens: int, wse: Change | None = None) -> float:
    """GPUs that keep one wafer busy: a property of the two devices, not of the fleet."""
    row = design(pair, input_tokens, output_tokens, n_gpu=pair.gpu_size, n_wse=pair.wse_size, wse=wse)
    return float(row["optimal_gpu_wse_ratio"])


def ratio_text(ratio: float) -> str:
    """A ratio of GPUs to wafers as the paper writes it.

    >>> ratio_text(50.2), ratio_text(1.0), ratio_text(0.34), ratio_text(0.05)
    ('50:1', '1:1', '1:2.9', '1:20')
    """
    if ratio >= 1:
        return f"{ratio:.2g}:1"
    return f"1:{1 / ratio:.2g}"
