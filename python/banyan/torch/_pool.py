"""Tensors in symmetric memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from .. import _core, alloc
from ._ops import Group, _find, _name


def _close_quietly(pool: _core._Pool) -> None:
    with suppress(BufferError):  # tensors may outlive their pool when the process ends
        pool.close()


class MemoryPool:
    """Symmetric memory for the tensors of a group, one part for each rank.

    Collectives of the group and reshards access its tensors in place, without staging. On a GPU,
    tensors that PyTorch allocates inside ``with pool.use():`` lie in the pool; ``pool.empty`` makes
    single ones, also on the host. All ranks allocate and free the tensors that they pass to
    collectives in the same order, so that these lie at the same offsets. BANYAN_CHECK_CALLS=1
    compares the offsets in every call.

    Delete the tensors before you close the pool.
    """

    def __init__(self, nbytes: int, *, group: Group = None, device: Any = "cuda") -> None:
        """Allocate ``nbytes`` for this rank on ``device``. Collective over the group."""
        self.device = torch.empty(0, device=device).device
        self.nbytes = nbytes
        self._collectives = _find(_name(group))
        self._memory = alloc(self._collectives.world, nbytes, self.device)
        self._collectives.communicator(self.device).register(self._memory)
        self._pool = _core._create_pool(self._memory)
        self._mem_pool: torch.cuda.MemPool | None = None
        if self.device.type == "cuda":
            # A MemPool does not keep its allocator, which frees its blocks.
            self._allocator: Any = torch.cuda.memory.CUDAPluggableAllocator(
                _core.__file__, "banyan_pool_alloc", "banyan_pool_free"
            )
            self._mem_pool = self._new_mem_pool()
        self._finish = weakref.finalize(self, _close_quietly, self._pool)

    def _new_mem_pool(self) -> torch.cuda.MemPool:
        return torch.cuda.MemPool(self._allocator.allocator())

    @property
    def used_bytes(self) -> int:
        """Bytes that are in use, in the blocks that PyTorch's allocator keeps, too."""
        return self._pool.used_bytes

    @contextmanager
    def use(self) -> Iterator[None]:
        """Let PyTorch allocate the CUDA tensors of this thread in the pool."""
        if self._mem_pool is None:
            raise ValueError(
                "PyTorch has no pools for the host; use pool.empty(shape, dtype) for its tensors"
            )
        with self._pool, torch.cuda.use_mem_pool(self._mem_pool, self.device):
            yield

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor in the pool. Raises OutOfMemory if it has no gap of that size."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if self._mem_pool is not None:
            with self.use():
                return torch.empty(*shape, dtype=dtype, device=self.device)
        return self._pool.array(shape, dtype).torch()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Free the memory. Collective. Raises BufferError while tensors lie in the pool."""
        if not self._memory.is_open:
            return
        if self._mem_pool is not None:  # the blocks that PyTorch keeps for later come back
            self._mem_pool = None
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        try:
            self._pool.close()
        except BufferError:
            if self.device.type == "cuda":  # the pool stays usable
                self._mem_pool = self._new_mem_pool()
            raise
        self._collectives.communicator(self.device).unregister(self._memory)
        self._memory.close()

    def __enter__(self) -> MemoryPool:
        """Return self."""
        return self

    def __exit__(self, *args: object) -> None:
        """Close the pool."""
        self.close()
