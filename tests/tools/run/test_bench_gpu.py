"""`banyan bench --gpu` without PyTorch: one message says so, and no figure is lost."""

import ctypes.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("BANYAN_BUILD", "build")).resolve()
FIGURES = {"rows": [{"collective": "allreduce", "bytes": 1024, "registered_us": 5.0}]}
# Stands for the program that needs GPUs; every rank gets the place where rank 0 writes.
GPU_BENCH = """#!/bin/sh
[ "$1" = --json ] || exit 3
for path; do [ "$last" = --json ] && file=$path; last=$path; done
[ "$BANYAN_RANK" = 0 ] && echo '{figures}' > "$file" && echo "a figure"
exit {code}
"""


def bench(code, python, *arguments, parts="bin"):
    """`parts`: the folder, beside or under that of bin, in which the benchmark lies."""
    with tempfile.TemporaryDirectory() as folder:
        programs = pathlib.Path(folder) / "bin"
        programs.mkdir()
        shutil.copy(BUILD / "bin/banyan", programs / "banyan")
        lies = pathlib.Path(folder) / parts
        lies.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "bench/gpu/torch_symmetric.py", lies / "gpu_torch_symmetric.py")
        if code is not None:
            (lies / "gpu_bench").write_text(GPU_BENCH.format(figures=json.dumps(FIGURES), code=code))
            (lies / "gpu_bench").chmod(0o755)
        # A Python that finds a torch which cannot be imported, whatever this machine has.
        (pathlib.Path(folder) / "torch.py").write_text("raise ImportError('no PyTorch for this test')\n")
        file = pathlib.Path(folder) / "figures.json"
        environment = dict(os.environ, PYTHONPATH=folder, BANYAN_PYTHON=python,
                           LD_LIBRARY_PATH=f"{BUILD}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}")
        command = [programs / "banyan", "bench", "--gpu", "-n", "2", *arguments]
        if arguments:
            command.append(file)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        return done, json.loads(file.read_text()) if file.exists() else None


def check(right, what, done):
    if not right:
        sys.exit(f"test_bench_gpu: {what}\n{done.stdout}{done.stderr}")


done, figures = bench(0, sys.executable, "--", "--json")
check(done.returncode == 0, "a missing PyTorch is not a failure", done)
check("a figure" in done.stdout, "the figures are printed", done)
check(done.stdout.count("was not measured: no PyTorch for this test") == 1, "one message says what is missing", done)
check(figures == FIGURES, "the file keeps what it had", done)
done, _ = bench(0, sys.executable)
check(done.returncode == 0 and "was not measured" in done.stdout, "a file of its own does as well", done)
done, figures = bench(0, sys.executable, "--", "--json", parts="libexec/banyan")
check(done.returncode == 0 and "a figure" in done.stdout and "no PyTorch for this test" in done.stdout
      and figures == FIGURES, "an installed benchmark is found", done)
done, _ = bench(0, "/nonexistent/python")
check(done.returncode == 0 and "/nonexistent/python" in done.stderr, "a Python that is not there is named", done)
done, _ = bench(5, sys.executable)
check(done.returncode == 5 and "not measured" not in done.stdout, "after a failure nothing more is run", done)
done, _ = bench(None, sys.executable)
check(done.returncode == 2 and "gpu_bench: `make build` makes it where nvcc is" in done.stderr,
      "a benchmark that is not there is named", done)
if (BUILD / "bin/gpu_bench").exists() and ctypes.util.find_library("cuda") is None:
    done = subprocess.run([BUILD / "bin/banyan", "bench", "--gpu", "-n", "2"], capture_output=True, text=True, timeout=60)
    check(done.returncode == 1, "no driver is a failure", done)
    check("this machine has no CUDA driver" in done.stderr and "insufficient" not in done.stderr,
          "a missing driver is reported", done)
names = re.search(r"what_names\[WHATS\] = {(.*?)}", (ROOT / "bench/gpu/gpu_bench.c").read_text(), re.S).group(1)
done, _ = bench(0, sys.executable, "--help")
check(set(re.findall(r"\w+", names)) <= set(re.findall(r"\w+", done.stdout)), "help names what can be measured", done)
print("PyTorch may be missing")
