"""MSCCL++'s profiler, as in a build of MSCCL++ without it: the calls do nothing.

``banyan.Executor.begin_trace`` records what a plan's operations do.
"""

from __future__ import annotations


def init(rank: int) -> None:
    """Do nothing."""


def dump(dump_dir: str) -> None:
    """Do nothing: no file is written."""


def shutdown() -> None:
    """Do nothing."""
