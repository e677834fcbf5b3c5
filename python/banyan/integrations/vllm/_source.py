"""What a trainer rank sends: shards of a state dict, or tensors with a layout of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import ModuleSource, ParamMeta, WeightSource

from ... import Layout, Unsupported
from ...torch import local_tensors
from .. import _updates as updates
from .._names import Convert, checkpoint_layout


class ShardSource(WeightSource):  # type: ignore[misc]
    """The shards that this trainer rank holds, for the engine "banyan". Nothing is gathered.

    ``ShardSource(model)``: a module or a state dict of tensors and DTensors, with names as in the
    model's checkpoint. ``ShardSource(layout, tensors)``: a ``banyan.Layout`` of this rank, in which
    the global tensors have the checkpoint's names, and a mapping of its local tensors, or a
    function that returns one; such as of a Megatron-Core model, with the layout of
    ``Layout.add_model(model, Spec("tp=2,packing=megatron"), rank)``.
    """

    def __init__(
        self,
        state: Any,
        tensors: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Keep the module, the state dict, or the layout and its tensors. Local."""
        if isinstance(state, Layout) != (tensors is not None):
            raise TypeError("give a module or a state dict, or a layout and its tensors")
        self._state, self._tensors = state, tensors

    def tensors(self) -> Mapping[str, Tensor]:
        """Return this rank's tensors as they are now, by the names of the layout. Local."""
        if isinstance(self._state, Layout):
            tensors = self._tensors() if callable(self._tensors) else self._tensors
            assert tensors is not None
            return tensors
        return local_tensors(_state(self._state))

    def part(self, rank: int) -> updates.Part:
        """Return this rank's layout and tensors. ``rank``: among the trainers. Local."""
        if isinstance(self._state, Layout):
            return updates.Part(self._state, self.tensors())
        layout, tensors = updates.state_part(_state(self._state), rank=rank)
        revert = _reversal(self._state)
        if revert is not None:
            layout = checkpoint_layout(layout, revert)
        return updates.Part(layout, tensors)

    def metadata(self) -> list[ParamMeta]:  # a cached_property from vLLM 0.33 on
        """Not offered: the engine "banyan" reads the layout."""
        raise NotImplementedError('ShardSource is for the engine "banyan"')

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Not offered: whole tensors would have to be gathered."""
        raise NotImplementedError('ShardSource is for the engine "banyan"')


def _state(state: Any) -> Any:
    """Return a state dict: of a module with one name of each tensor, as a checkpoint has it."""
    if not isinstance(state, torch.nn.Module):
        return state
    named: dict[int, str] = {}
    held = state.state_dict(keep_vars=True)
    return {name: one for name, one in held.items() if named.setdefault(id(one), name) == name}


def _reversal(state: Any) -> Convert | None:
    """Return the function by which transformers names and divides a model's tensors when it saves.

    None: it is no model of transformers 5.
    """
    try:
        from transformers import PreTrainedModel
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return None
    if not isinstance(state, PreTrainedModel):
        return None
    return lambda given: revert_weight_conversion(state, given)


def _shards(source: Any) -> ShardSource | None:
    """Return a source of shards; None: it has ``iter_local``."""
    if isinstance(source, ShardSource):
        return source
    if type(source) is ModuleSource:
        return ShardSource(source._module)
    if hasattr(source, "iter_local"):
        return None
    raise Unsupported(
        f"{type(source).__name__} has no iter_local, so the shards of a rank are unknown: use "
        "ShardSource, ModuleSource, or a source with iter_local"
    )


def part_of(source: Any, rank: int) -> updates.Part:
    """Return the layout and the tensors of a source on this trainer rank.

    Local, but for what ``iter_local`` does.
    """
    shards = _shards(source)
    if shards is not None:
        return shards.part(rank)
    return updates.sharded_part(source.metadata, dict(source.iter_local()), rank)


def tensors_of(source: Any) -> Mapping[str, Tensor]:
    """Return the tensors of a source on this rank, as they are now."""
    shards = _shards(source)
    return shards.tensors() if shards is not None else dict(source.iter_local())
