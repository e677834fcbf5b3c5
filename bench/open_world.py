"""Opening worlds of 8 to 512 ranks on this machine: time, and connections and messages of a rank.

usage: open_world.py BUILD [NODES]. The ranks are on one node, or pretend to be on NODES
nodes. Goal on one node: no rank, and not the rendezvous, has more than a constant times log2(ranks)
connections or messages.
"""

from __future__ import annotations

import math
import os
import pathlib
import re
import subprocess
import sys
import time

SIZES = (8, 32, 128, 512)
LINE = re.compile(
    r"(rank \d+|the rendezvous) of \d+ (joined|opened|ranks): connections (\d+) made, (\d+) "
    r"accepted; messages (\d+) sent, (\d+) received"
)
#: Most connections and messages of a rank, divided by log2(ranks): joining, then the first barrier.
MOST_CONNECTIONS = 6
MOST_MESSAGES = 24


def measure(build: pathlib.Path, size: int, nodes: int) -> tuple[float, dict[str, list[int]]]:
    """Open a world; return the seconds, and for each rank connections and messages."""
    command = [str(build / "bin/banyan"), "launch", "-n", str(size), "--"]
    program = str(build / "bin/open_world")
    if nodes > 1:
        script = (
            f"export BANYAN_NODE=node$((BANYAN_RANK * {nodes} / {size})) MASTER_ADDR=127.0.0.1; "
            f"export BANYAN_LOCAL_SIZE={size // nodes}; "
            f"export BANYAN_LOCAL_RANK=$((BANYAN_RANK % {size // nodes})); exec {program}"
        )
        command += ["sh", "-c", script]
    else:
        command += [program]
    environment = os.environ | {"BANYAN_LOG": "debug", "BANYAN_PORT": "29617"}
    began = time.monotonic()
    done = subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, text=True, timeout=300, check=False
    )
    took = time.monotonic() - began
    if done.returncode:
        sys.exit("\n".join(done.stderr.splitlines()[-5:]))
    counts: dict[str, list[int]] = {}
    for who, _, made, accepted, sent, received in LINE.findall(done.stderr):
        sums = counts.setdefault(who, [0, 0])
        sums[0] += int(made) + int(accepted)
        sums[1] += int(sent) + int(received)
    if len(counts) != size + 1:
        sys.exit(f"open_world: {len(counts)} of {size + 1} processes logged their messages")
    return took, counts


def main() -> int:
    """Print the table; return 1 if a goal is missed."""
    build = pathlib.Path(sys.argv[1]).resolve()
    nodes = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    missed = False
    print(f"opening worlds, {nodes} node(s), {os.cpu_count()} processors")
    titles = f"{'connections: most':>20}{'mean':>7}{'messages: most':>17}{'mean':>7}"
    print(f"{'ranks':>6}{'seconds':>9}{titles}")
    for size in SIZES:
        took, counts = measure(build, size, nodes)
        most = [max(one[i] for one in counts.values()) for i in range(2)]
        mean = [sum(one[i] for one in counts.values()) / len(counts) for i in range(2)]
        steps = math.log2(size)
        wrong = nodes == 1 and (
            most[0] > MOST_CONNECTIONS * steps or most[1] > MOST_MESSAGES * steps
        )
        missed |= wrong
        print(
            f"{size:>6}{took:>9.2f}{most[0]:>20}{mean[0]:>7.1f}{most[1]:>17}{mean[1]:>7.1f}"
            f"{'  MISSED' if wrong else ''}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
