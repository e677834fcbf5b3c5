"""Banyan moves tensors between the processes and GPUs of a job.

It reshards a model's weights from one parallel layout to another, runs collective algorithms that
are written as programs, and fuses collectives over tensor-parallel by data-parallel grids.
"""

from __future__ import annotations

import atexit
import sys

TYPE_CHECKING = False  # as in typing, whose import takes as long as all the rest

from ._core import (
    Algorithm,
    Array,
    Box,
    CheckFinding,
    CheckPlace,
    CheckReport,
    Communicator,
    Executor,
    ExpectedPart,
    Layout,
    LayoutFile,
    LinkUse,
    LoadedPlan,
    LocalTensor,
    MegatronCase,
    MegatronTransfer,
    Memory,
    Mesh,
    Model,
    Piece,
    Placement,
    Plan,
    PlanLink,
    PlanRun,
    PlanStats,
    Replicate,
    Rules,
    Shard,
    Simulation,
    SimulationStep,
    Spec,
    StridedShard,
    Topology,
    UniqueId,
    World,
    adopt,
    algorithms,
    alloc,
    compile_algorithm,
    dtype_bytes,
    tuned_parameters,
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
    ProgramError,
    Refused,
    SystemFailure,
    Timeout,
    Unsupported,
)

if TYPE_CHECKING:
    from typing import Any

    from ._command import command
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
    from ._view import View

__version__ = version()

__all__ = [
    "Aborted",
    "Algorithm",
    "Array",
    "Box",
    "CheckFinding",
    "CheckPlace",
    "CheckReport",
    "Communicator",
    "Corrupt",
    "DTypeLike",
    "DeviceLike",
    "Error",
    "Executor",
    "ExpectedPart",
    "FormatError",
    "Invalid",
    "Layout",
    "LayoutFile",
    "LinkUse",
    "LoadedPlan",
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
    "Plan",
    "PlanLink",
    "PlanRun",
    "PlanStats",
    "ProgramError",
    "ReduceOp",
    "Refused",
    "Replicate",
    "Rules",
    "Shard",
    "Side",
    "Simulation",
    "SimulationStep",
    "Spec",
    "StreamLike",
    "StridedShard",
    "SystemFailure",
    "TensorLike",
    "Timeout",
    "Topology",
    "UniqueId",
    "Unsupported",
    "View",
    "World",
    "adopt",
    "algorithms",
    "alloc",
    "command",
    "compile_algorithm",
    "dtype_bytes",
    "tuned_parameters",
    "version",
]


def __getattr__(name: str) -> Any:
    """Import what few programs need when it is asked for."""
    if name == "command":
        from ._command import command

        return command
    if name == "View":
        from ._view import View

        return View
    if name in __all__:  # the types of arguments
        from . import _types

        return getattr(_types, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _close_worlds() -> None:
    """Close what the program left open, so that no rank waits for one that has ended."""
    from . import _core

    failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    _core._close_all(None if failed is None else f"{type(failed).__name__}: {failed}")


atexit.register(_close_worlds)
