"""NCCL M2N's calls on Banyan: a tensor from the ranks of one mesh to those of another.

All public names of ``nccl.m2n`` in the package nccl-extensions 0.1.0 are here, with their arguments
and attributes; ``xferdtensor`` has those of NeMo-RL's function. Meshes and tensors may have any
number of dimensions, meshes may overlap, shards may be uneven, and tensors may be on the host.

For a program that imports ``nccl.m2n``::

    import banyan.integrations.m2n
    banyan.integrations.m2n.install()
"""

from __future__ import annotations

import importlib
import sys
import types

from torch.distributed.tensor import Replicate, Shard

from ._comm import attach
from ._communicator import Communicator
from ._errors import FunctionNotFoundError, NcclReshardError
from ._geometry import MESH_NDIMS, Mesh
from ._group import group, group_abort, group_end, group_start
from ._handle import Config, Handle, finalize, init
from ._reshard import reshard, reshard_with_window, xdtensor_reshard, xferdtensor
from ._types import MAX_TENSOR_DIMS, DistTensor, NcclDataType
from ._window import Window


def install() -> None:
    """Let ``import nccl.m2n`` find this module in this process.

    Packages of NCCL need not be installed; those that are keep their other modules.
    """
    try:
        parent = importlib.import_module("nccl")
    except ImportError:
        parent = sys.modules["nccl"] = types.ModuleType("nccl")
        parent.__path__ = []
    sys.modules["nccl.m2n"] = sys.modules[__name__]
    parent.__dict__["m2n"] = sys.modules[__name__]


__all__ = [
    "MAX_TENSOR_DIMS",
    "MESH_NDIMS",
    "Communicator",
    "Config",
    "DistTensor",
    "FunctionNotFoundError",
    "Handle",
    "Mesh",
    "NcclDataType",
    "NcclReshardError",
    "Replicate",
    "Shard",
    "Window",
    "attach",
    "finalize",
    "group",
    "group_abort",
    "group_end",
    "group_start",
    "init",
    "install",
    "reshard",
    "reshard_with_window",
    "xdtensor_reshard",
    "xferdtensor",
]
