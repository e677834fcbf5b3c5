"""Every example compiles against the installed library, and those of collectives print plans."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])

if os.environ.get("BANYAN_SANITIZE"):
    print("skipped: a user's program is not built with a sanitizer")
    sys.exit(77)


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=300, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}\n"
                 f"{done.stdout}{done.stderr}")
    return done.stdout


# Those for GPUs need CUDA as well: they are compiled with everything else where it is.
examples = sorted(path for path in (ROOT / "examples").glob("**/*.c") if path.parent.name != "cuda")
with tempfile.TemporaryDirectory() as folder:
    prefix = pathlib.Path(folder) / "prefix"
    run("cmake", "--install", BUILD, "--prefix", prefix)
    pc = next(prefix.glob("lib/**/pkgconfig"))
    environment = dict(os.environ, PKG_CONFIG_PATH=str(pc), LD_LIBRARY_PATH=str(pc.parent))
    flags = run("pkg-config", "--cflags", "--libs", "banyan", env=environment).split()
    for example in examples:
        program = pathlib.Path(folder) / example.stem
        run("cc", "-Wall", "-Wextra", "-Werror", example, "-o", program, *flags, "-lm")
        if example.parent.name != "collectives":
            continue
        plan = json.loads(run(program, "3", env=environment))
        if plan["name"] != example.stem or len(plan["gpus"]) != 3:
            sys.exit(f"{example.name} printed a plan called {plan['name']} of {len(plan['gpus'])} ranks")
        refused = subprocess.run([program, "1"], env=environment, capture_output=True, text=True)
        if refused.returncode == 0 or "RANKS" not in refused.stderr:
            sys.exit(f"{example.name} takes one rank")
print(f"{len(examples)} examples compile against the installed library")
