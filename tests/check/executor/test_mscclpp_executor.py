"""Plans that are adapted to MSCCL++'s executor are right on it, in random schedules of its threads and proxies.

The oracle (mscclpp.py) is an interpreter that was written from that executor's source.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import mscclpp

BANYAN = Path(os.environ["BANYAN_BUILD"]) / "bin" / "banyan"
CHUNK = 96  # bytes of a chunk: a multiple of 32
RUNS = 4
NEEDS_GLRE = {"reducescatter_switch", "reducescatter_switch_direct"}
# With 8 ranks: of operations of a thread block, and of its memory channels.
TOO_LARGE = {
    "allreduce_ports_scratch": "at most 64 are possible",
    "broadcast_hierarchical": "at most 16 are possible",
}


def command(*arguments):
    return subprocess.run([BANYAN, *map(str, arguments)], capture_output=True, text=True)


def names():
    listed = command("algo", "list").stdout.splitlines()[1:]
    return [line.split()[0] for line in listed]


def data(seed, rank, run, size):
    return random.Random(f"{seed} {rank} {run}").randbytes(size)


def expected(plan, collective, seed, rank, run, input_size):
    """The collective's definition: elements are added modulo 2**32."""
    ranks = len(plan["gpus"])
    inputs = [data(seed, r, run, input_size) for r in range(ranks)]
    block = input_size // ranks
    extras = plan.get("banyan", {})
    root, shift = extras.get("root", 0), extras.get("shift", 1 % ranks)
    total = bytes(input_size)
    for one in inputs if collective in ("allreduce", "reduce", "reducescatter") else []:
        total = mscclpp.add(total, one)
    return {
        "allreduce": lambda: total,
        "reduce": lambda: total if rank == root else None,
        "reducescatter": lambda: total[rank * block : (rank + 1) * block],
        "allgather": lambda: b"".join(inputs),
        "alltoall": lambda: b"".join(one[rank * block : (rank + 1) * block] for one in inputs),
        "broadcast": lambda: inputs[root],
        "sendrecv": lambda: inputs[(rank - shift) % ranks],
    }[collective]()


def play(plan, seed, packet=16, offset=0):
    """Return what was wrong, or None. Buffers begin at `offset` of allocations that are multiples of 512 bytes."""
    gpu = plan["gpus"][0]
    input_size, output_size = CHUNK * gpu["input_chunks"], CHUNK * gpu["output_chunks"]
    tail = -(offset + input_size) % 512
    wrong = []

    def begin(machine, rank, run):
        memory = machine.memory[rank]
        if not plan["inplace"]:
            memory["o"].write(memory["o"].offset, b"\xa5" * output_size)
        memory["i"].write(memory["i"].offset, data(seed, rank, run, input_size))

    def end(machine, rank, run):
        memory = machine.memory[rank]["o"]
        right = expected(plan, plan["collective"], seed, rank, run, input_size)
        if right is not None and memory.read(memory.offset, output_size) != right:
            wrong.append(f"rank {rank} has a wrong output after run {run}")

    try:
        mscclpp.Machine(
            plan, input_size, output_size, begin, end, RUNS, seed, packet, extra=offset, tail=tail
        ).play()
    except (mscclpp.Refused, mscclpp.Stuck) as error:
        return f"{type(error).__name__}: {error}"
    return wrong[0] if wrong else None


def emit(name, ranks, folder, *options):
    """Return the plan, or the reason why there is none."""
    path = Path(folder) / "plan.json"
    done = command("algo", "emit", name, "-n", ranks, *options, "-o", path)
    return mscclpp.load(path) if done.returncode == 0 else done.stderr


def limits(folder):
    """Return whether the last plan is sound on the executor, and what the proof presumes."""
    done = command(
        "check", "--executor", "mscclpp", "--no-warnings", "--json", Path(folder) / "plan.json"
    )
    report = json.loads(done.stdout)
    return report["sound"], report["limits"]


def adapted_plans_are_right(folder, counts, seeds, *options):
    """Return the numbers of plans that are right and of all."""
    right = total = 0
    for ranks in counts:
        for name in names():
            plan = emit(name, ranks, folder, "--executor", "mscclpp", *options)
            if isinstance(plan, str) and "cannot work in place" in plan:
                continue
            total += 1
            if isinstance(plan, str):
                assert (
                    name in NEEDS_GLRE
                    and "(glre) is unknown to the executor" in plan
                    or (name in TOO_LARGE and ranks == 8 and TOO_LARGE[name] in plan)
                ), plan
                continue
            sound, presumed = limits(folder)
            assert sound
            anywhere = "must begin" not in presumed
            for seed in range(seeds):
                fault = play(plan, seed, (16, 8)[seed % 2], 32 * (seed + ranks) if anywhere else 0)
                assert fault is None, f"{name} of {ranks} ranks, seed {seed}: {fault}"
            right += 1
    print(
        f"{counts} ranks {' '.join(options)}: {right} of {total} plans are right, {total - right} are refused"
    )
    return right, total


def what_the_checker_calls_sound_is_right_and_what_it_refuses_goes_wrong(folder):
    """The same for plans that were not adapted: many go wrong, so the interpreter finds faults."""
    sound = wrong = 0
    for name in names():
        plan = emit(name, 3, folder)
        if limits(folder)[0]:
            sound += 1
            fault = play(plan, 1)
            assert fault is None, f"{name} is called sound: {fault}"
        else:
            wrong += play(plan, 0) is not None
    print(f"as they are: {sound} plans are right, {wrong} go wrong")
    assert sound >= 20 and wrong >= 30, (sound, wrong)


def main():
    with tempfile.TemporaryDirectory() as folder:
        assert adapted_plans_are_right(folder, (3, 4), 2) == (146, 150)
        assert adapted_plans_are_right(folder, (3,), 1, "--in-place") == (69, 71)
        assert adapted_plans_are_right(folder, (4,), 1, "--ranks-per-node", "2") == (73, 75)
        assert adapted_plans_are_right(folder, (8,), 1) == (71, 75)
        what_the_checker_calls_sound_is_right_and_what_it_refuses_goes_wrong(folder)


if __name__ == "__main__":
    main()
