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
    CaseFinding,
    CaseReport,
    Cast,
    CheckFinding,
    CheckPlace,
    Checkpoint,
    CheckReport,
    Communicator,
    CopyService,
    Executor,
    ExpectedPart,
    Forecast,
    Job,
    Layout,
    LayoutFile,
    LinkUse,
    Listener,
    LoadedPlan,
    LocalTensor,
    MegatronCase,
    MegatronTransfer,
    Memory,
    Mesh,
    Mixed,
    MixedGrid,
    MixedTiming,
    Model,
    Mxfp8,
    Piece,
    Placement,
    Plan,
    PlanCost,
    PlanLink,
    PlanRun,
    PlanStats,
    Publication,
    PublishReport,
    Replicate,
    Request,
    ReshardPlan,
    Rules,
    Schedule,
    Shard,
    Simulation,
    SimulationStep,
    Spec,
    StridedShard,
    Subscription,
    Tensors,
    Topology,
    Traffic,
    Transfer,
    Transform,
    UniqueId,
    World,
    adopt,
    algorithms,
    alloc,
    check_case,
    compile_algorithm,
    dtype_bytes,
    plan_scale,
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
from ._load import load_sharded
from ._reshard import Reshard, reshard

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
    "CaseFinding",
    "CaseReport",
    "Cast",
    "CheckFinding",
    "CheckPlace",
    "CheckReport",
    "Checkpoint",
    "Communicator",
    "CopyService",
    "Corrupt",
    "DTypeLike",
    "DeviceLike",
    "Error",
    "Executor",
    "ExpectedPart",
    "Forecast",
    "FormatError",
    "Invalid",
    "Job",
    "Layout",
    "LayoutFile",
    "LinkUse",
    "Listener",
    "LoadedPlan",
    "LocalTensor",
    "MegatronCase",
    "MegatronTransfer",
    "Memory",
    "Mesh",
    "Mismatch",
    "Mixed",
    "MixedGrid",
    "MixedTiming",
    "Model",
    "Mxfp8",
    "NotFound",
    "NvshmemFailure",
    "OutOfMemory",
    "PathLike",
    "PeerLost",
    "Piece",
    "Placement",
    "PlacementLike",
    "Plan",
    "PlanCost",
    "PlanLink",
    "PlanRun",
    "PlanStats",
    "ProgramError",
    "Publication",
    "PublishReport",
    "ReduceOp",
    "Refused",
    "Replicate",
    "Request",
    "Reshard",
    "ReshardPlan",
    "Rules",
    "Schedule",
    "Shard",
    "Side",
    "Simulation",
    "SimulationStep",
    "Spec",
    "StreamLike",
    "StridedShard",
    "Subscription",
    "SystemFailure",
    "TensorLike",
    "Tensors",
    "Timeout",
    "Topology",
    "Traffic",
    "Transfer",
    "Transform",
    "UniqueId",
    "Unsupported",
    "View",
    "World",
    "adopt",
    "algorithms",
    "alloc",
    "check_case",
    "command",
    "compile_algorithm",
    "dtype_bytes",
    "load_sharded",
    "plan_scale",
    "reshard",
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
