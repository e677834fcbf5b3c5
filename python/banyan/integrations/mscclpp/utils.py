"""Helpers of programs that run plans: ``mscclpp.utils`` without its compiler of kernels."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any

import numpy as np

from ._types import DataType

__all__ = ["is_torch_tensor", "pack", "torch_dtype_to_mscclpp_dtype"]


def is_torch_tensor(tensor: Any) -> bool:
    """Return whether this is a tensor of PyTorch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def pack(*args: Any) -> bytes:
    """Return the arguments of a kernel as bytes: numbers, and addresses of arrays and tensors.

    An int takes 4 bytes, ``ctypes.c_size_t`` 8, and bytes are taken as they are. Raises
    RuntimeError for other types.
    """
    packed = b""
    for arg in args:
        if isinstance(arg, int):
            packed += struct.pack("i", arg)
        elif isinstance(arg, ctypes.c_size_t):
            packed += struct.pack("N", arg.value)
        elif isinstance(arg, bytes):
            packed += arg
        elif isinstance(arg, np.ndarray):
            packed += struct.pack("P", arg.ctypes.data)
        elif is_torch_tensor(arg):
            packed += struct.pack("P", arg.data_ptr())
        elif hasattr(arg, "__cuda_array_interface__"):
            packed += struct.pack("P", arg.__cuda_array_interface__["data"][0])
        else:
            raise RuntimeError(f"Unsupported type: {type(arg)}")
    return packed


def torch_dtype_to_mscclpp_dtype(dtype: Any) -> DataType:
    """Return the type of elements that PyTorch's type stands for. Raises ValueError for others."""
    name = str(dtype).removeprefix("torch.")
    if name not in DataType.__members__:
        raise ValueError(f"Unknown data type: {dtype}")
    return DataType[name]
