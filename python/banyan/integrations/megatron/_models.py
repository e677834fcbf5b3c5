"""Reshards between two models of Megatron-Core, from its metadata, in place."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.resharding import utils
from megatron.core.utils import unwrap_model

from ... import Layout, Reshard, Tensors, Transform, World
from ...torch import world as world_of


def _core(model: Any) -> Any:
    """Return the module that has the parameters and the process groups."""
    if isinstance(model, (list, tuple)):
        if len(model) != 1:
            raise ValueError(
                f"{len(model)} model chunks: virtual pipeline stages are not supported"
            )
        model = model[0]
    core = unwrap_model(model)
    if getattr(core, "pg_collection", None) is None:
        raise ValueError(f"{type(core).__name__} has no pg_collection, which tells its layout")
    return core


def _whole_name(meta: Any) -> str:
    """Return the name of a parameter in the whole model.

    Megatron-Core 0.16.1 numbers grouped experts, but not the modules ``local_experts.N``.
    """
    name: str = meta.resolved_name or meta.name
    if not meta.is_ep or meta.global_expert_index is not None:
        return name
    parts = name.split(".")
    for i in range(1, len(parts)):
        if parts[i - 1] == "local_experts" and parts[i].isdigit():
            ranks = meta.expert_parallel_group_ranks
            first = ranks.index(meta.owner_rank) * (meta.num_experts // len(ranks))
            parts[i] = str(first + int(parts[i]))
            return ".".join(parts)
    if len(meta.expert_parallel_group_ranks) > 1:
        raise ValueError(
            f"parameter {meta.name} of experts: its name has no number of an expert, so its place "
            "in the whole model is unknown"
        )
    return name


def model_layout(model: Any) -> Layout:
    """Return the layout of a model's parameters on this rank, as Megatron-Core describes them.

    ``model``: a module with ``pg_collection``, also wrapped, or a list with one. Experts and layers
    have their numbers in the whole model, so the names of two parallel layouts are comparable.
    """
    core = _core(model)
    rank = dist.get_rank()
    experts = core.config.num_moe_experts
    prefixes = utils._build_layer_module_prefix_map(core)
    layout = Layout()
    for name, parameter in core.named_parameters():
        meta = utils.extract_param_metadata(
            parameter,
            name,
            rank,
            core.pg_collection,
            num_experts=experts,
            layer_module_prefix_map=prefixes,
        )
        layout.add_megatron(
            name,
            meta.dtype,
            meta.shape,
            rank,
            resolved_name=_whole_name(meta),
            is_tp=meta.is_tp,
            partition_dim=meta.partition_dim,
            partition_stride=meta.partition_stride,
            partition_sizes=getattr(meta, "partition_sizes", None) or (),
            tp_ranks=meta.tensor_parallel_group_ranks or (),
            dp_ranks=meta.data_parallel_group_ranks or (),
            is_ep=meta.is_ep,
        )
    return layout


#: The reshard of two models, by the destination, or by the source on ranks without one; by the
#: world on ranks without both.
_kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _parameters(core: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in core.named_parameters()}


def banyan_reshard(
    src_model: Any,
    dst_model: Any,
    *,
    group: dist.ProcessGroup | None = None,
    world: World | None = None,
    backend: str | None = None,
    require_whole_source: bool = False,
    transform: Transform | None = None,
) -> Tensors | None:
    """Fill the parameters of ``dst_model`` from those of ``src_model``, in place.

    Collective over the ranks of the default group, which are also those of ``group`` or ``world``.
    A rank passes None for a model that it does not have. The first call for two models plans; later
    calls move. All elements of the destination are filled, or the call fails on every rank before
    anything moves. Return the destination's set of tensors, with its version, or None.
    """
    world = world_of(group) if world is None else world
    cores = [None if model is None else _core(model) for model in (src_model, dst_model)]
    owner: Any = next((core for core in reversed(cores) if core is not None), world)
    options = (backend, require_whole_source, transform)
    found = _kept.get(owner)
    fits = found is not None and found[1:3] == (options, world)
    if found is not None and fits:
        fits = all(a() is b if a else b is None for a, b in zip(found[0], cores, strict=True))
    if b"\0" in world.gather(b"\1" if fits else b"\0"):
        devices = {p.device for core in cores if core is not None for p in core.parameters()}
        if len(devices) > 1:
            raise ValueError(f"parameters on several devices: {sorted(map(str, devices))}")
        layouts = [None if core is None else model_layout(core) for core in cores]
        device = devices.pop() if devices else None
        reshard = Reshard(
            layouts[0],
            layouts[1],
            world,
            backend=backend,
            device=None if device is None or device.type == "cpu" else device,
            require_whole_source=require_whole_source,
            transform=transform,
        )
        references = [None if core is None else weakref.ref(core) for core in cores]
        found = (references, options, world, reshard)
        _kept[owner] = found
    assert found is not None
    with torch.no_grad():
        filled = found[3](*(None if core is None else _parameters(core) for core in cores))
        if cores[1] is not None:
            for parameter in cores[1].parameters():
                torch.autograd.graph.increment_version(parameter)
    return filled  # type: ignore[no-any-return]
