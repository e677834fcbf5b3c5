"""Tiny models with random weights, as folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import environment  # before PyTorch
import torch

BUILD = Path(os.environ.get("BANYAN_BUILD", environment.ROOT / "build"))
COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", COMMON | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", COMMON),
    "qwen3_moe": ("Qwen3MoeConfig", COMMON | EXPERTS | {"num_experts": 8}),
    "deepseek": (
        "DeepseekV3Config",
        COMMON
        | EXPERTS
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 512,
            "q_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "head_dim": None,
            "topk_method": "noaux_tc",  # else vLLM has no correction bias
        },
    ),
}


def save(family: str, folder: Path, seed: int, **changes: Any) -> Path:
    """Write a folder with a model of a family, with random weights, and return it."""
    import transformers

    name, values = FAMILIES[family]
    config = getattr(transformers, name)(**values | changes, pad_token_id=0)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder
