"""Banyan moves tensors between the processes and GPUs of a job.

It reshards a model's weights from one parallel layout to another, runs collective algorithms that
are written as programs, and fuses collectives over tensor-parallel by data-parallel grids.
"""

from __future__ import annotations

import atexit
import sys

TYPE_CHECKING = False  # as in typing, whose import takes as long as all the rest

from ._core import (
    Array,
    Box,
    Communicator,
    Layout,
    LayoutFile,
    LocalTensor,
    MegatronCase,
    MegatronTransfer,
    Memory,
    Mesh,
    Model,
    Piece,
    Placement,
    Replicate,
    Rules,
    Shard,
    Spec,
    StridedShard,
    UniqueId,
    World,
    adopt,
    alloc,
    dtype_bytes,
    version,
)
from ._errors import (
    Aborted,
    Corrupt,
    Error,
    FormatError,
    Invalid,
    Mismatch,
    NotFound,
    NvshmemFailure,
    OutOfMemory,
    PeerLost,
    Refused,
    SystemFailure,
    Timeout,
    Unsupported,
)

if TYPE_CHECKING:
    from typing import Any

    from ._types import (
        DeviceLike,
        DTypeLike,
        PathLike,
        PlacementLike,
        ReduceOp,
        Side,
        StreamLike,
        TensorLike,
    )

__version__ = version()

__all__ = [
    "Aborted",
    "Array",
    "Box",
    "Communicator",
    "Corrupt",
    "DTypeLike",
    "DeviceLike",
    "Error",
    "FormatError",
    "Invalid",
    "Layout",
    "LayoutFile",
    "LocalTensor",
    "MegatronCase",
    "MegatronTransfer",
    "Memory",
    "Mesh",
    "Mismatch",
    "Model",
    "NotFound",
    "NvshmemFailure",
    "OutOfMemory",
    "PathLike",
    "PeerLost",
    "Piece",
    "Placement",
    "PlacementLike",
    "ReduceOp",
    "Refused",
    "Replicate",
    "Rules",
    "Shard",
    "Side",
    "Spec",
    "StreamLike",
    "StridedShard",
    "SystemFailure",
    "TensorLike",
    "Timeout",
    "UniqueId",
    "Unsupported",
    "World",
    "adopt",
    "alloc",
    "dtype_bytes",
    "version",
]


def __getattr__(name: str) -> Any:
    """Import the types of arguments, which only annotations need, when they are asked for."""
    if name in __all__:
        from . import _types

        return getattr(_types, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _close_worlds() -> None:
    """Close what the program left open, so that no rank waits for one that has ended."""
    from . import _core

    failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    _core._close_all(None if failed is None else f"{type(failed).__name__}: {failed}")


atexit.register(_close_worlds)
