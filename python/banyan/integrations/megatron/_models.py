"""Reshards between two models of Megatron-Core, from its metadata, in place."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import fp8_utils
from megatron.core.resharding import utils
from megatron.core.utils import unwrap_model

from ... import Layout, Reshard, Tensors, Transform, World
from ...torch import world as world_of
from ._agree import on_all

#: A newer Megatron-Core also moves persistent buffers.
_MOVES_BUFFERS = hasattr(utils, "named_refit_tensors")
#: Names of the embedding, from which a model with tied embeddings gives the output layer.
_EMBEDDINGS = ("embedding.word_embeddings.weight", "word_embeddings.weight")
_OUTPUT = "output_layer.weight"


def _chunks(model: Any) -> list[Any]:
    """Return the modules that have the parameters and the process groups: one, or its stages."""
    found = []
    for one in model if isinstance(model, (list, tuple)) else [model]:
        core = unwrap_model(one)
        if getattr(core, "pg_collection", None) is None:
            raise ValueError(f"{type(core).__name__} has no pg_collection, which tells its layout")
        found.append(core)
    if not found:
        raise ValueError("a model without chunks")
    return found


def _whole_name(meta: Any) -> str:
    """Return the name of a parameter in the whole model.

    Megatron-Core numbers grouped experts, but not the modules ``local_experts.N``.
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


@dataclass
class _Entry:
    """A parameter or persistent buffer of this rank."""

    local_name: str  # with the chunk's number in front, if there are several
    whole_name: str
    meta: Any
    owner: torch.nn.Module  # of a buffer
    buffer: str | None  # its name there


def _named_tensors(core: Any) -> Iterator[tuple[str, torch.Tensor, Any, str | None]]:
    for name, parameter in core.named_parameters():
        yield name, parameter, core, None
    if _MOVES_BUFFERS:
        for name, owner, buffer, tensor in utils.named_persistent_buffers(core):
            yield name, tensor, owner, buffer


def _local_name(chunks: Sequence[Any], number: int, name: str) -> str:
    return name if len(chunks) == 1 else f"{number}.{name}"


def _entries(chunks: Sequence[Any], rank: int, offset: int) -> list[_Entry]:
    found = []
    options = {"rank_offset": offset} if offset else {}
    for number, core in enumerate(chunks):
        prefixes = utils._build_layer_module_prefix_map(core)
        for name, tensor, owner, buffer in _named_tensors(core):
            if fp8_utils.is_float8tensor(tensor) or fp8_utils.is_mxfp8tensor(tensor):
                raise ValueError(
                    f"parameter {name} is quantized by Transformer Engine; banyan_reshard moves "
                    "plain tensors, and execute_reshard_plan also MXFP8 ones"
                )
            meta = utils.extract_param_metadata(
                tensor,
                name,
                rank,
                core.pg_collection,
                num_experts=core.config.num_moe_experts,
                layer_module_prefix_map=prefixes,
                **options,
            )
            local = _local_name(chunks, number, name)
            found.append(_Entry(local, _whole_name(meta), meta, owner, buffer))
    return found


def _layout(entries: list[_Entry], rank: int) -> Layout:
    layout = Layout()
    for one in entries:
        meta = one.meta
        layout.add_megatron(
            one.local_name,
            meta.dtype,
            meta.shape,
            rank,
            resolved_name=one.whole_name,
            is_tp=meta.is_tp,
            partition_dim=meta.partition_dim,
            partition_stride=meta.partition_stride,
            partition_sizes=getattr(meta, "partition_sizes", None) or (),
            tp_ranks=meta.tensor_parallel_group_ranks or (),
            dp_ranks=meta.data_parallel_group_ranks or (),
            is_ep=meta.is_ep,
        )
    return layout


def model_layout(model: Any) -> Layout:
    """Return the layout of a model's parameters on this rank, as Megatron-Core describes them.

    ``model``: a module with ``pg_collection``, also wrapped, or a list with the chunks of virtual
    pipeline stages. The local tensors of several chunks have the chunk's number in front of their
    names: ``0.decoder...``. Experts and layers have their numbers in the whole model, so the names
    of two parallel layouts are comparable. Persistent buffers, such as the bias of a router, are
    included with a Megatron-Core that moves them.
    """
    rank = dist.get_rank()
    return _layout(_entries(_chunks(model), rank, 0), rank)


def _adapt(source: list[_Entry], destination: list[_Entry], world: World) -> None:
    """Fit the destination's entries to the source: types of buffers, and tied embeddings.

    A trainer holds some buffers in another type than a fresh model, as float32 instead of bfloat16.
    Collective.
    """
    names = [one.whole_name for one in source]
    mine = {
        "types": {
            one.whole_name: str(one.meta.dtype).removeprefix("torch.")
            for one in source
            if one.buffer is not None
        },
        "ends": [name for name in names if name.endswith((_OUTPUT, *_EMBEDDINGS))],
    }
    types: dict[str, str] = {}
    ends: set[str] = set()
    for text in world.gather(json.dumps(mine).encode()):
        told = json.loads(text)
        types.update(told["types"])
        ends.update(told["ends"])
    for one in destination:
        if one.buffer is not None:
            dtype = getattr(torch, types.get(one.whole_name, "none"), one.meta.dtype)
            buffer = one.owner._buffers[one.buffer]
            if buffer is not None and dtype != buffer.dtype:
                one.owner._buffers[one.buffer] = buffer.to(dtype)
                one.meta.dtype = dtype
        elif one.whole_name.endswith(_OUTPUT) and one.whole_name not in ends:
            one.whole_name = next((name for name in _EMBEDDINGS if name in ends), one.whole_name)


#: The reshard of two models, by the destination, or by the source on ranks without one; by the
#: world on ranks without both.
_kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _tensors(chunks: Sequence[Any]) -> dict[str, torch.Tensor]:
    return {
        _local_name(chunks, number, name): tensor.detach()
        for number, core in enumerate(chunks)
        for name, tensor, _owner, _buffer in _named_tensors(core)
    }


def _refresh(chunks: Sequence[Any]) -> None:
    """Tell PyTorch and the modules that the parameters have changed."""
    for core in chunks:
        for _name, tensor, _owner, _buffer in _named_tensors(core):
            torch.autograd.graph.increment_version(tensor)
        for module in core.modules():
            refresh = getattr(module, "refresh_cache", None)  # of newer releases
            if callable(refresh):
                refresh()


def banyan_reshard(
    src_model: Any,
    dst_model: Any,
    *,
    group: dist.ProcessGroup | None = None,
    world: World | None = None,
    src_rank_offset: int = 0,
    dst_rank_offset: int = 0,
    backend: str | None = None,
    require_whole_source: bool = False,
    transform: Transform | None = None,
) -> Tensors | None:
    """Fill the parameters of ``dst_model`` from those of ``src_model``, in place.

    Collective over the ranks of ``group`` or ``world``, by default of the default group. A rank
    passes None for a model that it does not have, and a list for a model of several chunks (virtual
    pipeline stages). The first call for two models plans; later calls move. All elements of the
    destination are filled, or the call fails on every rank before anything moves. Return the
    destination's set of tensors, with its version, or None.

    ``src_rank_offset``, ``dst_rank_offset``: added to the ranks of a model's process groups, if
    trainer and engine have default groups of their own, to make ranks of the world (newer than
    0.16.1). Persistent buffers move, too, if Megatron-Core's planner moves them; a buffer of the
    destination takes the source's type. The output layer of a destination is filled from the
    embedding if the source has tied them.
    """
    world = world_of(group) if world is None else world
    models = (src_model, dst_model)
    sides = on_all(world, lambda: [None if one is None else _chunks(one) for one in models])
    owner: Any = next((chunks[0] for chunks in reversed(sides) if chunks is not None), world)
    offsets = (src_rank_offset, dst_rank_offset)
    options = (backend, require_whole_source, transform, offsets)
    modules = [core for chunks in sides for core in (chunks or [None])]
    found = _kept.get(owner)
    fits = found is not None and found[1:3] == (options, world) and len(found[0]) == len(modules)
    if found is not None and fits:
        fits = all(a() is b if a else b is None for a, b in zip(found[0], modules, strict=True))
    if b"\0" in world.gather(b"\1" if fits else b"\0"):
        found = (
            [_reference(core) for core in modules],
            options,
            world,
            _plan(sides, *options, world),
        )
        _kept[owner] = found
    assert found is not None
    with torch.no_grad():
        filled = found[3](*(None if chunks is None else _tensors(chunks) for chunks in sides))
        if sides[1] is not None:
            _refresh(sides[1])
    return filled  # type: ignore[no-any-return]


def _reference(core: Any) -> Any:
    return None if core is None else weakref.ref(core)


def _plan(
    sides: Sequence[list[Any] | None],
    backend: str | None,
    require_whole_source: bool,
    transform: Transform | None,
    offsets: tuple[int, int],
    world: World,
) -> Reshard:
    def read() -> tuple[list[list[_Entry]], torch.device | None]:
        entries, devices = [], set()
        for chunks, offset in zip(sides, offsets, strict=True):
            entries.append([] if chunks is None else _entries(chunks, world.rank, offset))
            devices |= {tensor.device for tensor in _tensors(chunks or ()).values()}
        if len(devices) > 1:
            raise ValueError(f"parameters on several devices: {sorted(map(str, devices))}")
        return entries, devices.pop() if devices else None

    entries, device = on_all(world, read)
    _adapt(entries[0], entries[1], world)
    source, destination = (
        None if chunks is None else _layout(side, world.rank)
        for chunks, side in zip(sides, entries, strict=True)
    )
    return Reshard(
        source,
        destination,
        world,
        backend=backend,
        device=None if device is None or device.type == "cpu" else device,
        require_whole_source=require_whole_source,
        transform=transform,
    )
