"""A serving plan as arguments of vLLM and as a deployment of NVIDIA Dynamo, for its GPU pools.

Arguments as vLLM documents them for `vllm serve` (docs.vllm.ai, engine arguments; KV transfer: vllm-project/vllm,
docs/features/nixl_connector_usage.md) and Dynamo for its vLLM worker (docs.nvidia.com/dynamo v1.7, disaggregated
serving; ai-dynamo/dynamo, examples/backends/vllm/deploy/disagg.yaml), both read on 2026-12-01. MODEL and IMAGE are the
deployer's: the checkpoint and the container. What a plan knows and these tools cannot be told is in `notes`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any, Final

DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
"""Arithmetic of a plan -> --dtype; all else is left to the checkpoint."""
QUANTIZED: Final = {"fp8": "fp8"}
"""Weights of a plan -> --quantization; other formats come with the checkpoint."""
CACHES: Final = {"fp8": "fp8"}
"""KV cache of a plan -> --kv-cache-dtype; else the checkpoint's."""
KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer", "any": "kv_both"}
MODES: Final = {"prefill": "prefill", "decode": "decode"}
"""Role -> --disaggregation-mode of Dynamo's worker; a worker of both phases takes none."""

Plan = Mapping[str, Any]


def vllm(plan: Plan) -> dict[str, Any]:
    """One command a GPU pool, to be started once for each of its instances."""
    pools, notes = [], _notes(plan)
    for pool in plan["pools"]:
        if pool["kind"] != "gpu":
            notes.append(f"{pool['name']} ({pool['device']}) is no GPU: it runs its vendor's server, not vLLM")
            continue
        arguments = ["vllm", "serve", "$MODEL", *_engine(plan, pool)]
        pools.append({
            "pool": pool["name"],
            "instances": pool["parallel"]["data"],
            "arguments": arguments,
            "command": " ".join(_quoted(a) for a in arguments),
        })  # fmt: skip
    return {"pools": pools, "notes": notes}


def dynamo(plan: Plan) -> dict[str, Any]:
    """A DynamoGraphDeployment with a frontend and one service a GPU pool."""
    services: dict[str, Any] = {"Frontend": {"componentType": "frontend", "replicas": 1, "extraPodSpec": _pod([])}}
    notes = _notes(plan)
    for pool in plan["pools"]:
        if pool["kind"] != "gpu":
            notes.append(f"{pool['name']} ({pool['device']}) is no GPU: Dynamo's vLLM worker does not run on it")
            continue
        mode = MODES.get(pool["role"])
        arguments = ["--model", "$MODEL", *_engine(plan, pool, transfer=False)]
        arguments += ["--disaggregation-mode", mode] if mode else []
        service = {
            "componentType": "worker",
            "replicas": pool["parallel"]["data"],
            "resources": {"limits": {"gpu": str(pool["instance_size"])}},
            "extraPodSpec": _pod(arguments),
        }
        services[_service(pool["name"])] = service | ({"subComponentType": mode} if mode else {})
    manifest = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": _label(plan["study"])},
        "spec": {"services": services},
    }
    return {"manifest": manifest, "notes": notes}


def _pod(arguments: list[str]) -> dict[str, Any]:
    container: dict[str, Any] = {"image": "$IMAGE"}
    if arguments:
        container |= {"command": ["python3", "-m", "dynamo.vllm"], "args": arguments}
    return {"mainContainer": container}


def _engine(plan: Plan, pool: Plan, *, transfer: bool = True) -> list[str]:
    """Arguments of one instance of a pool."""
    found = [
        "--tensor-parallel-size", str(pool["parallel"]["tensor"]),
        "--pipeline-parallel-size", str(pool["parallel"]["pipeline"]),
        "--gpu-memory-utilization", f"{1 - pool['memory_reserve_frac']:.4g}",
        "--max-model-len", str(longest(plan)),
    ]  # fmt: skip
    found += ["--max-num-seqs", str(running(pool))] if running(pool) else []
    fleet = plan["fleet"]
    for key, argument, known in (
        ("compute_dtype", "--dtype", DTYPES),
        ("weight_dtype", "--quantization", QUANTIZED),
        ("kv_dtype", "--kv-cache-dtype", CACHES),
    ):
        found += [argument, known[fleet[key]]] if fleet.get(key) in known else []
    if transfer and crosses(plan) and pool["role"] in KV_ROLES:
        config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[pool["role"]]}
        found += ["--kv-transfer-config", json.dumps(config)]
    return found


def longest(plan: Plan) -> int:
    """Tokens of the longest request class, input and output [tokens]."""
    return max(math.ceil(r["input_tokens"] + r["output_tokens"]) for r in plan["requests"])


def running(pool: Plan) -> int:
    """Sequences that an instance works on at once: the largest batch of its phases over the classes; 0 if none."""
    batches = [b for phase in pool["phases"].values() for b in phase["batch"] if math.isfinite(b)]
    return int(max(batches, default=0))


def crosses(plan: Plan) -> bool:
    """Whether KV cache passes between pools."""
    return bool(plan["link"]["link_need_byte_s"])


def _notes(plan: Plan) -> list[str]:
    """What the plan knows and neither tool can be told."""
    notes = [
        "MODEL is the checkpoint of " + str(plan["model"]) + "; IMAGE the container",
        "--max-model-len is the longest request class; a class holds means, so single requests may be longer",
        "--max-num-seqs is the largest batch of any class that fits; the plan's batch differs by class",
    ]
    if plan["fleet"].get("routing") == "work_stealing":
        notes.append("work stealing: how much of each phase a pool takes is set by the router in front, not by a flag")
    others = [pool["name"] for pool in plan["pools"] if pool["kind"] != "gpu"]
    if others and crosses(plan):
        notes.append(
            f"KV cache goes to or from {', '.join(others)}: the connector between the two servers is yours to find"
        )
    if plan["link"]["link_byte_s"]:
        need, have = (plan["link"][key] / 1e9 for key in ("link_need_byte_s", "link_byte_s"))
        notes.append(f"KV transfer needs {need:.4g} GB/s of the {have:.4g} GB/s between the pools")
    return notes


def _quoted(argument: str) -> str:
    """For a shell; the deployer's variables stay variables."""
    return f'"{argument}"' if argument.startswith("$") else shlex.quote(argument)


def _service(name: str) -> str:
    """A pool's name as that of a service: letters and digits."""
    return "".join(part.capitalize() for part in _label(name).split("-")) + "Worker"


def _label(name: str) -> str:
    """A name as Kubernetes allows it: small letters, digits and dashes, at most 63, a letter or digit at both ends.

    >>> _label("Chat 70B <provisioning>")
    'chat-70b-provisioning'
    """
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
    return "-".join(filter(None, kept.split("-")))[:63].strip("-") or "plan"
