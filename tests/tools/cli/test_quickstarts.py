"""The commands of the quick starts run as they are printed, and print the reports that the pages show."""

import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import safetensors
import small_model

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
COMMAND = re.compile(r"(?m)^    ((?:BANYAN_\w+=\S+ )?(?:build/bin/|sed |cmake |git ).*)")
REFUSED = "build/bin/example_pipelined_allgather 4 | build/bin/banyan check -"
problems = []


def words(text):
    """Return text without spaces and folders, which a page breaks and shortens."""
    return re.sub(r"\s|[\w./]*/", "", text)


def lay_out(folder):
    """Make what the commands expect: the build, the examples (with a smaller model), and a folder of the reader's own."""
    (folder / "build/bin").mkdir(parents=True)
    for path in [BUILD / "bin/banyan", *(BUILD / "bin").glob("example_*")]:
        (folder / "build/bin" / path.name).symlink_to(path)
    shutil.copytree(ROOT / "examples", folder / "examples")
    small_model.write(small_model.dense(), folder / "examples/models/qwen3-0.6b.json")
    draw = random.Random(1)
    safetensors.write_folder(folder / "checkpoint", {
        name: (tensor["dtype"], tensor["shape"],
               draw.randbytes(math.prod(tensor["shape"]) * safetensors.BYTES[tensor["dtype"]]))
        for name, tensor in small_model.dense().items()}, 2)


def run(folder, command):
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, capture_output=True, text=True, timeout=240)


def compile_example(folder, name):
    """Stand in for CMake, with the examples of the folder."""
    program = folder / f"build/bin/{name}"
    program.unlink()
    return f"cc -I{ROOT}/include examples/collectives/{name.removeprefix('example_')}.c " \
           f"-o {program} -L{BUILD}/lib -Wl,-rpath,{BUILD}/lib -lbanyan"


def check_page(path, folder):
    text = path.read_text()
    for command in COMMAND.findall(text):
        if "--gpu" in command:
            continue
        if command.startswith("git "):
            shutil.copy(ROOT / command.split()[-1], folder / command.split()[-1])
            continue
        target = re.search(r"^cmake .* --target (\w+)", command)
        done = run(folder, compile_example(folder, target[1]) if target else command)
        if done.returncode != (command == REFUSED):
            problems.append(f"{path.name}: {command}\nended with {done.returncode}: {done.stderr}")
        report = re.search(r"(?ms)^    0\. reuse.*?\n\n", text) if command == REFUSED else None
        if report and words(report[0]) not in words(done.stdout):
            problems.append(f"{path.name} shows another report than\n{done.stdout}")


def check_report(folder):
    """The report of the page on check is that of the ring without the first wait of rank 0."""
    plan = json.loads(run(folder, "build/bin/example_ring_allreduce 4").stdout)
    ops = plan["gpus"][0]["threadblocks"][0]["ops"]
    ops.remove(next(op for op in ops if op["name"] == "wait"))
    (folder / "broken.json").write_text(json.dumps(plan))
    done = run(folder, "build/bin/banyan check broken.json")
    shown = re.search(r"(?ms)^(    \d+\. warning: idle_sync.*?)       …\n(       And .*?\n)", (ROOT / "docs/check.md").read_text())
    problems.extend(f"check.md shows another report than\n{done.stdout}" for part in shown.groups()
                    if words(part) not in words(done.stdout))


if os.environ.get("BANYAN_SANITIZE"):
    print("skipped: the commands run under a sanitizer in tests of their own")
    sys.exit(77)
for page in sorted((ROOT / "docs/quickstart").glob("*.md")):
    with tempfile.TemporaryDirectory() as name:
        lay_out(pathlib.Path(name))
        check_page(page, pathlib.Path(name))
with tempfile.TemporaryDirectory() as name:
    lay_out(pathlib.Path(name))
    check_report(pathlib.Path(name))
print("\n".join(problems) or "the commands of the quick starts run")
sys.exit(1 if problems else 0)
