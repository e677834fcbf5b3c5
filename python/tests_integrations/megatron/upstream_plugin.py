"""A plugin of pytest for Megatron-LM's own tests: puts our classes and functions in their place.

BANYAN_TEST_OURS=1 replaces them. On a machine without a GPU, tensors for "cuda" are made on the
host, so that the tests of the executor run, too.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from host import stand_in
from torch.overrides import TorchFunctionMode

THEIRS = "megatron.core.resharding"
OURS = "banyan.integrations.megatron.resharding"
#: Modules that are replaced as a whole, and names in others.
MODULES = ("copy_services.base", "execution")
NAMES = {
    "utils": ("ReshardPlan", "TransferOp"),
    "transforms": ("ReshardTransform",),
    "copy_services.base": ("SendOp", "RecvOp", "match_local_ops_by_task_id"),
    "execution": ("execute_reshard_plan",),
    "nvshmem_copy_service": ("RemoteCopyService",),
    "nvshmem_copy_service.core": ("GPUResourceManager", "KernelLauncher", "PipelineExecutor"),
    "nvshmem_copy_service.memory": ("DoubleBufferManager",),
    "nvshmem_copy_service.planning": ("GPUExecutionPlanner",),
}


def replace() -> int:
    """Replace the names wherever Megatron-Core has bound them. Return the number of bindings."""
    replaced = {}
    for module, names in NAMES.items():
        theirs = importlib.import_module(f"{THEIRS}.{module}")
        ours = importlib.import_module(f"{OURS}.{module}")
        replaced.update({id(getattr(theirs, one)): getattr(ours, one) for one in names})
    count = 0
    loaded = [one for name, one in sys.modules.items() if name.startswith(THEIRS)]
    for one in loaded:
        for name, value in list(vars(one).items()):
            if id(value) in replaced:
                setattr(one, name, replaced[id(value)])
                count += 1
    for module in MODULES:
        sys.modules[f"{THEIRS}.{module}"] = importlib.import_module(f"{OURS}.{module}")
        parent, _, last = f"{THEIRS}.{module}".rpartition(".")
        setattr(sys.modules[parent], last, sys.modules[f"{THEIRS}.{module}"])
    refit = importlib.import_module(f"{THEIRS}.refit")
    refit.get_or_create_service = service_of  # type: ignore[attr-defined]
    return count


def service_of(backend: str, group: Any = None) -> Any:
    """Return Banyan's copy service for every backend. It is kept as Megatron-Core keeps its own."""
    from banyan.integrations.megatron import BanyanCopyService

    refit = importlib.import_module(f"{THEIRS}.refit")
    if backend not in refit._service_cache:
        refit._service_cache[backend] = BanyanCopyService(group)
    return refit._service_cache[backend]


class _OnHost(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if options.get("device") == "cuda":
            options["device"] = "cpu"
        return func(*args, **options)


class _Host:
    """Properties of a device that is no Blackwell GPU."""

    major = 0


class Utils:
    """As in Megatron-LM's tests, without the rest of that module (Python 3.12, a GPU)."""

    @staticmethod
    def initialize_distributed() -> None:
        if dist.is_initialized():
            return
        if "RANK" in os.environ:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("nccl")
        else:
            path = os.path.join(tempfile.mkdtemp(), "store")
            dist.init_process_group("gloo", store=dist.FileStore(path, 1), rank=0, world_size=1)

    @staticmethod
    def initialize_model_parallel(**sizes: Any) -> None:
        Utils.destroy_model_parallel()
        Utils.initialize_distributed()
        parallel_state.initialize_model_parallel(**sizes)

    @staticmethod
    def destroy_model_parallel() -> None:
        if parallel_state.is_initialized():
            torch.cuda.synchronize()
            dist.barrier()
            parallel_state.destroy_model_parallel()


importlib.import_module(THEIRS)  # before it sees a GPU
parallel_state: Any = importlib.import_module("megatron.core.parallel_state")
if os.environ.get("BANYAN_TEST_OURS"):
    print(f"ours in {replace()} places")
if not torch.cuda.is_available():
    stand_in()
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_properties = lambda device=None: _Host  # type: ignore
    torch.cuda.empty_cache = lambda: None
    _OnHost().__enter__()
utilities = ModuleType("tests.unit_tests.test_utilities")
utilities.Utils = Utils  # type: ignore[attr-defined]
sys.modules["tests.unit_tests.test_utilities"] = utilities
