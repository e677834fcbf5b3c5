"""Build Megatron-Core's GPT model for a Hugging Face configuration, on the CPU.

The module tree is Megatron-Core's own, of its local specification or of the one for Transformer
Engine. Transformer Engine does not run without a GPU, so its leaf modules are replaced by modules
with the same parameters that compute the same function.
"""

import contextlib
from typing import Any

import megatron_hybrid
import torch
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models import backends, gpt
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt import gpt_layer_specs, moe_module_specs
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import (
    MLATransformerConfig,
    TransformerConfig,
)


class Attention(DotProductAttention):
    """Megatron-Core's own attention, for values of another size than keys too (latent attention)."""

    def __init__(self, *rest: Any, k_channels: int | None = None, v_channels: int | None = None,
                 **named: Any) -> None:
        super().__init__(*rest, **named)
        if v_channels is not None:
            self.hidden_size_per_partition = self.num_attention_heads_per_partition * v_channels


class ReplicatedLinear(torch.nn.Linear):
    """Stand in for TELinear with parallel_mode "duplicated"."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, **_: Any) -> None:
        super().__init__(inputs, outputs, bias=bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


class NormColumnParallelLinear(ColumnParallelLinear):
    """Stand in for TELayerNormColumnParallelLinear: an RMS norm before the matrix."""

    def __init__(self, inputs: int, outputs: int, *, config: Any, **rest: Any) -> None:
        super().__init__(inputs, outputs, config=config, **rest)
        self.epsilon = config.layernorm_epsilon
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(inputs))

    def forward(self, x: torch.Tensor, *rest: Any, **named: Any) -> Any:
        shape = (x.shape[-1],)
        x = torch.nn.functional.rms_norm(x, shape, self.layer_norm_weight, self.epsilon)
        return super().forward(x, *rest, **named)


class GroupedLinear(torch.nn.Module):
    """Stand in for TE's grouped linear modules: one parameter for each expert of the rank."""

    def __init__(self, count: int, inputs: int, outputs: int, *, bias: bool, skip_bias_add: bool,
                 **_: Any) -> None:
        super().__init__()
        self.count, self.bias, self.skips_bias = count, bias, skip_bias_add
        for i in range(count):
            self.register_parameter(f"weight{i}", torch.nn.Parameter(torch.zeros(outputs, inputs)))
            if bias:
                self.register_parameter(f"bias{i}", torch.nn.Parameter(torch.zeros(outputs)))

    def forward(self, x: torch.Tensor, splits: list[int]) -> tuple[torch.Tensor, Any]:
        parts = [part @ getattr(self, f"weight{i}").T
                 for i, part in enumerate(torch.split(x, splits))]
        biases = [getattr(self, f"bias{i}") for i in range(self.count) if self.bias]
        if biases and not self.skips_bias:
            parts = [part + bias for part, bias in zip(parts, biases)]
        return torch.cat(parts), biases if biases and self.skips_bias else None


class GroupedColumn(GroupedLinear):
    def __init__(self, count: int, inputs: int, outputs: int, **rest: Any) -> None:
        ranks = rest["pg_collection"].expt_tp.size()
        super().__init__(count, inputs, outputs // ranks, **rest)


class GroupedRow(GroupedLinear):
    def __init__(self, count: int, inputs: int, outputs: int, **rest: Any) -> None:
        ranks = rest["pg_collection"].expt_tp.size()
        super().__init__(count, inputs // ranks, outputs, **rest)


class StandInProvider(LocalSpecProvider):
    """Megatron-Core's TESpecProvider with the modules above."""

    def linear(self) -> type:
        return ReplicatedLinear

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        return NormColumnParallelLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        return WrappedTorchNorm

    def grouped_mlp_modules(
        self, moe_use_grouped_gemm: bool, moe_use_legacy_grouped_gemm: bool
    ) -> tuple[type, MLPSubmodules]:
        return TEGroupedMLP, MLPSubmodules(linear_fc1=GroupedColumn, linear_fc2=GroupedRow)


def prepare() -> None:
    """Let Megatron-Core run without CUDA and without Transformer Engine."""
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[assignment]
    CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
    backends.DotProductAttention = Attention
    multi_latent_attention.TELinear = ReplicatedLinear
    for module in (gpt_layer_specs, moe_module_specs):
        module.TESpecProvider = StandInProvider
    gpt_layer_specs.TENorm = WrappedTorchNorm
    moe_utils.te_general_gemm = None  # undefined in 0.16.1 without Transformer Engine
    megatron_hybrid.prepare()


def experts_of(config: Any) -> dict[str, Any]:
    """Return the options of Megatron-Core for a mixture of experts; empty for a dense model."""
    count = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or \
        getattr(config, "n_routed_experts", None)
    if not count:
        return {}
    kind = config.model_type
    layers = config.num_hidden_layers
    first = getattr(config, "first_k_dense_replace", 0) or 0
    dense = {*range(first), *(getattr(config, "mlp_only_layers", None) or [])}
    if kind == "llama4_text":
        dense = {i for i in range(layers) if i not in config.moe_layers}
    size = getattr(config, "moe_intermediate_size", config.intermediate_size)
    shared = getattr(config, "shared_expert_intermediate_size", None) or \
        size * (kind == "llama4_text" or getattr(config, "n_shared_experts", None) or 0)
    biased = kind in ("deepseek_v3", "glm4_moe")
    groups = getattr(config, "n_group", None) or 1
    if getattr(config, "topk_method", "") == "greedy":
        groups = 1
    return {
        "num_moe_experts": count,
        "moe_layer_freq": [int(i not in dense) for i in range(layers)],
        "moe_ffn_hidden_size": size,
        "moe_router_topk": config.num_experts_per_tok,
        "moe_router_pre_softmax": not getattr(config, "norm_topk_prob", True),
        "moe_router_score_function": "sigmoid" if biased or kind == "llama4_text" else "softmax",
        "moe_router_enable_expert_bias": biased,
        "moe_router_topk_scaling_factor": getattr(config, "routed_scaling_factor", None),
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": config.topk_group if groups > 1 else None,
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "allgather",
        "moe_shared_expert_intermediate_size": shared or None,
        "moe_shared_expert_gate": kind == "qwen2_moe",
        "moe_apply_probs_on_input": kind == "llama4_text",
    }


def family_of(config: Any) -> dict[str, Any]:
    """Return the options that one family alone needs."""
    if config.model_type == "llama4_text":
        return {"rotary_interleaved": True}
    if config.model_type == "gpt_oss":
        return {
            "add_bias_linear": True,
            "softmax_type": "learnable",
            "activation_func": quick_gelu,
            "activation_func_clamp_value": config.swiglu_limit,
            "glu_linear_offset": 1.0,
            "bias_dropout_fusion": False,
        }
    return {}


def latent_of(config: Any) -> dict[str, Any]:
    """Return the options for multi-head latent attention."""
    return {
        "multi_latent_attention": True,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_head_dim": config.qk_nope_head_dim,
        "qk_pos_emb_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "rope_type": "rope",
        "rotary_base": config.rope_parameters["rope_theta"],
        "qk_layernorm": True,
    }


def build(config: Any, vocab: int, engine: bool, parallel: dict[str, int], first: bool,
          last: bool) -> torch.nn.Module:
    """Build the model of this rank; `engine` chooses Transformer Engine's specification.

    With layers that predict further tokens, its logits are those of the tokens, then of theirs.
    """
    options: dict[str, Any] = {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_query_groups": config.num_key_value_heads,
        "kv_channels": getattr(config, "head_dim", None),
        "ffn_hidden_size": getattr(config, "intermediate_size_mlp", config.intermediate_size),
        "normalization": "RMSNorm",
        "add_bias_linear": bool(getattr(config, "mlp_bias", False)),
        "use_cpu_initialization": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "pipeline_dtype": torch.float32,
        **parallel,
    }
    if config.model_type == "nemotron_h":
        return megatron_hybrid.build(config, vocab, options, NormColumnParallelLinear, first, last)
    options |= {
        "layernorm_epsilon": config.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_qkv_bias": config.model_type in ("qwen2", "qwen2_moe") or
        bool(getattr(config, "attention_bias", False)),
        "qk_layernorm": config.model_type in ("qwen3", "qwen3_moe") or
        bool(getattr(config, "use_qk_norm", False)),
        "moe_grouped_gemm": engine,
        "mtp_num_layers": getattr(config, "num_nextn_predict_layers", None) or None,
        **experts_of(config),
        **family_of(config),
    }
    latent = getattr(config, "kv_lora_rank", None) is not None
    if latent:
        del options["num_query_groups"], options["kv_channels"]
        options |= latent_of(config)
    made = (MLATransformerConfig if latent else TransformerConfig)(**options)
    spec = gpt_layer_specs.get_gpt_decoder_block_spec(
        made, engine, normalization="RMSNorm", qk_l2_norm=config.model_type == "llama4_text")
    further = gpt_layer_specs.get_gpt_mtp_block_spec(made, spec, engine)
    rope = config.rope_parameters
    model = gpt.GPTModel(
        made, spec, vocab_size=vocab, max_sequence_length=config.max_position_embeddings,
        pre_process=first, post_process=last, parallel_output=False, position_embedding_type="rope",
        rotary_base=rope["rope_theta"], rotary_percent=rope.get("partial_rotary_factor", 1.0),
        share_embeddings_and_output_weights=config.tie_word_embeddings, mtp_block_spec=further)
    made.mtp_num_layers = None  # once built: compute logits, and no loss
    return model.eval()
