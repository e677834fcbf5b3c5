"""Memory in which vLLM's parameters receive weights, in the format in which vLLM loads them.

Many layers keep a parameter as it is loaded: transfers write straight into it. Others repack it
after loading (``process_weights_after_loading``). Transfers then write into a buffer, which is
processed as vLLM's layerwise reload does, and copied into the kernel's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import (
    materialize_layer,
    restore_layer_on_meta,
)

from ... import Invalid, Layout, Mxfp8, NotFound, Unsupported
from .. import _mxfp8
from .._updates import without_empty

#: Parameters that an error lists.
_MAX_LISTED = 20


class _Place(NamedTuple):
    """A parameter or buffer of a module, which processing may have removed."""

    module: nn.Module
    name: str  # in the module

    @property
    def tensor(self) -> Tensor:
        found: Tensor = getattr(self.module, self.name)
        return found.detach()


def _owners(module: nn.Module) -> list[Any]:
    """Return a module, its method, and vLLM's objects that they hold, such as kernels."""
    found: list[Any] = [module, module.quant_method]
    for owner in found:
        for value in vars(owner).values():
            if isinstance(value, dict):
                value = list(value.values())
            for one in value if isinstance(value, list | tuple) else [value]:
                is_state = type(one).__module__.startswith("vllm.model_executor.")
                if (
                    not is_state
                    or isinstance(one, nn.Module | Tensor)
                    or not hasattr(one, "__dict__")
                ):
                    continue
                if not any(one is other for other in found):
                    found.append(one)
    return found


class _Saved:
    """What processing may change of a module, to put it back."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = dict(module._parameters)
        self.buffers = dict(module._buffers)
        self.not_persistent = set(module._non_persistent_buffers_set)
        self._owners = _owners(module)
        self._attributes = [dict(owner.__dict__) for owner in self._owners]

    def place(self) -> None:
        """Put the parameters and buffers back."""
        self.module._parameters.clear()
        self.module._parameters.update(self.parameters)
        self.module._buffers.clear()
        self.module._buffers.update(self.buffers)
        self.module._non_persistent_buffers_set.clear()
        self.module._non_persistent_buffers_set.update(self.not_persistent)

    def changed(self) -> bool:
        """True if other attributes than tensors have changed."""
        for owner, saved in zip(self._owners, self._attributes, strict=True):
            now = owner.__dict__
            if now.keys() != saved.keys():
                return True
            for name, value in now.items():
                before = saved[name]
                is_plain = value is None or isinstance(value, bool | int | float | str)
                if value is not before and not (is_plain and value == before):
                    return True
        return False

    def restore(self) -> None:
        """Put everything back."""
        for owner, saved in zip(self._owners, self._attributes, strict=True):
            owner.__dict__.clear()
            owner.__dict__.update(saved)
        self.place()


def _is_recorded(module: nn.Module, name: str) -> bool:
    """True if vLLM's reload can give a module a tensor of this name."""
    parameters, buffers = get_layerwise_info(module).restore_metadata
    return name in parameters or name in buffers


def _is_same_kind(one: Tensor, other: Tensor) -> bool:
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and one.stride() == other.stride()
        and one.device == other.device
    )


def _process(module: Any, tensors: Mapping[str, Tensor], device: torch.device) -> _Saved:
    """Give a module its parameters as loaded, and process them. Return what it had before."""
    saved = _Saved(module)
    info = get_layerwise_info(module)
    restore_layer_on_meta(module, info)
    for name, loaded in tensors.items():
        parameter = getattr(module, name)
        if not parameter.is_meta:  # vLLM keeps it in place, such as a bias
            parameter.data.copy_(loaded)
            continue
        given = loaded.detach()
        given.__class__ = parameter.__class__
        given.__dict__ = parameter.__dict__.copy()
        setattr(module, name, given)
    with device:
        materialize_layer(module, info)
    for name, before in (saved.parameters | saved.buffers).items():
        now = getattr(module, name, None)
        if name in tensors or now is before or now is None or before is None:
            continue
        if now.shape == before.shape and now.dtype == before.dtype:
            now.data.copy_(before.data)
    module.__dict__.pop("_already_called_process_weights_after_loading", None)
    method = module.quant_method
    if device.type == "cpu" and getattr(method, "moe_kernel", None) is not None:
        method.moe_kernel = None  # else vLLM 0.32 does not repack experts for the CPU again
    method.process_weights_after_loading(module)
    if hasattr(module, "update_param_tp_status"):
        module.update_param_tp_status()
    return saved


def _require_all(model: nn.Module, layout: Layout) -> None:
    """Raise if a learned layout leaves a parameter alone.

    A checkpoint may lack the scales of attention layers. The running model has its own.
    """
    filled = {piece.tensor for piece in layout.pieces}
    names = [one.name for number, one in enumerate(layout.tensors) if number not in filled]
    modules: dict[str, Any] = dict(model.named_modules())
    missing = [
        name
        for name in names
        if not is_deferred_attention_layer(modules.get(name.rpartition(".")[0], model))
    ]
    if missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        raise NotFound(
            f"the trainers' tensors fill nothing of {len(missing)} parameters of vLLM: "
            + ", ".join(f'"{name}"' for name in missing[:_MAX_LISTED])
            + more
        )


def _require_awake() -> None:
    """Raise if vLLM's sleep has taken the memory of the weights."""
    allocators = sys.modules.get("vllm.device_allocator.cumem")
    allocator = None if allocators is None else allocators.CuMemAllocator.instance
    if allocator is None:
        return
    for data in allocator.pointer_to_data.values():
        if data.is_asleep and data.tag == "weights":
            raise Invalid(
                'vLLM\'s weights are asleep: call wake_up, or wake_up(["weights"]), before'
            )


class Memory:
    """The destination of a model's weights."""

    def __init__(self, model: nn.Module, layout: Layout, device: torch.device, dtype: Any) -> None:
        """Find the memory of each tensor of a learned layout.

        ``dtype``: of the model's activations. Local, under the engine's current configuration.
        Raises Unsupported, with the name of the parameter, if vLLM's reload cannot restore it, and
        NotFound with those that nothing fills.
        """
        self._model, self._device, self._dtype = model, device, dtype
        _require_all(model, layout)
        self.layout = layout = without_empty(layout)
        """What an update fills."""
        self._specs = {one.name: (one.shape, getattr(torch, one.dtype)) for one in layout.tensors}
        self._places = self._find()
        modules: dict[nn.Module, dict[str, str]] = {}
        for whole, places in self._places.items():
            for place in places:
                modules.setdefault(place.module, {})[place.name] = whole
        #: Parameters that processing only quantizes, as Banyan does; each with its scales.
        self._quantizable: dict[str, _Place] = {}
        #: Modules that are processed; of each tensor the names in the module and in the layout.
        self._processed = {
            module: names for module, names in modules.items() if not self._is_kept(module, names)
        }
        #: Tensors of the layout that are received in buffers.
        self.buffered = {whole for names in self._processed.values() for whole in names.values()}
        self._buffers: dict[str, Tensor] = {}
        self._received: set[str] = set()

    def _find(self) -> dict[str, list[_Place]]:
        """Return the places of each tensor of the layout; tied ones have several."""
        owners: dict[int, list[_Place]] = {}
        modules = dict(self._model.named_modules())
        for module in modules.values():
            for name, tensor in (module._parameters | module._buffers).items():
                if tensor is not None:
                    owners.setdefault(id(tensor), []).append(_Place(module, name))
        places: dict[str, list[_Place]] = {}
        for whole in self._specs:
            path, _, name = whole.rpartition(".")
            module = modules.get(path)
            held = owners.get(id(getattr(module, name, None)))
            if held is None and module is not None and _is_recorded(module, name):
                held = [_Place(module, name)]  # processing has removed it
            if held is None or module is None:
                raise Unsupported(
                    f'the loader fills "{whole}", which the running model does not have'
                )
            places[whole] = held
            if is_deferred_attention_layer(module):
                raise Unsupported(f'"{whole}" is of an attention layer, which processes it')
        return places

    def _empty(self, whole: str) -> Tensor:
        shape, dtype = self._specs[whole]
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _is_kept(self, module: nn.Module, names: Mapping[str, str]) -> bool:
        """True if a module computes with its tensors as they were loaded, and with nothing else.

        Processing is tried with other memory, and undone.
        """
        held = {name: getattr(module, name, None) for name in names}
        live = {name: one.detach() for name, one in held.items() if isinstance(one, Tensor)}
        given = {name: self._empty(whole) for name, whole in names.items()}
        is_loaded = all(name in live and _is_same_kind(live[name], given[name]) for name in names)
        if not isinstance(getattr(module, "quant_method", None), QuantizeMethodBase):
            if not is_loaded:
                raise Unsupported(
                    f"{_listed(names)} changed after it was loaded, and nothing says how"
                )
            return True
        for one in given.values():
            one.copy_(torch.rand(one.shape, device=self._device) + 0.5)
        matrix, scales = self._in_mxfp8(module, names)
        if scales is not None:
            given[matrix].copy_(_mxfp8.probe(given[matrix].shape, given[matrix].dtype))
        copies = {name: one.clone() for name, one in given.items()}
        stays = {name for name in names if not _is_recorded(module, name)}
        before = {name: live[name].clone() for name in stays}
        saved = _Saved(module)
        try:
            _process(module, given, self._device)
            made: dict[str, Any] = {name: getattr(module, name, None) for name in saved.parameters}
            for name, kernel in saved.parameters.items():
                new = made[name]
                if kernel is None or self._is_consumed(module, kernel):
                    continue
                if new is None or new.shape != kernel.shape or new.dtype != kernel.dtype:
                    what = "nothing" if new is None else f"{new.dtype} {list(new.shape)}"
                    raise Unsupported(
                        f'{_listed(names)}: vLLM\'s reload makes {what} of "{name}", and the '
                        f"running model has {kernel.dtype} {list(kernel.shape)}"
                    )
            if scales is not None and not saved.changed():
                others = saved.parameters.keys() - {matrix, scales}
                bytes_of = [made[name].cpu().view(torch.uint8) for name in (matrix, scales)]
                wanted = _mxfp8.quantized(copies[matrix].cpu())
                if (
                    module._parameters.keys() == saved.parameters.keys()
                    and all(made[name] is saved.parameters[name] for name in others)
                    and all(map(torch.equal, bytes_of, wanted))
                ):
                    self._quantizable[names[matrix]] = _Place(module, scales)
            return (
                is_loaded
                and not saved.changed()
                and module._parameters.keys() == saved.parameters.keys()
                and all(
                    one.data_ptr() == (live if name in stays else given)[name].data_ptr()
                    and torch.equal(one, copies[name])
                    for name, one in ((name, getattr(module, name)) for name in names)
                )
            )
        finally:
            saved.restore()
            for name, one in before.items():
                getattr(module, name).data.copy_(one)

    def _is_consumed(self, module: nn.Module, kernel: Tensor) -> bool:
        """True if an attention layer has made its own weights of a module's, and emptied these."""
        return kernel.numel() == 0 and any(
            is_deferred_attention_layer(one) and module in one._modules.values()
            for one in self._model.modules()
        )

    def _in_mxfp8(self, module: nn.Module, names: Mapping[str, str]) -> tuple[str, str | None]:
        """Return the names of a module's matrix and of its scales, if it may be in MXFP8."""
        for name, whole in names.items():
            shape, dtype = self._specs[whole]
            live = module._parameters.get(name)
            if (
                live is None
                or len(self._places[whole]) > 1
                or dtype not in (torch.bfloat16, torch.float16)
                or live.dtype != torch.float8_e4m3fn
                or tuple(live.shape) != tuple(shape)
                or len(shape) != 2
                or shape[1] % _mxfp8.BLOCK
            ):
                continue
            for other, scales in module._parameters.items():
                if (
                    scales is not None
                    and scales.dtype in (torch.uint8, torch.float8_e8m0fnu)
                    and tuple(scales.shape) == Mxfp8.scales_shape(shape)
                ):
                    return name, other
        return "", None

    @property
    def quantizable(self) -> Collection[str]:
        """Tensors of the layout that may arrive in MXFP8: vLLM makes the same bytes of them.

        vLLM's processing was compared with Banyan's quantization: random values, and those at the
        edges of the format. They differ for infinity and NaN.
        """
        return self._quantizable.keys()

    def quantize(self, names: Collection[str]) -> Mapping[str, Tensor]:
        """Receive tensors of the layout in MXFP8, in place, and return the memory of scales."""
        for whole in names:
            del self._processed[self._quantizable[whole].module]
            self._specs[whole] = self._specs[whole][0], torch.float8_e4m3fn
        self.buffered = {one for wholes in self._processed.values() for one in wholes.values()}
        return {whole: self._quantizable[whole].tensor for whole in names}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the memory that an update fills, by the names of the layout. Local.

        The buffer of a tensor is allocated when it is looked up. Raises Invalid while vLLM sleeps.
        """
        _require_awake()
        self._received.clear()
        return _Lookup(self._specs, self._tensor)

    def _tensor(self, whole: str) -> Tensor:
        if whole not in self.buffered:
            return self._places[whole][0].tensor
        if whole not in self._buffers:
            self._buffers[whole] = self._empty(whole)
        return self._buffers[whole]

    @torch.no_grad()
    def finish(self, received: Sequence[str]) -> None:
        """Process tensors that were received, and all when the last of them are there.

        Local, under the engine's current configuration.
        """
        self._received.update(received)
        for whole in self.buffered.intersection(received):
            for place in self._places[whole]:
                if place.module not in self._processed:
                    place.tensor.copy_(self._buffers[whole])
        for module, names in self._processed.items():
            wholes = set(names.values())
            if wholes <= self._received and not wholes.isdisjoint(received):
                self._finish(module, names)
        if len(self._received) == len(self._specs):
            attention: list[Any] = [
                one for one in self._model.modules() if is_deferred_attention_layer(one)
            ]
            for layer in attention:
                layer.process_weights_after_loading(self._dtype)
        if self._device.type != "cpu":  # the next update allocates them again
            waiting = {
                whole
                for names in self._processed.values()
                for whole in names.values()
                if not self._received.issuperset(names.values())
            }
            for whole in self._buffers.keys() - waiting:
                del self._buffers[whole]

    def _finish(self, module: nn.Module, names: Mapping[str, str]) -> None:
        """Process a module with what its buffers received."""
        given = {name: self._buffers[whole] for name, whole in names.items()}
        saved = _process(module, given, self._device)
        consumed: dict[str, Any] = {}
        for tensors in (saved.parameters, saved.buffers):
            for name, kernel in tensors.items():
                made = getattr(module, name, None)
                if kernel is None or made is None or made is kernel:
                    continue
                if self._is_consumed(module, kernel):
                    consumed[name] = made  # until the attention layer is processed
                else:
                    kernel.data.copy_(made)
        saved.place()
        module._parameters.update(consumed)


class _Lookup(Mapping[str, Tensor]):
    """Tensors that are made when they are looked up."""

    def __init__(self, names: Collection[str], make: Callable[[str], Tensor]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Tensor:
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f'"{whole}"' for whole in names.values())
