"""NCCL M2N's calls on Banyan: a tensor from the ranks of one mesh to those of another.

``reshard``, ``xdtensor_reshard`` and ``group`` have the arguments of ``nccl.m2n`` in the package
nccl-extensions 0.1.0, and ``xferdtensor`` those of NeMo-RL's function. Meshes and tensors may have
any number of dimensions, meshes may overlap, shards may be uneven, and tensors may be on the host.

For a program that imports ``nccl.m2n``::

    import sys, banyan.integrations.m2n
    sys.modules["nccl.m2n"] = banyan.integrations.m2n
"""

from __future__ import annotations

from torch.distributed.tensor import Replicate, Shard

from ._comm import attach
from ._geometry import Mesh
from ._reshard import (
    group,
    group_abort,
    group_end,
    group_start,
    reshard,
    xdtensor_reshard,
    xferdtensor,
)

__all__ = [
    "Mesh",
    "Replicate",
    "Shard",
    "attach",
    "group",
    "group_abort",
    "group_end",
    "group_start",
    "reshard",
    "xdtensor_reshard",
    "xferdtensor",
]
