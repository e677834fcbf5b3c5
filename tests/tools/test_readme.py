"""The README's programs are those in examples, they run, and what it names is there."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin"
PRINTED = {"reshard": "rank {} holds version 3", "allreduce": "rank {}: element 10 is 46"}


def fail(sentence):
    sys.exit(f"test_readme: {sentence}")


readme = (ROOT / "README.md").read_text()
programs = re.findall(r"`examples/(\w+)\.c`:\n\n```c\n(.*?)```", readme, re.S)
if [name for name, _ in programs] != list(PRINTED) or readme.count("```c\n") != len(programs):
    fail(f"README.md has the programs {[name for name, _ in programs]}")
for name, text in programs:
    if text.strip() != (ROOT / f"examples/{name}.c").read_text().strip():
        fail(f"the program in README.md is not examples/{name}.c")

makefile = (ROOT / "Makefile").read_text()
for target in re.search(r"^\.PHONY: (.*)", makefile, re.M).group(1).split():
    if not re.search(rf"^{target}:", makefile, re.M):
        fail(f"the Makefile has no rule for {target}, which it calls phony")
for target in re.findall(r"^    make (\w+)", readme, re.M):
    if not re.search(rf"^{target}:", makefile, re.M):
        fail(f"README.md says make {target}, which the Makefile does not know")
    if not re.search(rf"^\t@echo 'make {target} ", makefile, re.M):
        fail(f"make help does not tell of make {target}, of which README.md does")

for name, line in PRINTED.items():
    run = subprocess.run([BIN / "banyan", "launch", "-n", "4", "--", BIN / f"example_{name}"],
                         capture_output=True, text=True, timeout=120)
    lines = sorted(run.stdout.split("\n")[:-1])
    if run.returncode != 0 or lines != [line.format(rank) for rank in range(4)]:
        fail(f"{name} ended with {run.returncode} and printed {lines}\n{run.stderr}")
print("README.md is true")
