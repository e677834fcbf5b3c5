"""Handles: they keep the plans of the calls that are given them."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ... import Invalid
from ._errors import no_binding, reshard_error
from ._group import in_group, submit
from ._plans import DEFAULT, Call, mine, release
from ._types import DistTensor
from ._window import require_inside

_numbers = itertools.count(DEFAULT + 1)
_live: set[int] = set()


@dataclass(frozen=True)
class Config:
    """Configuration of a handle.

    ``max_cta``: thread blocks of nccl.m2n's kernel, at most. It has no effect here: Banyan's copies
    choose their blocks by the GPU and the sizes.
    """

    max_cta: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a number that is not positive."""
        if self.max_cta is not None and self.max_cta <= 0:
            raise ValueError(f"max_cta must be positive or None, got {self.max_cta}")

    def to_binding(self) -> None:
        """Raise FunctionNotFoundError: libnccl_m2n.so has its structs, and Banyan has none."""
        raise no_binding("Config.to_binding")


class Handle:
    """A keeper of plans. ``create`` makes it, and ``destroy`` or a ``with`` block ends it.

    A call plans, or takes a plan that the world keeps. The plan stays until the last handle that
    used it is destroyed. Creating and destroying are local.
    """

    def __init__(self, ptr: int) -> None:
        """Refer to the handle with this number."""
        self._ptr = int(ptr)

    @classmethod
    def create(cls, config: Config | None = None) -> Handle:
        """Make a handle. Local."""
        if config is not None and not isinstance(config, Config):
            raise TypeError(
                f"config must be banyan.integrations.m2n.Config or None, not "
                f"{type(config).__name__}"
            )
        number = next(_numbers)
        _live.add(number)
        return cls(number)

    @property
    def ptr(self) -> int:
        """Number of the handle. Raises Invalid if it has been destroyed."""
        return self.require("read ptr")

    def require(self, operation: str) -> int:
        """Return the number. Raises Invalid, with the operation, if the handle was destroyed."""
        if self._ptr not in _live:
            raise reshard_error(
                Invalid(f"Cannot {operation}: Handle is not initialized or has been destroyed")
            )
        return self._ptr

    def reshard(self, comm: Any, src: DistTensor, dst: DistTensor, *, stream: Any = None) -> None:
        """Move a tensor from the parts of one side to those of the other. Collective over comm.

        Every rank passes both sides. ``comm`` and ``stream`` are those of the function ``reshard``.
        """
        self._submit("reshard", comm, src, dst, stream)

    def reshard_with_window(
        self, comm: Any, window: Any, src: DistTensor, dst: DistTensor, *, stream: Any = None
    ) -> None:
        """Move a tensor whose part on this rank lies in a registered window. Collective."""
        self._submit("reshard_with_window", comm, src, dst, stream, True, window)

    def _submit(
        self,
        operation: str,
        comm: Any,
        src: DistTensor,
        dst: DistTensor,
        stream: Any,
        has_window: bool = False,
        window: Any = None,
    ) -> None:
        def read(rank: int, members: Collection[int]) -> Call:
            number = self.require(operation)
            call = _described(rank, members, src, dst)
            if has_window:
                require_inside(window, *call.tensors)
            return call._replace(handle=number)

        submit(comm, stream, read)

    def destroy(self) -> None:
        """Close the plans that no other handle used. Local; does nothing the second time.

        On a GPU, synchronize the streams of the calls before.
        """
        if self._ptr in _live:
            _end(self._ptr)
            _live.remove(self._ptr)
        self._ptr = 0

    def __enter__(self) -> Handle:
        """Return self."""
        self.require("enter context manager")
        return self

    def __exit__(self, *_: object) -> None:
        """Destroy."""
        self.destroy()

    def __repr__(self) -> str:
        """Return text as nccl.m2n does."""
        return f"<Handle ptr={self._ptr:#x}>" if self._ptr in _live else "<Handle destroyed>"


def _described(rank: int, members: Collection[int], src: DistTensor, dst: DistTensor) -> Call:
    """Read both sides as descriptors."""
    if not isinstance(src, DistTensor) or not isinstance(dst, DistTensor):
        raise TypeError("src and dst must be DistTensor descriptors")
    if src.ndims != dst.ndims:
        raise Invalid(f"src/dst ndims mismatch: {src.ndims} != {dst.ndims}")
    if src.torch_dtype != dst.torch_dtype:
        raise Invalid(f"src/dst dtype mismatch: {src.dtype!s} != {dst.dtype!s}")
    whole = [one.side.whole(one.local_shape) for one in (src, dst)]
    if whole[0] != whole[1]:
        raise ValueError(f"src is a part of a tensor of {whole[0]}, but dst of one of {whole[1]}")
    local = mine(rank, members, (src.tensor, dst.tensor), (src.side, dst.side))
    return Call(local, whole[0], src.torch_dtype, (src.side, dst.side))


def _end(handle: int) -> None:
    if in_group():
        raise reshard_error(Invalid("a handle cannot be finalized while a group is recorded"))
    release(handle)


def number_of(handle: Any) -> int:
    """Return the number of a handle, or that of the default one for None."""
    if handle is None:
        return DEFAULT
    if not isinstance(handle, Handle):
        raise TypeError(
            f"handle must be banyan.integrations.m2n.Handle or None, not {type(handle).__name__}"
        )
    return handle.require("reshard")


def init(config: Config | None = None) -> Handle:
    """Make a handle, as ``Handle.create`` does."""
    return Handle.create(config)


def finalize(handle: Handle | None = None) -> None:
    """Destroy a handle; None: close the plans of the calls without one. Local."""
    if handle is None:
        _end(DEFAULT)
    elif isinstance(handle, Handle):
        handle.destroy()
    else:
        raise TypeError(
            f"handle must be banyan.integrations.m2n.Handle or None, not {type(handle).__name__}"
        )
