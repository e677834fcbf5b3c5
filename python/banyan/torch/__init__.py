"""Banyan for PyTorch.

Importing it registers the backend "banyan" of ``torch.distributed``::

    import banyan.torch
    torch.distributed.init_process_group("banyan")              # CPU and CUDA tensors
    torch.distributed.init_process_group("cpu:gloo,cuda:banyan")
"""

from __future__ import annotations

from ._process_group import ProcessGroupBanyan, register_backend
from ._world import world

__all__ = ["ProcessGroupBanyan", "register_backend", "world"]

register_backend()
