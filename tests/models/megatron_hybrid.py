"""Build Megatron-Core's hybrid model (Mamba, attention and MLP layers), on the CPU.

The module tree is Megatron-Core's own. The modules of Transformer Engine and the kernels of
mamba-ssm do not run without a GPU, so modules and functions that compute the same stand in for
them.
"""

from typing import Any

import torch
from megatron.core.activations import squared_relu
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.mamba import MambaModel
from megatron.core.ssm import mamba_block, mamba_mixer
from megatron.core.ssm.mamba_block import MambaStack, MambaStackSubmodules
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel import RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
)
from torch.nn import functional

SYMBOLS = {"linear_attention": "M", "mamba": "M", "mlp": "-", "full_attention": "*"}


class GroupNorm(torch.nn.Module):
    """Stand in for mamba-ssm's gated RMS norm, without a gate."""

    def __init__(self, size: int, *, eps: float, group_size: int, **_: Any) -> None:
        super().__init__()
        self.eps, self.group_size = eps, group_size
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.unflatten(-1, (-1, self.group_size))
        return functional.rms_norm(groups, (self.group_size,), eps=self.eps).flatten(-2) * self.weight


def scan(projected: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dt_bias: torch.Tensor,
         a: torch.Tensor, *, D: torch.Tensor, headdim: int, ngroups: int, **_: Any) -> torch.Tensor:
    """Stand in for mamba_split_conv1d_scan_combined: one step after the other."""
    heads = a.shape[0]
    inner, width = heads * headdim, weight.shape[1]
    channels = weight.shape[0]
    z, mixed, dt = projected.split([inner, channels, heads], -1)
    padded = functional.pad(mixed.transpose(1, 2), (width - 1, 0))
    mixed = functional.silu(functional.conv1d(padded, weight[:, None], bias, groups=channels))
    states = (channels - inner) // 2
    x, b, c = mixed.transpose(1, 2).split([inner, states, states], -1)
    x = x.unflatten(-1, (heads, headdim))
    b, c = (t.unflatten(-1, (ngroups, -1)).repeat_interleave(heads // ngroups, 2) for t in (b, c))
    dt = functional.softplus(dt + dt_bias)
    state = torch.zeros(*x[:, 0].shape, b.shape[-1])
    out = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        state = state * decay + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        out.append((state * c[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(out, 1).flatten(-2) * functional.silu(z)


def prepare() -> None:
    """Let Megatron-Core run without mamba-ssm."""
    mamba_mixer.HAVE_MAMBA_SSM = True
    mamba_mixer.RMSNormGated = mamba_mixer.ExtendedRMSNorm = GroupNorm
    mamba_mixer.mamba_split_conv1d_scan_combined = scan
    mamba_block.TENorm = WrappedTorchNorm


def stack_spec(column: type) -> ModuleSpec:
    """Return Megatron-Core's mamba_stack_spec; `column` is its matrix with a norm before it."""
    mixer = ModuleSpec(MambaMixer, submodules=MambaMixerSubmodules(column, RowParallelLinear))
    attention = ModuleSpec(
        SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(linear_qkv=column, core_attention=DotProductAttention,
                                           linear_proj=RowParallelLinear))
    mlp = ModuleSpec(MLP, submodules=MLPSubmodules(linear_fc1=column, linear_fc2=RowParallelLinear))
    return ModuleSpec(MambaStack, submodules=MambaStackSubmodules(
        mamba_layer=ModuleSpec(MambaLayer, submodules=MambaLayerSubmodules(
            mixer=mixer, mamba_bda=get_bias_dropout_add)),
        attention_layer=ModuleSpec(TransformerLayer, submodules=TransformerLayerSubmodules(
            self_attention=attention, self_attn_bda=get_bias_dropout_add)),
        mlp_layer=ModuleSpec(MLPLayer, submodules=TransformerLayerSubmodules(
            mlp=mlp, mlp_bda=get_bias_dropout_add))))


def build(config: Any, vocab: int, options: dict[str, Any], column: type, first: bool,
          last: bool) -> torch.nn.Module:
    """Build the model of this rank; `options` are those of all models."""
    layers = len(config.layers_block_type)
    stages = options["pipeline_model_parallel_size"]
    if layers % stages:  # as Banyan has them: the first stages have one more
        options = options | {"num_layers_in_first_pipeline_stage": layers // stages + 1,
                             "num_layers_in_last_pipeline_stage": layers // stages}
    made = TransformerConfig(**options | {
        "num_layers": layers,
        "is_hybrid_model": True,
        "layernorm_epsilon": config.layer_norm_epsilon,
        "gated_linear_unit": False,
        "activation_func": squared_relu,
        "mamba_num_heads": config.mamba_num_heads,
        "mamba_head_dim": config.mamba_head_dim,
        "mamba_state_dim": config.ssm_state_size,
        "mamba_num_groups": config.n_groups,
    })
    return MambaModel(
        made, stack_spec(column), vocab, config.max_position_embeddings, pre_process=first,
        post_process=last, parallel_output=False,
        hybrid_override_pattern="".join(SYMBOLS[kind] for kind in config.layers_block_type)).eval()
