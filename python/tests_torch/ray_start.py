"""Starts Ray for tests and benchmarks of systems that run over it."""

from __future__ import annotations

import os

import ray


def connect(cpus: int, *begins: str) -> None:
    """Start Ray. Workers get this process's variables of Banyan, and those that begin so."""
    begins = ("PYTHONPATH", "BANYAN_", *begins)
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves workers on a busy machine
    passed = {name: text for name, text in os.environ.items() if name.startswith(begins)}
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=bool(os.environ.get("BANYAN_TEST_VERBOSE")),
        object_store_memory=200 << 20,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", **passed}},
    )
