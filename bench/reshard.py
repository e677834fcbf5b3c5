"""Move Qwen3-0.6B between layouts with every backend, beside memcpy in the same run.

usage: reshard.py BUILD
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples/models/qwen3-0.6b.json"
ITERATIONS = 9

# Backend, memory and options of each run, and the share of memcpy's speed that it should reach.
RUNS = [
    ("direct", "symmetric", [], 0.90),
    ("direct", "symmetric", ["--disjoint"], 0.90),
    ("direct", "ordinary", [], 0.65),
    ("direct", "ordinary", ["--disjoint"], 0.65),
    ("pipeline", "symmetric", [], 0.45),
    ("pipeline", "symmetric", ["--disjoint"], 0.45),
]
# The peer: MPI_Isend and MPI_Irecv of the same transfers, and how much faster direct should be.
PEER = ("mpi", "ordinary", 1.5)


def measure(banyan, backend, memory, flags):
    """Return the report of a run, or print why it failed."""
    command = [
        banyan,
        "reshard",
        "--model",
        MODEL,
        "--from",
        "tp=2,pp=2",
        "--to",
        "tp=4",
        "--backend",
        backend,
        "--memory",
        memory,
        "--iters",
        str(ITERATIONS),
        "--json",
        *flags,
    ]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=600
    )
    if done.returncode != 0:
        print(f"{backend} {memory} {' '.join(flags)}: {done.stderr.strip()}")
        return None
    return json.loads(done.stdout)


def row(what, result, share, goal):
    """Print a line, and return whether it meets its goal, if it has one."""
    met = goal is None or share >= goal
    verdict = "" if goal is None else f"{goal:>7.0%}   {'met' if met else 'MISSED'}"
    print(
        f"{what:<40} {result['gb_per_s']:>7.2f} {result['memcpy_gb_per_s']:>8.2f} {share:>7.0%} "
        f"{verdict}",
        flush=True,
    )
    return met


def main():
    """Run all, and return 1 if a goal is missed."""
    banyan = pathlib.Path(sys.argv[1]) / "bin/banyan"
    print(
        f"Qwen3-0.6B, tp=2,pp=2 to tp=4, best of {ITERATIONS}; memcpy by the same ranks at once, "
        "same run"
    )
    print(f"{'':<40} {'GB/s':>7} {'memcpy':>8} {'share':>7} {'goal':>7}")
    direct, good = {}, True
    for backend, memory, flags, goal in RUNS:
        result = measure(banyan, backend, memory, flags)
        if not result:
            good = False
            continue
        place = "disjoint ranks" if flags else "same ranks"
        good &= row(f"{backend}, {memory} memory, {place}", result, result["share_of_memcpy"], goal)
        if backend == "direct":
            direct[memory, place] = result["gb_per_s"]
    backend, memory, goal = PEER
    for place, flags in (("same ranks", []), ("disjoint ranks", ["--disjoint"])):
        peer = measure(banyan, backend, memory, flags)
        if not peer:
            good = False
            continue
        row(f"MPI_Isend/Irecv, {place}", peer, peer["share_of_memcpy"], None)
        for kind in ("symmetric", "ordinary"):
            if (kind, place) in direct:
                ratio = direct[kind, place] / peer["gb_per_s"]
                good &= ratio >= goal
                print(
                    f"  direct, {kind} memory, is {ratio:.2f} times as fast (goal {goal}): "
                    f"{'met' if ratio >= goal else 'MISSED'}"
                )
    return 0 if good else 1


sys.exit(main())
