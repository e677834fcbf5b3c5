"""The README's program is examples/reshard.c, and what it names is there."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin"


def fail(sentence):
    sys.exit(f"test_readme: {sentence}")


readme = (ROOT / "README.md").read_text()
program = re.search(r"```c\n(.*?)```", readme, re.S)
if not program:
    fail("README.md has no C program")
if program.group(1).strip() != (ROOT / "examples/reshard.c").read_text().strip():
    fail("the program in README.md is not examples/reshard.c")

for target in re.findall(r"\]\((docs/[^)#]+)\)", readme):
    if not (ROOT / target).exists():
        fail(f"README.md links to {target}, which does not exist")
makefile = (ROOT / "Makefile").read_text()
for target in re.findall(r"^    make (\w+)", readme, re.M):
    if not re.search(rf"^{target}:", makefile, re.M):
        fail(f"README.md says make {target}, which the Makefile does not know")

run = subprocess.run([BIN / "banyan", "launch", "-n", "4", "--", BIN / "example_reshard"],
                     capture_output=True, text=True, timeout=120)
lines = sorted(run.stdout.split("\n")[:-1])
if run.returncode != 0 or lines != [f"rank {r} holds version 3" for r in range(4)]:
    fail(f"the program ended with {run.returncode} and printed {lines}\n{run.stderr}")
print("README.md is true")
