"""vLLM's allocator of sleeping memory and its reload, from a few files of its wheel for GPUs.

``fetch`` takes them out of a wheel. ``load`` makes them importable in a process without vLLM: the
files are vLLM's own, and small stand-ins have the names that they import from the rest of it.

usage: allocator.py FOLDER   (a wheel in it, or else the one that pip downloads)
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

RELEASE = "0.32.0"
FILES = (
    "vllm/cumem_allocator.abi3.so",
    "vllm/device_allocator/__init__.py",
    "vllm/device_allocator/alloc_conf.py",
    "vllm/device_allocator/cumem.py",
    "vllm/distributed/device_communicators/cuda_wrapper.py",
    *(
        f"vllm/model_executor/model_loader/reload/{name}.py"
        for name in ("__init__", "layerwise", "meta", "sanitize", "torchao_decorator", "types")
    ),
    "vllm/model_executor/model_loader/reload/utils.py",
)


def fetch(folder: Path) -> None:
    """Write the files to a folder, from vLLM's wheel for GPUs (326 MB)."""
    wheels = list(folder.glob("vllm-*.whl"))
    if not wheels:
        words = ["--no-deps", "--only-binary=:all:", "--platform=manylinux_2_28_x86_64"]
        command = [sys.executable, "-m", "pip", "download", *words, "-d", str(folder)]
        subprocess.run([*command, f"vllm=={RELEASE}"], check=True)
        wheels = list(folder.glob("vllm-*.whl"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        for name in FILES:
            wheel.extract(name, folder)


def _module(name: str, **contents: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


class _Platform:
    def is_rocm(self) -> bool:
        return False

    def is_cuda_alike(self) -> bool:
        return True


class _Method:
    """Stands for vLLM's base class of methods."""


def _loaded(name: str) -> str | None:
    """Return the file of a library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if path.rpartition("/")[2].startswith((f"{name}.", f"{name}-")):
            return path
    return None


def _load_nvrtc() -> None:
    """Load the library that the allocator names and does not use, where PyTorch has it."""
    name = "libnvrtc.so.13"
    packages = [Path(path) / "nvidia" for path in sys.path]
    for found in (name, *(str(one) for path in packages for one in path.glob(f"*/lib/{name}"))):
        try:
            ctypes.CDLL(found, ctypes.RTLD_GLOBAL)
            return
        except OSError:
            continue


def load(folder: Path) -> None:
    """Make the files importable, as parts of vLLM."""
    import torch

    for package in {name.rpartition("/")[0] for name in FILES}:
        words = package.split("/")
        for count in range(1, len(words) + 1):
            name = ".".join(words[:count])
            if words[count - 1] not in ("device_allocator", "reload"):
                _module(name, __path__=[str(folder.joinpath(*words[:count]))])
    logger = logging.getLogger("vllm")
    _module("vllm.envs", VLLM_CUDART_SO_PATH=None)
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]  # type: ignore[attr-defined]
    _module("vllm.logger", init_logger=lambda _: logger)
    _module("vllm.platforms", current_platform=_Platform())
    _module("vllm.config", ModelConfig=object)
    _module("vllm.utils", __path__=[])
    _module("vllm.utils.system_utils", find_loaded_library=_loaded)
    _module("vllm.utils.torch_utils", PIN_MEMORY=True)
    layers = "vllm.model_executor.layers"
    _module(layers, __path__=[])
    _module(f"{layers}.attention", is_deferred_attention_layer=lambda _: False)
    _module(f"{layers}.quantization", __path__=[])
    _module(f"{layers}.quantization.base_config", QuantizeMethodBase=_Method)
    _module(
        "vllm.model_executor.model_loader.weight_utils", default_weight_loader=torch.Tensor.copy_
    )
    _load_nvrtc()


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
