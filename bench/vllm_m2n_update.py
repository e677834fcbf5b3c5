"""Whole update of a vLLM engine by vLLM's own backend ``nccl_m2n``, with Banyan below it.

    PYTHONPATH=build/python:python/tests_integrations/vllm:bench build/venv-vllm/bin/python \
        bench/vllm_m2n_update.py [GIGABYTES]

As ``vllm_update.py``, with vLLM's trainer, engine and source. vLLM computes without packed weights
here, since its backend does not pack them again.
"""

from __future__ import annotations

from typing import Any

from test_nccl_m2n import M2NTrainer, free_port
from vllm_update import Saving, measure


class SavingM2NTrainer(Saving, M2NTrainer):
    """A trainer of vLLM's backend that can also save its model."""

    def send_only(self, where: Any) -> int:
        """Send what the model has."""
        self.engines[where].send_weights()
        return 0


if __name__ == "__main__":
    extension = "banyan.integrations.m2n.vllm.Extension"
    measure(SavingM2NTrainer, "nccl_m2n", [free_port()], worker_extension_cls=extension)
