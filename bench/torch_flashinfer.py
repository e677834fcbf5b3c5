"""FlashInfer's call between 2 x 2 ranks: its cost over banyan.Mixed, and two collectives over Gloo.

All calls take turns in the same processes, on the host. Times are medians at the slowest rank. The
limit is one copy of the output's bytes, by all ranks at once.
"""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist
from turns import run, turns

from banyan.integrations.flashinfer import (
    MixedCommHandler,
    MixedCommMode,
    MixedCommOp,
    run_mixed_comm,
)

RANKS, HIDDEN = 4, 8192
PEER_GOAL = 1.5
ROWS = {1: 200, 64: 20, 512: 4}


def measure(rank: int) -> dict[int, dict[str, float]]:
    """Return the times of each number of rows."""
    warnings.simplefilter("ignore")
    results = {}
    handler = MixedCommHandler(
        world_rank=rank,
        world_size=RANKS,
        local_rank=rank,
        local_size=RANKS,
        inter_rank=0,
        inter_size=1,
        local_tp_size=2,
        local_dp_size=2,
        inter_tp_size=1,
        inter_dp_size=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
        use_autotune=False,
    )
    op, mode = MixedCommOp.ALLREDUCE_ALLGATHER, MixedCommMode.FUSED_OPT_WAITS_UC
    for rows, each in ROWS.items():
        x = torch.full((rows, HIDDEN), float(rank))
        out, other = torch.empty(2 * rows, HIDDEN), torch.empty(2 * rows, HIDDEN)

        def peer(x: torch.Tensor = x, other: torch.Tensor = other) -> None:
            summed = x.clone()
            dist.all_reduce(summed, group=handler.tp_comm_group)
            dist.all_gather_into_tensor(other, summed, group=handler.dp_comm_group)

        ready, copied = torch.ones_like(out), torch.zeros_like(out)
        results[rows] = turns(
            {
                "limit": lambda copied=copied, ready=ready: copied.copy_(ready),
                "own": lambda x=x, out=out: handler.mixed.run(
                    "allreduce_allgather", x, out, mode="one_shot"
                ),
                "call": lambda x=x, out=out: run_mixed_comm(op, handler, x, out, mode),
                "peer": peer,
            },
            each=each,
        )
        assert torch.equal(out, other)
    handler.shutdown()
    return results


def report(results: dict[int, dict[str, float]]) -> int:
    """Print the figures; 1 if a goal is missed."""
    print("all-reduce + all-gather, 2 x 2 ranks on one machine, rows of 8192 float32, us a call")
    heads = ("limit", "Mixed.run", "run_mixed_comm", "Gloo, two calls")
    print(f"{'rows':>6}" + "".join(f"{head:>16}" for head in heads))
    for rows, one in results.items():
        print(
            f"{rows:>6}"
            + "".join(f"{one[k] * 1e6:>16.1f}" for k in ("limit", "own", "call", "peer"))
        )
    smallest = results[min(results)]
    print(f"run_mixed_comm adds {(smallest['call'] - smallest['own']) * 1e6:.1f} us")
    ratio = min(one["peer"] / one["call"] for one in results.values())
    met = ratio >= PEER_GOAL
    print(
        f"beside Gloo: at least {ratio:.2f} times (goal {PEER_GOAL}): {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(report(run(RANKS, measure, backend="gloo")[0]))
