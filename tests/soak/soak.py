#!/usr/bin/env python3
"""Repeat kills, bad inputs, damaged plans and fuzzed inputs in turn, and print what happened.

Every part runs for a share of the time with the seed that is printed; the same seed draws the same
cases again. Exit code 1 when anything was found.
"""

import argparse
import collections
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import commands
import plans

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Counts of what must not happen.
BAD = ["crashes", "hangs", "wrong", "late", "left", "unnamed", "silent", "contradictions", "failed"]


def program(arguments, seed, seconds, folder):
    """A program's last line has its figures."""
    done = subprocess.run([*map(str, arguments), str(round(seconds)), str(seed)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                          check=False, env={**os.environ, "TMPDIR": str(folder)})
    lines = done.stdout.splitlines()
    for line in lines[:-1]:
        print(line)
    found = re.findall(r"(\w+)=(\d+)", lines[-1]) if lines else []
    figures = {name: int(value) for name, value in found}
    if done.returncode not in (0, 1) or not figures:
        print(f"{arguments[0]} ended with {done.returncode}: {lines[-1] if lines else ''}")
        figures["crashes"] = figures.get("crashes", 0) + 1
    return figures


def stepped(doer, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        doer.step()
    return doer.figures


def fuzzers(build, seconds):
    """Every fuzzer for its share of the time."""
    count = len(list((build / "bin").glob("fuzz_*")))
    each = max(1, round(seconds / max(1, count)))
    done = subprocess.run([ROOT / "scripts/fuzz", build, str(each)], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs = [int(n) for n in re.findall(r"passed: (\d+) inputs", done.stdout)]
    failed = re.findall(r"(.*FAILED.*)", done.stdout)
    print("\n".join(failed), end="\n" if failed else "")
    return {"inputs": sum(runs), "fuzzers": count, "failed": len(failed)}


def report(total, took):
    """Print the figures of all parts so far, and return how many are bad."""
    found = 0
    for name, counts in total.items():
        found += sum(counts[key] for key in BAD)
        figures = ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in counts.items())
        print(f"{name:9} {took[name]:6.0f} s  {figures}")
    print(f"found: {found}", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--fuzz-build", type=pathlib.Path, help="a build with the fuzzers")
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--turn", type=float, default=120, help="seconds of one part at a time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--parts", default="", help="with commas: kills,commands,inputs,plans,fuzz")
    arguments = parser.parse_args()
    # A shell that runs this in the background has it ignored, and what is started inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    build = arguments.build.resolve()
    parts = {
        "kills": lambda s, t, f: program([build / "bin/soak_kills"], s, t, f),
        "commands": lambda s, t, f: stepped(commands.Commands(build, f, s), t),
        "inputs": lambda s, t, f: program([build / "bin/soak_inputs"], s, t, f),
        "plans": lambda s, t, f: stepped(plans.Plans(build, f, build, s), t),
    }
    if arguments.fuzz_build:
        parts["fuzz"] = lambda s, t, f: fuzzers(arguments.fuzz_build.resolve(), t)
    wanted = [name for name in parts if not arguments.parts or name in arguments.parts.split(",")]
    total = {name: collections.Counter() for name in wanted}
    took = collections.Counter()
    began = time.monotonic()
    turn = found = 0
    while time.monotonic() - began < arguments.seconds:
        for name in wanted:
            # In the first turn every part runs, however long the ones before it took.
            left = arguments.seconds - (time.monotonic() - began) if turn else arguments.turn
            if left <= 0:
                break
            seed, start = arguments.seed + turn, time.monotonic()
            print(f"{name}: seed {seed}", flush=True)
            with tempfile.TemporaryDirectory(prefix="banyan-soak-") as folder:
                figures = parts[name](seed, min(arguments.turn, left), pathlib.Path(folder))
            took[name] += time.monotonic() - start
            longest = {key: max(value, total[name][key]) for key, value in figures.items()
                       if key.startswith("longest")}
            total[name].update(figures)
            total[name].update({key: value - total[name][key] for key, value in longest.items()})
        print(f"\n{time.monotonic() - began:.0f} s, seeds {arguments.seed} to "
              f"{arguments.seed + turn}")
        found = report(total, took)
        turn += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
