"""NCCL M2N's call between 4 ranks: its cost over a banyan.Reshard, and DTensor's redistribute.

All calls take turns in the same processes, on the host. Times are medians at the slowest rank. The
limit is one copy of the destination's bytes, by all ranks at once.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from turns import run, turns

import banyan
import banyan.torch
from banyan.integrations import m2n

RANKS = 4
PEER_GOAL = 2.0
SIDES = {
    "src_mesh": [[0, 1], [2, 3]],
    "src_placements": [Shard(0), Shard(1)],
    "dst_mesh": [[0, 1], [2, 3]],
    "dst_placements": [Replicate(), Shard(1)],
}


def measure(shape: tuple[int, int], rounds: int, each: int) -> dict[str, float]:
    """Time the calls for one shape."""
    mesh = init_device_mesh("cpu", (2, 2))
    rank = dist.get_rank()
    whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
    source = distribute_tensor(whole, mesh, SIDES["src_placements"], src_data_rank=None)
    wanted = distribute_tensor(whole, mesh, SIDES["dst_placements"], src_data_rank=None)
    src = source.to_local().contiguous()
    pool = [torch.zeros_like(wanted.to_local()) for _ in range(2)]
    dst, count = pool[0], 0
    layouts = []
    for placements in (SIDES["src_placements"], SIDES["dst_placements"]):
        layouts.append(banyan.Layout())
        layouts[-1].add_sharded("0", "float32", shape, banyan.Mesh((2, 2)), placements, rank)
    world = banyan.torch.world()
    own = banyan.Reshard(layouts[0], layouts[1], world, progress=None)

    def other_memory() -> None:
        nonlocal count
        count += 1
        m2n.reshard(src, pool[count % 2], world, **SIDES)

    def peer() -> Any:
        return source.redistribute(placements=SIDES["dst_placements"])

    ready, copied = wanted.to_local().contiguous(), torch.zeros_like(pool[0])
    times = turns(
        {
            "limit": lambda: copied.copy_(ready),
            "own": lambda: own([src], [dst]),
            "call": lambda: m2n.reshard(src, dst, world, **SIDES),
            "other": other_memory,
            "peer": peer,
        },
        rounds,
        each,
    )
    assert torch.equal(dst, wanted.to_local()) and torch.equal(peer().to_local(), dst)
    own.close()
    return times


def both(_: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the times of a small tensor, and of a large one."""
    warnings.simplefilter("ignore")
    return measure((64, 16), 7, 50), measure((4096, 4096), 5, 1)


def report(small: dict[str, float], large: dict[str, float]) -> int:
    """Print the figures; 1 if a goal is missed."""
    print("4 ranks on one machine, a 2 x 2 mesh: Shard(0), Shard(1) to Replicate, Shard(1)")
    for name, what in (
        ("limit", "limit: one copy of the destination"),
        ("own", "banyan.Reshard, same tensors"),
        ("call", "m2n.reshard, same tensors"),
        ("other", "m2n.reshard, other memory than before"),
        ("peer", "DTensor.redistribute over Gloo"),
    ):
        print(
            f"{what:<40} 4 KiB {small[name] * 1e6:8.1f} us   64 MiB {large[name] * 1e3:8.2f} ms",
            flush=True,
        )
    ratio = large["peer"] / large["call"]
    share = large["limit"] / large["call"]
    print(f"64 MiB: m2n.reshard reaches {share:.2f} of the limit")
    print(f"m2n.reshard adds {(small['call'] - small['own']) * 1e6:.1f} us to a run")
    met = ratio >= PEER_GOAL
    print(
        f"64 MiB beside redistribute: {ratio:.2f} times (goal {PEER_GOAL}): "
        f"{'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(report(*run(RANKS, both, backend="gloo")[0]))
