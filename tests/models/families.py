"""Tiny models of every family that the vLLM packing is held against.

A family is a model class of transformers, and a configuration of it small enough to build in a
second. Extents differ from each other wherever the architecture lets them, so that no two
dimensions can be mistaken for one another.
"""

from __future__ import annotations

import dataclasses
from typing import Any

DENSE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
HEADS_OF_64 = {"head_dim": 64}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}
DEEPSEEK_MOE: dict[str, Any] = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "routed_scaling_factor": 1.0,
}


# Every rank of four has whole blocks of 128 × 128 elements.
FP8: dict[str, Any] = {
    **DEEPSEEK_MOE,
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 512,
    "moe_intermediate_size": 512,
    "n_routed_experts": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
}
FP8_CONFIG: dict[str, Any] = {
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
}


@dataclasses.dataclass(frozen=True)
class Family:
    """A model class of transformers, its tiny configuration, and what its published folders add."""

    model: str  # transformers' class; its configuration is config_class
    config: dict[str, Any]
    extra_config: dict[str, Any] = dataclasses.field(default_factory=dict)  # into config.json
    mtp: str = ""  # how the multi-token-prediction layer, which transformers leaves out, is named
    inv_freq: bool = False  # old folders hold rotary_emb.inv_freq of each layer
    exponential: str = ""  # vLLM keeps -exp of tensors that end so
    fp8: bool = False  # published in FP8, with a scale for each block of 128 × 128 elements
    expert_parallel: bool = False  # held with vLLM's expert parallelism, too

    @property
    def packings(self) -> list[str]:
        """Parts of vLLM's model and of its draft model, which is the multi-token-prediction layer."""
        return ["vllm", "vllm_mtp"] if self.mtp else ["vllm"]


def dense(model: str, /, **config: Any) -> Family:
    return Family(model, {**DENSE, **config})


FAMILIES: dict[str, Family] = {
    "llama2": Family("LlamaForCausalLM", {**DENSE, "num_key_value_heads": 4}, inv_freq=True),
    "llama3": dense("LlamaForCausalLM"),
    "llama3-tied-bias": dense(
        "LlamaForCausalLM", tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "llama3-narrow-heads": dense("LlamaForCausalLM", num_attention_heads=8, head_dim=32),
    "llama4": dense(
        "Llama4ForCausalLM",
        intermediate_size=96,
        intermediate_size_mlp=160,
        num_hidden_layers=4,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
    ),
    "mistral": dense("MistralForCausalLM", **HEADS_OF_64),
    "mixtral": dense("MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    "qwen2": dense("Qwen2ForCausalLM", tie_word_embeddings=True),
    "qwen2.5": dense("Qwen2ForCausalLM"),
    "qwen3": dense("Qwen3ForCausalLM", tie_word_embeddings=True, **HEADS_OF_64),
    "qwen2-moe": dense(
        "Qwen2MoeForCausalLM",
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=96,
        mlp_only_layers=[0],
    ),
    "qwen3-moe": Family(
        "Qwen3MoeForCausalLM",
        {
            **DENSE,
            **HEADS_OF_64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [0],
        },
        expert_parallel=True,
    ),
    "qwen3-next": Family(
        "Qwen3NextForCausalLM",
        {
            **DENSE,
            **HEADS_OF_64,
            "num_hidden_layers": 4,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 80,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 24,
        },
        mtp="mtp.layers.0.",
    ),
    "deepseek-v2-lite": dense(
        "DeepseekV2ForCausalLM", **MLA, **DEEPSEEK_MOE, q_lora_rank=None, topk_method="greedy"
    ),
    "deepseek-v2": dense(
        "DeepseekV2ForCausalLM",
        **MLA,
        **DEEPSEEK_MOE,
        q_lora_rank=80,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
    ),
    "deepseek-v3": Family(
        "DeepseekV3ForCausalLM",
        {**DENSE, **MLA, **DEEPSEEK_MOE, "q_lora_rank": 80, "n_group": 4, "topk_group": 2},
        extra_config={"topk_method": "noaux_tc", "num_nextn_predict_layers": 1},
        mtp="model.layers.2.",
    ),
    "kimi-k2": Family(
        "DeepseekV3ForCausalLM",
        {
            **DENSE,
            **MLA,
            **DEEPSEEK_MOE,
            "q_lora_rank": 80,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
        },
        extra_config={"topk_method": "noaux_tc", "num_nextn_predict_layers": 0},
    ),
    "deepseek-v3-fp8": Family(
        "DeepseekV3ForCausalLM",
        {**FP8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2},
        extra_config={"topk_method": "noaux_tc", "num_nextn_predict_layers": 1, **FP8_CONFIG},
        mtp="model.layers.2.",
        fp8=True,
        expert_parallel=True,
    ),
    # With the values of DeepSeek-R1's router and YaRN.
    "deepseek-r1": Family(
        "DeepseekV3ForCausalLM",
        {
            **FP8,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
        },
        extra_config={
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "num_nextn_predict_layers": 0,
            **FP8_CONFIG,
        },
        fp8=True,
    ),
    "glm4": dense("Glm4ForCausalLM", attention_bias=True, pad_token_id=0, **HEADS_OF_64),
    "glm4-moe": Family(
        "Glm4MoeForCausalLM",
        {
            **DENSE,
            **DEEPSEEK_MOE,
            **HEADS_OF_64,
            "n_shared_experts": 1,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_group": 1,
            "topk_group": 1,
        },
        extra_config={"num_nextn_predict_layers": 1},
        mtp="model.layers.2.",
    ),
    "phi3": dense("Phi3ForCausalLM", pad_token_id=0),
    "gemma2": dense("Gemma2ForCausalLM", tie_word_embeddings=True, **HEADS_OF_64),
    "gemma3": dense("Gemma3ForCausalLM", tie_word_embeddings=True, **HEADS_OF_64),
    "gpt-oss": dense(
        "GptOssForCausalLM",
        intermediate_size=256,
        num_key_value_heads=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        **HEADS_OF_64,
    ),
    "nemotron-h": Family(
        "NemotronHForCausalLM",
        {
            **DENSE,
            **HEADS_OF_64,
            "num_hidden_layers": 3,
            "hybrid_override_pattern": "M-*",
            "mamba_num_heads": 8,
            "mamba_head_dim": 24,
            "n_groups": 4,
            "ssm_state_size": 16,
            "conv_kernel": 4,
        },
        exponential="A_log",
    ),
}
