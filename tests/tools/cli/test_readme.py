"""The programs of the README and of the quick starts are those in examples, they run, and what the README names is there."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin"
MODEL = ROOT / "examples/models/qwen3-0.6b.json"
# Page: its programs, each with the ranks that run it, its arguments, and the sorted lines that it prints.
PAGES = {
    "README.md": {"reshard": (4, [], [f"rank {rank} holds version 3" for rank in range(4)])},
    "docs/quickstart/weights.md": {
        "weights": (8, [MODEL], [f"the engine holds version {step}" for step in (1, 2, 3)])},
    "docs/quickstart/algorithm.md": {
        "algorithm": (4, [], [f"rank {rank}: my_allgather has brought 3999" for rank in range(4)])},
    "docs/quickstart/collectives.md": {
        "allreduce": (4, [], [f"rank {rank}: element 10 is 46" for rank in range(4)])},
    "docs/quickstart/mixed.md": {
        "mixed": (4, [], [f"rank {rank}: the last row is 204" for rank in range(4)])},
}


def fail(message):
    sys.exit(f"test_readme: {message}")


for page, expected in PAGES.items():
    text = (ROOT / page).read_text()
    programs = re.findall(r"`examples/(\w+)\.c`:\n\n```c\n(.*?)```", text, re.S)
    if [name for name, _ in programs] != list(expected) or text.count("```c\n") != len(programs):
        fail(f"{page} has the programs {[name for name, _ in programs]}")
    for name, program in programs:
        if program.strip() != (ROOT / f"examples/{name}.c").read_text().strip():
            fail(f"the program in {page} is not examples/{name}.c")

readme = (ROOT / "README.md").read_text()
if len(readme.splitlines()) > 120:
    fail(f"README.md has {len(readme.splitlines())} lines, more than 120")
makefile = (ROOT / "Makefile").read_text()
for target in re.search(r"^\.PHONY: (.*)", makefile, re.M).group(1).split():
    if not re.search(rf"^{target}:", makefile, re.M):
        fail(f"the Makefile has no rule for {target}, which it calls phony")
for target in re.findall(r"^    make (\w+)", readme, re.M):
    if not re.search(rf"^{target}:", makefile, re.M):
        fail(f"README.md says make {target}, which the Makefile does not know")
    if not re.search(rf"^\t@echo 'make {target} ", makefile, re.M):
        fail(f"make help does not list make {target}, which README.md names")

for programs in PAGES.values():
    for name, (ranks, arguments, expected) in programs.items():
        run = subprocess.run(
            [BIN / "banyan", "launch", "-n", str(ranks), "--", BIN / f"example_{name}", *arguments],
            capture_output=True, text=True, timeout=240)
        lines = sorted(run.stdout.split("\n")[:-1])
        if run.returncode != 0 or lines != expected:
            fail(f"{name} ended with {run.returncode} and printed {lines}\n{run.stderr}")
print("the programs of README.md and the quick starts run")
