"""What a trainer rank sends: shards of a state dict, or tensors with a layout of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.distributed.weight_transfer.base import ModuleSource, ParamMeta, WeightSource

from ... import Layout, Unsupported
from ...torch import local_tensors
from .. import _updates as updates
from .._names import Convert, checkpoint_layout

try:  # vLLM 0.32
    from vllm.distributed.weight_transfer.m2n_common import REPLICATE
    from vllm.distributed.weight_transfer.m2n_source import DTensorModuleSource, M2NWeightSource
except ImportError:
    DTensorModuleSource = M2NWeightSource = None

#: Namespaces of operators that communicate.
_COLLECTIVE = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


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

    @cached_property  # which vLLM 0.33 requires; 0.32 has a method
    def metadata(self) -> list[ParamMeta]:
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


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses collective operations of torch.distributed."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or raise before a collective one begins."""
        if DTensor in types:  # it runs on the local tensors, and what that needs comes here
            return NotImplemented
        if func.namespace in _COLLECTIVE:
            raise Unsupported(f"it runs the collective operation {func}")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _not_gathering() -> Iterator[None]:
    """Let DTensors stay as they are on this thread when a source asks for whole tensors."""
    thread, gather = threading.get_ident(), DTensor.full_tensor

    def full_tensor(self: DTensor, *args: Any, **options: Any) -> Tensor:
        return self if threading.get_ident() == thread else gather(self, *args, **options)

    DTensor.full_tensor = full_tensor  # type: ignore[method-assign]
    try:
        with _Watch():  # type: ignore[no-untyped-call]
            yield
    finally:
        DTensor.full_tensor = gather  # type: ignore[method-assign]


class _Iterated:
    """A WeightSource that yields whole tensors: its own names and choice, without its gathering.

    It is iterated while ``full_tensor`` returns the DTensor itself. So it yields DTensors, whose
    shards are known, and the plain tensors that this rank has whole.
    """

    def __init__(self, source: Any) -> None:
        self._source = source

    def _state(self) -> dict[str, Tensor]:
        try:
            return self._iterate()
        except Unsupported as error:
            raise Unsupported(
                f"{type(self._source).__name__} cannot be read without gathering: {error}. Pass "
                "the tensors that each rank has in a ShardSource"
            ) from None

    def _iterate(self) -> dict[str, Tensor]:
        metadata, whole = self._source.metadata, getattr(self._source, "iter_full", None)
        listed = metadata() if callable(metadata) else metadata
        metas = {one.name: one for one in listed}
        held: dict[str, Tensor] = {}
        versions: dict[str, int] = {}
        with torch.no_grad(), _not_gathering():
            for name, one in self._source if whole is None else whole():  # vLLM 0.33: iter_full
                if one is None:  # held_names: other ranks have it
                    continue
                if name in held or name not in metas:
                    what = "twice" if name in held else "and its metadata lacks it"
                    raise Unsupported(f'it yields "{name}" {what}')
                meta = metas[name]
                if (tuple(one.shape), one.dtype) != (tuple(meta.shape), meta.dtype):
                    raise Unsupported(
                        f'it yields "{name}" as {one.dtype} {list(one.shape)}, but its metadata '
                        f"says {meta.dtype} {list(meta.shape)}"
                    )
                held[name] = one.detach()
                versions[name] = _version(one)
        for name, one in held.items():
            if _version(one) != versions[name]:
                raise Unsupported(
                    f'it overwrote "{name}" after it had yielded it (each tensor needs its own '
                    "memory)"
                )
        return held

    def tensors(self) -> Mapping[str, Tensor]:
        return local_tensors(self._state())

    def part(self, rank: int) -> updates.Part:
        return updates.state_part(self._state(), rank=rank)


def _version(tensor: Tensor) -> int:
    """Return a number that grows when a tensor is written."""
    return 0 if tensor.is_inference() else tensor._version


class _Pieces:
    """A source whose metadata says which piece of each tensor this rank has."""

    def __init__(self, metadata: Callable[[], Any], local: Callable[[], Any]) -> None:
        self._metadata, self._local = metadata, local

    def tensors(self) -> Mapping[str, Tensor]:
        return {name: one for name, one in self._local() if one is not None}

    def part(self, rank: int) -> updates.Part:
        return updates.sharded_part(self._metadata(), self.tensors(), rank)


def _m2n_metadata(source: Any) -> list[SimpleNamespace]:
    """Return the metadata of an M2NWeightSource in the form of vLLM 0.33."""
    mesh = source.mesh()
    return [
        SimpleNamespace(
            name=one.name,
            shape=one.shape,
            owners=tuple(range(mesh.start_rank, mesh.start_rank + mesh.size)),
            mesh_shape=mesh.dims,
            placements=[
                Replicate() if code == REPLICATE else Shard(code)
                for code in one.placements or (REPLICATE,) * len(mesh.dims)
            ],
        )
        for one in source.metadata()
    ]


def _has_local(source: Any) -> bool:
    """True if a source yields this rank's pieces, as sources of vLLM 0.33 may."""
    base = getattr(WeightSource, "iter_local", None)  # which raises
    return hasattr(source, "iter_local") and getattr(type(source), "iter_local", None) is not base


def reader_of(source: Any) -> ShardSource | _Iterated | _Pieces:
    """Return what reads the part and the tensors of a source on this rank. Nothing is gathered.

    Raises Unsupported, with the class, if it is no source of weights.
    """
    if isinstance(source, ShardSource):
        return source
    if type(source) in (ModuleSource, DTensorModuleSource):
        return ShardSource(source._module)
    if _has_local(source):
        return _Pieces(lambda: source.metadata, source.iter_local)
    if M2NWeightSource is not None and isinstance(source, M2NWeightSource):
        return _Pieces(lambda: _m2n_metadata(source), lambda: iter(source))
    if isinstance(source, WeightSource):
        return _Iterated(source)
    raise Unsupported(
        f"{type(source).__name__} is no source of weights: use ShardSource, or a WeightSource of "
        "vLLM"
    )
