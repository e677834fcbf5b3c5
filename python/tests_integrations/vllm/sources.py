"""Sources of weights as users of vLLM write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from vllm.distributed.weight_transfer.base import ModuleSource, ParamMeta, WeightSource
from vllm.distributed.weight_transfer.m2n_common import M2NParamMeta
from vllm.distributed.weight_transfer.m2n_source import DTensorModuleSource

PREFIX = "policy."


class Policy(torch.nn.Module):
    """A model inside another module, beside one that vLLM does not know."""

    def __init__(self, policy: torch.nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self.critic = torch.nn.Linear(3, 5)


def chosen(pairs: Any) -> Iterator[tuple[str, Any]]:
    """Yield what belongs to the policy, under the checkpoint's names."""
    for name, one in pairs:
        if name.startswith(PREFIX):
            yield name.removeprefix(PREFIX), one


class PolicySource(ModuleSource):  # type: ignore[misc]
    """Renames and filters what vLLM's source of a module yields."""

    def metadata(self) -> list[ParamMeta]:
        named = [(one.name, one) for one in super().metadata()]
        return [ParamMeta(name, one.dtype, one.shape) for name, one in chosen(named)]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return chosen(super().__iter__())


class PolicyShards(DTensorModuleSource):  # type: ignore[misc]
    """Renames and filters what vLLM's source of shards yields."""

    def metadata(self) -> list[ParamMeta]:
        named = [(one.name, one) for one in super().metadata()]
        return [
            M2NParamMeta(name, one.dtype, one.shape, one.placements) for name, one in chosen(named)
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return chosen(super().__iter__())


class StageSource(WeightSource):  # type: ignore[misc]
    """Has whole tensors, of some names on each rank: a pipeline whose ranks have a layer each."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, other = model, 1 - dist.get_rank()
        self._other = f"model.layers.{other}."

    def metadata(self) -> list[ParamMeta]:
        return [
            ParamMeta(name, one.dtype, tuple(one.shape))
            for name, one in self._model.named_parameters()
        ]

    def held_names(self) -> list[str]:
        return [
            name for name, _ in self._model.named_parameters() if not name.startswith(self._other)
        ]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name, one in self._model.named_parameters():
            yield name, None if name.startswith(self._other) else one


class FullSource(WeightSource):  # type: ignore[misc]
    """Has vLLM 0.33's names: ``metadata`` is an attribute, and ``iter_full`` yields tensors."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    @cached_property
    def metadata(self) -> list[ParamMeta]:
        return [
            ParamMeta(name, one.dtype, tuple(one.shape))
            for name, one in self._model.named_parameters()
        ]

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in self._model.named_parameters():
            yield name, one.full_tensor() if isinstance(one, DTensor) else one

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        raise NotImplementedError("iter_full is there")


class WideSource(ModuleSource):  # type: ignore[misc]
    """Casts what it yields."""

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(one.name, torch.float32, one.shape) for one in super().metadata()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in super().__iter__():
            yield name, one.float()


class GatheringSource(ModuleSource):  # type: ignore[misc]
    """Gathers by a collective operation of its own."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in self._module.named_parameters():
            assert isinstance(one, DTensor)
            local = one.to_local()
            made = [torch.empty_like(local) for _ in range(dist.get_world_size())]
            dist.all_gather(made, local)
            yield name, torch.cat(made)


class ReusingSource(ModuleSource):  # type: ignore[misc]
    """Yields one buffer for all tensors of a shape."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self._buffers: dict[Any, torch.Tensor] = {}

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in super().__iter__():
            buffer = self._buffers.setdefault(one.shape, torch.empty_like(one))
            yield name, buffer.copy_(one)


class LyingSource(ModuleSource):  # type: ignore[misc]
    """Fails on one rank: it yields tensors of another type than its metadata says."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in super().__iter__():
            yield name, one.float() if dist.get_rank() == 1 and one.ndim == 1 else one


class CuttingSource(ModuleSource):  # type: ignore[misc]
    """Cuts tensors where FSDP divides them, which redistributes them."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in super().__iter__():
            yield name, torch.cat([one[:1], one[1:]])


#: Makes a source of a model, on one of two ranks.
SOURCES: dict[str, Callable[[Any], Any]] = {
    "DTensorModuleSource": lambda model: DTensorModuleSource(model, 2),
    "ModuleSource": ModuleSource,
    "PolicySource": lambda model: PolicySource(Policy(model)),
    "PolicyShards": lambda model: PolicyShards(Policy(model), 2),
    "StageSource": StageSource,
    "FullSource": FullSource,
    "WideSource": WideSource,
    "GatheringSource": GatheringSource,
    "ReusingSource": ReusingSource,
    "CuttingSource": CuttingSource,
    "LyingSource": LyingSource,
    "dict": lambda model: dict(model.named_parameters()),
}
