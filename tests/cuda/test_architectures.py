"""Device code compiles for GPUs before and after the one that it is built for."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# The kernel with the newest instructions: 8-bit floats, multicast, launches that begin early.
KERNEL = SOURCE / "src/cuda/execute/kernel/e4m3.cu"
ARCHITECTURES = ["sm_80", "sm_100"]


def main():
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if not nvcc or not KERNEL.exists():
        print(f"skipped: there is no {'nvcc' if KERNEL.exists() else KERNEL}")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES:
            done = subprocess.run([nvcc, "-std=c++17", f"-arch={architecture}", "-Xptxas", "-O1", f"-I{SOURCE}/include",
                                   f"-I{SOURCE}/src", "-cubin", KERNEL, "-o", f"{folder}/kernel"],
                                  capture_output=True, text=True)
            if "dlpack/dlpack.h: No such file" in done.stderr:
                print("skipped: DLPack's header is not installed")
                return 77
            if done.returncode != 0:
                sys.exit(f"{KERNEL.name} for {architecture}: {done.stderr[:2000]}")
            print(f"{KERNEL.name} compiles for {architecture}")
    return 0


sys.exit(main())
