"""Kernels that put by NVSHMEM's device library are linked with it for GPUs before and after the one that Banyan is built
for, under the names by which they are looked up; the module itself does not need NVSHMEM. Where NVSHMEM was found."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BANYAN_BUILD", SOURCE / "build"))
KERNELS = SOURCE / "src/cuda/mixed/nodes/puts.cu"
ARCHITECTURES = ["80", "100"]
NAMES = {f"mixed_nodes_puts_{multicast}{any_}{dtype}"
         for multicast in ("", "multicast_") for any_ in ("", "any_") for dtype in ("bf16", "f16", "f32")}


def cached():
    cache = BUILD / "CMakeCache.txt"
    return dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.M)) if cache.exists() else {}


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(part) for part in command)}: {done.stderr[:2000]}")
    return done.stdout


def link(settings, architecture, folder):
    nvcc = settings.get("BANYAN_NVCC") or settings["CMAKE_CUDA_COMPILER"]
    code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    run(nvcc, "-std=c++17", code, "-Xptxas", "-O1", "-dc", f"-I{SOURCE}/include", f"-I{SOURCE}/src",
        "-isystem", settings["BANYAN_NVSHMEM_INCLUDE"], KERNELS, "-o", f"{folder}/kernels.o")
    run(nvcc, code, "-dlink", "-cubin", f"{folder}/kernels.o", settings["BANYAN_NVSHMEM_DEVICE"], "-o", f"{folder}/image")
    image = pathlib.Path(folder, "image").read_bytes()
    missing = {name for name in NAMES if b"\0" + name.encode() + b"\0" not in image}
    if missing:
        sys.exit(f"sm_{architecture}: no {', '.join(sorted(missing))}")
    print(f"{len(NAMES)} kernels are linked for sm_{architecture}")


def main():
    settings, module = cached(), BUILD / "lib/libbanyan_cuda.so"
    if not settings.get("BANYAN_NVSHMEM_DEVICE") or not module.exists():
        print("skipped: built without NVSHMEM's device library")
        return 77
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", module))
    if any("nvshmem" in name for name in needed):
        sys.exit(f"{module} needs {', '.join(needed)}")
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES:
            link(settings, architecture, folder)
    return 0


sys.exit(main())
