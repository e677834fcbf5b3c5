"""Arrays for inputs and outputs."""

from __future__ import annotations

import enum
import importlib.util
import math
import mmap
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class GpuBufferGranularity(enum.Enum):
    """Granularity of MSCCL++'s allocations for multicast. It changes nothing here."""

    MultiCastMinimum = 0
    MultiCastRecommended = 1


class _Pointer(NamedTuple):
    """The address of an array, as CuPy's arrays have it in ``data.ptr``."""

    ptr: int
    owner: Any


class _HostArray(np.ndarray):  # type: ignore[type-arg,unused-ignore]
    """An array of NumPy whose ``data.ptr`` is its address, as in CuPy."""

    @property
    def data(self) -> _Pointer:  # type: ignore[override]
        """Return the array's address."""
        return _Pointer(self.ctypes.data, self)


def _cupy() -> Any:
    """Return CuPy if it is installed and has a GPU."""
    if importlib.util.find_spec("cupy") is None:
        return None
    import cupy  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return cupy if cupy.cuda.is_available() else None


class GpuBuffer:
    """A new array in an allocation of its own: of CuPy on the current GPU, else of NumPy.

    ``shape``, ``dtype``, ``strides`` and ``order`` are those of ``numpy.ndarray``. An array of
    NumPy begins at a page, its elements are zero, and it has ``data.ptr``, as arrays of CuPy do.
    Raises ValueError if a dimension is not positive.
    """

    def __new__(
        cls,
        shape: int | Iterable[int],
        dtype: Any = float,
        strides: tuple[int, ...] | None = None,
        order: Any = "C",
        granularity: GpuBufferGranularity = GpuBufferGranularity.MultiCastMinimum,
    ) -> Any:
        """Return the array."""
        if isinstance(shape, int):
            shape = (shape,)
        try:
            shape = tuple(shape)
        except TypeError:
            raise ValueError("Shape must be a tuple-like or an integer.") from None
        if any(extent <= 0 for extent in shape):
            raise ValueError("Shape must be positive.")
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        cupy = _cupy()
        if cupy is not None:
            memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0)
            return cupy.ndarray(shape, dtype=dtype, strides=strides, order=order, memptr=memory)
        return _HostArray(
            shape, dtype=dtype, buffer=mmap.mmap(-1, nbytes), strides=strides, order=order
        )
