"""Families without rules, whose layouts are learned all the same: classes of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setting import torch

DENSE = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16}
GPT = {"vocab_size": 320, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256}

FURTHER: dict[str, dict[str, Any]] = {
    "ApertusForCausalLM": DENSE,
    "ArceeForCausalLM": DENSE,
    "CohereForCausalLM": DENSE,
    "Cohere2ForCausalLM": DENSE,
    "Ernie4_5ForCausalLM": DENSE,
    "Ernie4_5_MoeForCausalLM": DENSE
    | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1},
    "Exaone4ForCausalLM": DENSE,
    "FalconForCausalLM": {
        "vocab_size": 320,
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
    },
    "FalconH1ForCausalLM": DENSE | MAMBA | {"mamba_d_ssm": 256},
    "GPT2LMHeadModel": GPT,
    "GPTBigCodeForCausalLM": GPT,
    "GPTJForCausalLM": GPT | {"rotary_dim": 16},
    "GPTNeoXForCausalLM": DENSE,
    "GemmaForCausalLM": DENSE | {"head_dim": 32},
    "GraniteForCausalLM": DENSE,
    "GraniteMoeForCausalLM": DENSE | EXPERTS,
    "GraniteMoeHybridForCausalLM": DENSE
    | EXPERTS
    | MAMBA
    | {
        "shared_intermediate_size": 64,
        "layer_types": ["mamba", "attention"],
        "mamba_n_groups": 1,
        "mamba_expand": 2,
    },
    "JambaForCausalLM": DENSE
    | {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 16,
    },
    "MambaForCausalLM": DENSE | {"state_size": 16, "intermediate_size": 256},
    "Mamba2ForCausalLM": DENSE
    | {"num_heads": 8, "head_dim": 32, "state_size": 16, "n_groups": 2, "expand": 2},
    "NemotronForCausalLM": DENSE,
    "OPTForCausalLM": DENSE | {"ffn_dim": 256, "word_embed_proj_dim": 128},
    "OlmoForCausalLM": DENSE,
    "Olmo2ForCausalLM": DENSE,
    "OlmoeForCausalLM": DENSE | {"num_experts": 4, "num_experts_per_tok": 2},
    "PhiForCausalLM": DENSE | {"num_key_value_heads": 4},
    "PhimoeForCausalLM": DENSE | EXPERTS,
    "SeedOssForCausalLM": DENSE,
    "StableLmForCausalLM": DENSE,
    "Starcoder2ForCausalLM": DENSE,
}


def write(name: str, folder: Path) -> None:
    """Write a tiny model of a family, with random weights."""
    import transformers

    torch.manual_seed(1)
    made: Any = getattr(transformers, name)
    untied = {} if name.startswith("GPT") else {"tie_word_embeddings": False}
    made(made.config_class(**FURTHER[name], **untied)).to(torch.bfloat16).save_pretrained(folder)
