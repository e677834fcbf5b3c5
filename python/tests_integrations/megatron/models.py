"""Small models of Megatron-Core on the host, in any parallel layout."""

from __future__ import annotations

import re
import sys
import warnings
import zlib
from typing import Any

from groups import dist, torch

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core  # noqa: F401
        from megatron.core.hyper_comm_grid import HyperCommGrid
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.transformer import TransformerConfig
except ImportError as error:
    print(f"skipped: Megatron-Core is not installed (make test-megatron installs it): {error}")
    sys.exit(77)


def groups(tp: int, pp: int, ep: int) -> Any:
    """Make the process groups of a model on all ranks."""
    size = dist.get_world_size()
    dense = HyperCommGrid([tp, 1, size // tp // pp, pp], ["tp", "cp", "dp", "pp"], backend="gloo")
    experts = HyperCommGrid(
        [tp, ep, size // tp // ep // pp, pp], ["tp", "ep", "dp", "pp"], backend="gloo"
    )
    made = ProcessGroupCollection()
    for name in ("tp", "cp", "dp", "pp"):
        setattr(made, name, dense.create_pg(name))
    made.mp = dense.create_pg(["tp", "pp"])
    made.dp_cp = dense.create_pg(["dp", "cp"])
    made.tp_dp_cp = dense.create_pg(["tp", "dp", "cp"])
    made.tp_cp = dense.create_pg(["tp", "cp"])
    made.ep = experts.create_pg("ep")
    made.expt_tp = experts.create_pg("tp")
    made.expt_dp = experts.create_pg("dp")
    made.tp_ep = experts.create_pg(["tp", "ep"])
    made.tp_ep_pp = experts.create_pg(["tp", "ep", "pp"])
    made.embd = made.pos_embd = None
    return made


def build(tp: int = 1, pp: int = 1, ep: int = 1, experts: int = 0, seed: int = 0) -> Any:
    """Build a model whose parameters are alike on the ranks that hold the same part of them."""
    config = TransformerConfig(
        num_layers=4,
        hidden_size=64,
        num_attention_heads=8,
        num_query_groups=4,
        ffn_hidden_size=128,
        moe_ffn_hidden_size=96 if experts else None,
        num_moe_experts=experts or None,
        moe_grouped_gemm=False,
        gated_linear_unit=True,
        add_bias_linear=False,
        qk_layernorm=True,
        use_cpu_initialization=True,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        pipeline_dtype=torch.float32,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=tp,
    )
    made = groups(tp, pp, ep)
    stage = made.pp.rank()
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(experts or None, qk_layernorm=True),
        vocab_size=128,
        max_sequence_length=32,
        pre_process=stage == 0,
        post_process=stage == pp - 1,
        share_embeddings_and_output_weights=False,
        pg_collection=made,
    )
    fill(model, seed)
    return model


class GroupedExperts(torch.nn.Module):
    """Experts with the names and attributes of Transformer Engine's grouped layers.

    Transformer Engine itself needs a GPU.
    """

    def __init__(self, tp: int, ep: int, experts: int) -> None:
        super().__init__()
        self.pg_collection = groups(tp, 1, ep)
        self.config = TransformerConfig(
            num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=experts
        )
        self.experts = torch.nn.Module()
        for name, shape, dim, stride in (
            ("linear_fc1", (48 // tp, 8), 0, 2),
            ("linear_fc2", (8, 24 // tp), 1, 1),
        ):
            layer = torch.nn.Module()
            for i in range(experts // ep):
                weight = torch.nn.Parameter(torch.empty(shape))
                weight.allreduce = False
                weight.tensor_model_parallel = True
                weight.partition_dim, weight.partition_stride = dim, stride
                setattr(layer, f"weight{i}", weight)
            setattr(self.experts, name, layer)


def fill(model: Any, seed: int) -> None:
    """Fill the parameters with numbers of the seed, the name in the whole model and the part."""
    made = model.pg_collection
    count = (model.config.num_moe_experts or 0) // made.ep.size()
    for name, parameter in model.named_parameters():
        is_expert = not getattr(parameter, "allreduce", True)
        first = made.ep.rank() * count if is_expert else 0
        number = re.search(r"(?<=local_experts\.)\d+|(?<=\.weight)\d+", name)
        whole = name
        if number:
            whole = f"{name[: number.start()]}{first + int(number[0])}{name[number.end() :]}"
        part = (made.expt_tp if is_expert else made.tp).rank()
        if not getattr(parameter, "tensor_model_parallel", False):
            part = 0
        text = f"{seed} {whole} {made.pp.rank()} {part}"
        generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
        with torch.no_grad():
            parameter.copy_(torch.rand(parameter.shape, generator=generator))


def poison(model: Any) -> None:
    """Fill the parameters with NaN."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
