"""NCCL M2N's constants, types of elements, and its descriptor of a side."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import math
from collections.abc import Sequence
from typing import Any

import torch

from ... import Invalid
from ._errors import no_binding
from ._geometry import Mesh, placement_dim, read_side

#: Most dimensions of a tensor. nccl.m2n's are 3.
MAX_TENSOR_DIMS = 8


class NcclDataType(enum.IntEnum):
    """NCCL's numbers of the types."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11


_TYPES = {
    NcclDataType.FLOAT8E4M3: torch.float8_e4m3fn,
    NcclDataType.FLOAT8E5M2: torch.float8_e5m2,
}
_TYPES |= {one: getattr(torch, one.name.lower()) for one in NcclDataType if one not in _TYPES}
_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}
_ALIASES = {
    "char": torch.int8,
    "byte": torch.uint8,
    "float8_e4m3": torch.float8_e4m3fn,
    "|i1": torch.int8,
    "|u1": torch.uint8,
}
# Names of the CUDA Array Interface.
_ALIASES |= {
    f"<{kind}{size}": getattr(torch, f"{name}{8 * size}")
    for kind, name in (("i", "int"), ("u", "uint"), ("f", "float"))
    for size in (2, 4, 8)
}


def torch_type(dtype: Any) -> torch.dtype:
    """Return PyTorch's type for its own, NCCL's number, a name, or NumPy's type."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if isinstance(dtype, int):  # NCCL's, also of nccl.core
        if dtype in set(NcclDataType):
            return _TYPES[NcclDataType(dtype)]
        raise Invalid(f"unsupported NCCL Reshard dtype: {dtype!r}")
    if isinstance(dtype, type):  # numpy.float32
        name = dtype.__name__ if dtype.__module__ == "numpy" else ""
    else:
        name = str(dtype).removeprefix("torch.").lower()
    found = _ALIASES.get(name, getattr(torch, name, None) if name else None)
    if not isinstance(found, torch.dtype):
        raise Invalid(f"unsupported NCCL Reshard dtype: {dtype!r}")
    return found


class _CudaBytes:
    """Bytes of a GPU, for libraries that read the CUDA Array Interface."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def at_pointer(pointer: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over memory that the caller keeps: of the GPU, or of a host without one.

    Raises Invalid if the memory is that of another GPU than the current one.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        raw = torch.empty(0, dtype=torch.uint8, device=device)
    elif torch.cuda.is_available():
        raw = torch.as_tensor(_CudaBytes(pointer, nbytes), device="cuda")
        if raw.data_ptr() != pointer:  # PyTorch has copied it
            current = torch.cuda.current_device()
            raise Invalid(f"{pointer:#x} is memory of another GPU than the current one, {current}")
    else:
        raw = torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(pointer), dtype=torch.uint8)
    return raw.view(dtype).view(tuple(shape))


def as_tensor(buffer: Any, what: str) -> torch.Tensor | None:
    """Return the memory of a tensor, a DTensor's part, or an object with a CUDA array."""
    local = getattr(buffer, "_local_tensor", buffer)
    if local is None or isinstance(local, torch.Tensor):
        return local
    if hasattr(local, "__cuda_array_interface__") or hasattr(local, "__array_interface__"):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return torch.as_tensor(local)
    raise TypeError(
        f"{what}: a tensor, an object with _local_tensor, a CUDA array, a NumPy array or a pointer "
        f"is needed, not {type(buffer).__name__}"
    )


def read_buffer(buffer: Any, shape: Sequence[int] | None, dtype: Any, what: str) -> Any:
    """Return a rank's part as a tensor of the shape and the type that are given, or None.

    A pointer needs both. A dense tensor with as many bytes is viewed so.
    """
    wanted = None if dtype is None else torch_type(dtype)
    if isinstance(buffer, int) and not isinstance(buffer, bool):
        if buffer < 0:
            raise ValueError(f"raw device pointer must be non-negative, got {buffer}")
        if shape is None or wanted is None:
            missing = f"{what}_local_shape" if shape is None else f"{what}_dtype"
            raise ValueError(f"{missing} is required for raw pointer buffers")
        return None if buffer == 0 else at_pointer(buffer, shape, wanted)
    tensor = as_tensor(buffer, what)
    if tensor is None or (
        (shape is None or tuple(shape) == tuple(tensor.shape)) and wanted in (None, tensor.dtype)
    ):
        return tensor
    shape = tuple(tensor.shape) if shape is None else tuple(shape)
    wanted = tensor.dtype if wanted is None else wanted
    if math.prod(shape) * wanted.itemsize != tensor.numel() * tensor.element_size():
        raise ValueError(
            f"{what}: {list(shape)} of {wanted} are given, but the tensor has {list(tensor.shape)} "
            f"of {tensor.dtype}"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"{what} is not dense, so it cannot be viewed as {list(shape)} of {wanted}"
        )
    return tensor.detach().reshape(-1).view(torch.uint8).view(wanted).view(shape)


class DistTensor:
    """This rank's part of a tensor, with the mesh and the placements of its side.

    ``buffer``: a tensor with any strides, a CUDA array, a pointer, or None on a rank that is not in
    the mesh. ``local_shape`` and ``dtype`` follow from a tensor. ``mesh``: ranks of the
    communicator. ``placements``: one for each axis of the mesh.
    """

    def __init__(
        self,
        buffer: Any,
        local_shape: Sequence[int] | None = None,
        dtype: Any = None,
        *,
        mesh: Mesh,
        placements: Sequence[Any],
    ) -> None:
        """Describe a part. Raises TypeError and ValueError for what contradicts itself."""
        if not isinstance(mesh, Mesh):
            raise TypeError(f"mesh must be banyan.integrations.m2n.Mesh, not {type(mesh).__name__}")
        tensor = None if isinstance(buffer, int) else as_tensor(buffer, "buffer")
        if tensor is not None:
            local_shape = tensor.shape if local_shape is None else local_shape
            dtype = tensor.dtype if dtype is None else dtype
        if local_shape is None:
            raise ValueError("local_shape is required for None or raw-pointer buffers")
        if dtype is None:
            raise ValueError("dtype is required for None or raw-pointer buffers")
        self._dtype = torch_type(dtype)
        self._shape = tuple(int(extent) for extent in local_shape)
        if not 1 <= len(self._shape) <= MAX_TENSOR_DIMS:
            raise ValueError(f"tensor rank must be 1..{MAX_TENSOR_DIMS}, got shape={self._shape}")
        if min(self._shape) < 0:
            raise ValueError(f"local_shape values must be non-negative, got {self._shape}")
        self._tensor: torch.Tensor | None = read_buffer(buffer, self._shape, self._dtype, "buffer")
        self._buffer, self._mesh = buffer, mesh
        ndim = len(self._shape)
        self.side = read_side(mesh, placements, ndim, "tensor")
        dims = tuple(placement_dim(one, ndim, "tensor_placements") for one in placements)
        self._placements = dims + (-1,) * (len(mesh.dims) - len(dims))

    @property
    def data_ptr(self) -> int:
        """Address of the part; 0: none."""
        return 0 if self._tensor is None else self._tensor.data_ptr()

    @property
    def buffer(self) -> Any:
        """Object that the descriptor was made of."""
        return self._buffer

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return self._shape

    @property
    def ndims(self) -> int:
        """Number of dimensions of the tensor."""
        return len(self._shape)

    @property
    def dtype(self) -> NcclDataType | torch.dtype:
        """NCCL's type; PyTorch's, where NCCL has none."""
        return _NUMBERS.get(self._dtype, self._dtype)

    @property
    def mesh(self) -> Mesh:
        """Mesh of the side."""
        return self._mesh

    @property
    def placements(self) -> tuple[int, ...]:
        """Dimension that each axis of the mesh divides; -1: none."""
        return self._placements

    @property
    def is_participating(self) -> bool:
        """True if this rank has a part with memory."""
        return self.data_ptr != 0

    @property
    def tensor(self) -> torch.Tensor | None:
        """The part as a tensor; None: this rank has none."""
        return self._tensor

    @property
    def torch_dtype(self) -> torch.dtype:
        """PyTorch's type."""
        return self._dtype

    def as_binding(self) -> None:
        """Raise FunctionNotFoundError: libnccl_m2n.so has its structs, and Banyan has none."""
        raise no_binding("DistTensor.as_binding")

    def __repr__(self) -> str:
        """Return text as nccl.m2n does."""
        role = "data" if self.is_participating else "none"
        name = getattr(self.dtype, "name", str(self.dtype))
        return (
            f"<DistTensor role={role} shape={self.local_shape} dtype={name} "
            f"mesh={self.mesh.dims}@{self.mesh.start_rank}>"
        )
