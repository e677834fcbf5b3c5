"""Small models of Megatron-Core in any parallel layout, and comparisons of their parameters."""

from __future__ import annotations

import logging
import re
import sys
import warnings
import zlib
from typing import Any
from unittest import mock

from groups import DEVICE, dist, torch
from host import stand_in

try:
    # Importing it must not open a GPU: the ranks of the tests are forked.
    with warnings.catch_warnings(), mock.patch.object(torch.cuda, "is_available", lambda: False):
        warnings.simplefilter("ignore")
        import megatron.core  # noqa: F401
        from megatron.core.hyper_comm_grid import HyperCommGrid
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.resharding import utils
        from megatron.core.resharding.copy_services.gloo_copy_service import GlooCopyService
        from megatron.core.transformer import TransformerConfig
except ImportError as error:
    print(f"skipped: Megatron-Core is not installed (make test-megatron installs it): {error}")
    sys.exit(77)


#: A newer release than 0.16.1: more arguments, and persistent buffers move, too.
IS_NEWER = hasattr(utils, "named_refit_tensors")

logging.disable(logging.WARNING)  # a newer release deprecates GPTModel
warnings.filterwarnings("ignore", module="megatron")


def groups(tp: int, pp: int, ep: int, first: int = 0, size: int | None = None) -> Any:
    """Make the process groups of a model on the ranks from ``first`` on. All ranks call this."""
    size = dist.get_world_size() if size is None else size
    options = {"rank_offset": first, "backend": "gloo"}
    dense = HyperCommGrid([tp, 1, size // tp // pp, pp], ["tp", "cp", "dp", "pp"], **options)
    experts = HyperCommGrid(
        [tp, ep, size // tp // ep // pp, pp], ["tp", "ep", "dp", "pp"], **options
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


def build(
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    experts: int = 0,
    seed: int = 0,
    *,
    chunks: int = 1,
    tied: bool = False,
    expert_bias: bool = False,
    first: int = 0,
    size: int | None = None,
    vocabulary: int = 128,
    **config: Any,
) -> Any:
    """Build a model whose parameters are alike on the ranks that hold the same part of them.

    All ranks call this; those that are not among the ``size`` ranks from ``first`` on get None.
    Several ``chunks`` make a list, as virtual pipeline stages do. ``config`` replaces options of
    the TransformerConfig.
    """
    made = groups(tp, pp, ep, first, size)
    size = dist.get_world_size() if size is None else size
    if not first <= dist.get_rank() < first + size:
        return None
    options = {
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "ffn_hidden_size": 128,
        "moe_ffn_hidden_size": 96 if experts else None,
        "num_moe_experts": experts or None,
        "moe_grouped_gemm": False,
        "moe_router_enable_expert_bias": expert_bias,
        "moe_router_score_function": "sigmoid" if expert_bias else "softmax",
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "qk_layernorm": True,
        "use_cpu_initialization": True,
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
        "pipeline_dtype": torch.float32,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": tp,
    }
    transformer = TransformerConfig(**(options | config))
    stage = made.pp.rank()
    models = []
    for chunk in range(chunks):
        stages = {"vp_stage": chunk} if chunks > 1 else {}
        spec = get_gpt_layer_local_spec(experts or None, qk_layernorm=True)
        model = GPTModel(
            transformer,
            spec,
            vocab_size=vocabulary,
            max_sequence_length=32,
            pre_process=stage == 0 and chunk == 0,
            post_process=stage == pp - 1 and chunk == chunks - 1,
            share_embeddings_and_output_weights=tied,
            pg_collection=made,
            **stages,
        )
        fill(model, seed)
        models.append(model.to(DEVICE))
    return models if chunks > 1 else models[0]


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
                weight = torch.nn.Parameter(torch.empty(shape, device=DEVICE))
                weight.allreduce = False
                weight.tensor_model_parallel = True
                weight.partition_dim, weight.partition_stride = dim, stride
                setattr(layer, f"weight{i}", weight)
            setattr(self.experts, name, layer)


def whole_name(model: Any, name: str) -> str:
    """Return the name of a parameter in the whole model."""
    made = model.pg_collection
    layer = re.search(r"(?<=layers\.)\d+", name)
    if layer:
        number = model.get_submodule(name[: layer.end()]).layer_number - 1
        name = f"{name[: layer.start()]}{number}{name[layer.end() :]}"
    expert = re.search(r"(?<=local_experts\.)\d+|(?<=\.weight)\d+", name)
    if expert:
        first = made.ep.rank() * ((model.config.num_moe_experts or 0) // made.ep.size())
        name = f"{name[: expert.start()]}{first + int(expert[0])}{name[expert.end() :]}"
    return name


def fill(model: Any, seed: int) -> None:
    """Fill parameters and persistent buffers by the seed, their whole names and the part."""
    made = model.pg_collection
    tensors = [*model.named_parameters(), *buffers(model)]
    for name, tensor in tensors:
        is_expert = not getattr(tensor, "allreduce", True)
        part = (made.expt_tp if is_expert else made.tp).rank()
        if not getattr(tensor, "tensor_model_parallel", False):
            part = 0
        text = f"{seed} {whole_name(model, name)} {part}"
        generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
        with torch.no_grad():
            made_of = torch.rand(tensor.shape, generator=generator, device="cpu")
            tensor.copy_(made_of)


def buffers(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the persistent buffers that a newer release moves."""
    if not IS_NEWER:
        return []
    found = utils.named_persistent_buffers(model)
    return [(name, tensor) for name, _owner, _buffer, tensor in found]


def poison(model: Any) -> None:
    """Fill the parameters and persistent buffers with NaN."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *(one for _name, one in buffers(model))):
            tensor.fill_(torch.nan)


def values(model: Any) -> dict[str, torch.Tensor]:
    """Return copies of the parameters and persistent buffers."""
    return {name: t.detach().clone() for name, t in (*model.named_parameters(), *buffers(model))}


def compare(name: str, model: Any, wanted: dict[str, torch.Tensor]) -> None:
    """Raise an error if a parameter or buffer differs from ``wanted``."""
    made = values(model)
    assert made.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert not tensor.isnan().any(), f"Megatron-Core did not fill {key}"
        assert made[key].dtype == tensor.dtype, f"{name}: {key} is of type {made[key].dtype}"
        assert torch.equal(made[key], tensor), f"{name}: {key}"


def gloo_service() -> Any:
    """Return Megatron-Core's own service."""
    stand_in()
    return GlooCopyService()
