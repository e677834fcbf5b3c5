"""Types of arguments."""

from __future__ import annotations

import os
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable


@runtime_checkable
class SupportsDLPack(Protocol):
    """A tensor of any library that has DLPack: PyTorch, NumPy, JAX, CuPy and others."""

    def __dlpack__(self, *, stream: Any = ...) -> Any:
        """Lend the memory."""
        ...

    def __dlpack_device__(self) -> Any:
        """Return the device's type and number."""
        ...


class SupportsBuffer(Protocol):
    """A buffer on the host, such as a bytearray: ``collections.abc.Buffer`` of Python 3.12."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Lend the memory."""
        ...


#: A tensor: an object with DLPack, or on the host a buffer such as a bytearray.
TensorLike: TypeAlias = SupportsDLPack | SupportsBuffer
#: A type of elements: "bfloat16", torch.bfloat16, numpy.float32, numpy.dtype("f4") and the like.
DTypeLike: TypeAlias = Any
#: None or "cpu" for the host; a GPU's number, "cuda:0" or torch.device("cuda", 0).
DeviceLike: TypeAlias = Any
#: A CUDA stream of PyTorch or CuPy, or its address. None: the current stream of the library
#: that the tensor is of.
StreamLike: TypeAlias = Any
#: A path of a file or folder.
PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
#: A reduction of elements.
ReduceOp: TypeAlias = Literal["sum", "min", "max", "prod", "avg"]
#: How a mesh axis divides a tensor: banyan.Shard(0), banyan.Replicate(), or PyTorch's placements.
PlacementLike: TypeAlias = Any
#: A side of a reshard.
Side: TypeAlias = Literal["source", "destination"]
