"""A platform of verl without GPUs, by its extension point (VERL_USE_EXTERNAL_MODULES)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry

if not hasattr(torch.cpu, "empty_cache"):  # verl calls it of each device's module
    torch.cpu.empty_cache = lambda: None  # type: ignore[attr-defined]


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):  # type: ignore[misc]
    """The host's memory is the device."""

    device_name = "cpu"
    vendor_name = "none"
    device_module: ModuleType = torch.cpu

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return not torch.cuda.is_available()

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def is_ipc_supported(self) -> bool:
        return False  # servers get weights through shared memory

    def nothing(self, *args: Any) -> None:
        pass

    set_device = synchronize = manual_seed = manual_seed_all = nothing
    set_allocator_settings = empty_cache = profiler_start = profiler_stop = nothing

    def communication_backend_name(self) -> str:
        return "gloo"
