"""vLLM's weight-transfer backend ``nccl_m2n`` on Banyan, from vLLM 0.32 on.

Importing this module makes the backend of this process run on Banyan. Trainers import it, and
vLLM's workers do so for an engine with the extension::

    import banyan.integrations.m2n.vllm
    LLM(..., worker_extension_cls="banyan.integrations.m2n.vllm.Extension")

``nccl.m2n`` is ``banyan.integrations.m2n`` then. The communicator of vLLM's weight transfers is a
Communicator, also for its backends ``nccl`` and ``sparse_nccl``. vLLM's other communicators remain.
"""

from __future__ import annotations

from vllm.distributed.weight_transfer import m2n_trainer, nccl_common

from . import Communicator, install

install()
nccl_common.stateless_init_process_group = Communicator.open
for _module in (nccl_common, m2n_trainer):
    _module.uid_init_process_group = Communicator.from_unique_id_bytes


class Extension:
    """Extension of vLLM's workers (``worker_extension_cls``) that lets them import this module."""
