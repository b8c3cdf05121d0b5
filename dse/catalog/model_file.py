"""A model from its Hugging Face config.json."""

from __future__ import annotations

import json
from pathlib import Path

from dse.errors import InputError
from dse.workload import Transformer


class _Config:
    """Reads keys of a config.json and notes every fault."""

    def __init__(self, raw: dict[str, object], file: str) -> None:
        self.raw, self.file, self.faults = raw, file, list[str]()

    def whole(self, *names: str, default: int | None = None, at_least: int = 1) -> int:
        for name in names:
            value = self.raw.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= LARGEST:
                shown = repr(value)[:40]
                self.faults.append(
                    f"{self.file} [{name}]: got {shown}, must be a whole number, {at_least} to {LARGEST}"
                )
                return at_least
            return value
        if default is None:
            self.faults.append(f"{self.file} [{names[0]}]: is missing")
            return at_least
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.faults.append(f"{self.file} [{name}]: got {value!r}, must be true or false")
            return default
        return value


LARGEST = 1_000_000_000
"""No dimension of a model is larger."""

_PLAIN_ACTIVATIONS = {"gelu", "relu", "gelu_new", "gelu_fast"}


def load_model_file(path: Path) -> Transformer:
    """Shape of a decoder from config.json (Llama, Mistral, Mixtral, Qwen, DeepSeek families)."""
    raw = _read_json(path)
    c = _Config(raw, path.name)
    layers = c.whole("num_hidden_layers", "n_layer")
    hidden = c.whole("hidden_size", "n_embd")
    heads = c.whole("num_attention_heads", "n_head")
    kv_heads = c.whole("num_key_value_heads", default=heads)
    feed_forward = c.whole("intermediate_size", "ffn_dim", default=4 * hidden)
    experts = c.whole("num_local_experts", "n_routed_experts", "num_experts", default=0, at_least=0)
    windowed = bool(raw.get("sliding_window")) and c.flag("use_sliding_window", default=True)
    model = Transformer(
        name=str(raw.get("_name_or_path") or path.stem),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=c.whole("head_dim", default=max(hidden // max(heads, 1), 1)),
        feed_forward=feed_forward,
        vocabulary=c.whole("vocab_size"),
        gated=str(raw.get("hidden_act", raw.get("activation_function", "silu"))) not in _PLAIN_ACTIVATIONS,
        tied_embedding=c.flag("tie_word_embeddings", default=False),
        attention_bias=c.flag("attention_bias", default=raw.get("model_type") == "qwen2"),
        sliding_window=c.whole("sliding_window", default=0, at_least=0) if windowed else 0,
        n_window_layers=layers if windowed else 0,
        experts=experts,
        experts_per_token=c.whole("num_experts_per_tok", default=0, at_least=0),
        expert_feed_forward=c.whole("moe_intermediate_size", default=feed_forward if experts else 0, at_least=0),
        shared_experts=c.whole("n_shared_experts", default=0, at_least=0),
        n_dense_layers=c.whole("first_k_dense_replace", default=0, at_least=0),
        q_rank=c.whole("q_lora_rank", default=0, at_least=0),
        kv_rank=c.whole("kv_lora_rank", default=0, at_least=0),
        head_nope=c.whole("qk_nope_head_dim", default=0, at_least=0),
        head_rope=c.whole("qk_rope_head_dim", default=0, at_least=0),
        head_v=c.whole("v_head_dim", default=0, at_least=0),
    )
    c.faults += _shape_faults(model, path.name)
    if c.faults:
        raise InputError(c.faults)
    return model


def _read_json(path: Path) -> dict[str, object]:
    try:
        raw: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply for a model file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    except ValueError:
        raise InputError(f"{path}: not valid JSON: a number has too many digits") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: a model file holds one JSON object, got {type(raw).__name__}")
    return raw


def _shape_faults(m: Transformer, file: str) -> list[str]:
    """Sizes that do not go together."""
    faults = []
    if m.heads % m.kv_heads:
        faults.append(f"{file} [num_key_value_heads]: got {m.kv_heads}, must divide {m.heads} attention heads")
    if m.experts and not 0 < m.experts_per_token <= m.experts:
        faults.append(f"{file} [num_experts_per_tok]: got {m.experts_per_token}, must be 1 to {m.experts}")
    if m.n_dense_layers > m.layers:
        faults.append(f"{file} [first_k_dense_replace]: got {m.n_dense_layers}, above {m.layers} layers")
    needed = {"qk_nope_head_dim": m.head_nope, "qk_rope_head_dim": m.head_rope, "v_head_dim": m.head_v}
    if m.kv_rank:
        missing = [key for key, value in needed.items() if not value]
        faults += [f"{file} [{key}]: is missing, needed beside kv_lora_rank" for key in missing]
    return faults
