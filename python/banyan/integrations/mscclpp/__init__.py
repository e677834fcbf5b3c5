"""Banyan for programs that run execution plans with MSCCL++.

``Executor``, ``ExecutionPlan``, ``CommGroup`` and ``GpuBuffer`` have the names, arguments,
attributes and errors of the package ``mscclpp``, and run plans on Banyan's executor: between the
processes of a machine without GPUs, and between GPUs. A program changes its import::

    from banyan.integrations.mscclpp import CommGroup, DataType, ExecutionPlan, Executor, GpuBuffer

``import banyan.compat.mscclpp`` registers this package and the language under the name ``mscclpp``,
so that a program runs without a change.
"""

from __future__ import annotations

from . import npkit, utils
from ._algorithm import Algorithm, compile
from ._buffer import GpuBuffer, GpuBufferGranularity
from ._comm import CommGroup, Communicator, TcpBootstrap, UniqueId
from ._env import Env, env, is_nvls_supported
from ._errors import BaseError, Error, ErrorCode, SysError
from ._executor import ExecutionPlan, Executor
from ._types import DataType, PacketType

__all__ = [
    "Algorithm",
    "BaseError",
    "CommGroup",
    "Communicator",
    "DataType",
    "Env",
    "Error",
    "ErrorCode",
    "ExecutionPlan",
    "Executor",
    "GpuBuffer",
    "GpuBufferGranularity",
    "PacketType",
    "SysError",
    "TcpBootstrap",
    "UniqueId",
    "compile",
    "env",
    "is_nvls_supported",
    "npkit",
    "utils",
]
