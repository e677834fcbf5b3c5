"""Megatron-Core's swap of weights between 4 ranks, beside Banyan's ways to do the same.

usage: megatron_core.py [--layers N]

The models are real ones of Megatron-Core, in bfloat16, on the host. All ways take turns in the same
processes; times are medians of several turns at the slowest rank. Megatron-Core's plans and
Banyan's schedules are kept, as in a training loop.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "python"
sys.path[:0] = [str(TESTS / "tests_torch"), str(TESTS / "tests_integrations/megatron")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402

RANKS = 4
TURNS = 7
MEGATRON_GOAL = 3.0


def _leave(tensor: torch.Tensor) -> torch.Tensor:
    """Initialize nothing: the models are filled later."""
    return tensor


SIZES: dict[str, Any] = {
    "init_method": _leave,
    "output_layer_init_method": _leave,
    "embedding_init_method": _leave,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_query_groups": 16,
    "ffn_hidden_size": 5632,
    "params_dtype": torch.bfloat16,
    "pipeline_dtype": torch.bfloat16,
    "vocabulary": 32000,
}


def slowest(seconds: float) -> float:
    """Return the longest time of all ranks."""
    mine = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return mine.item()


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call at the slowest rank."""
    dist.barrier()
    began = time.perf_counter()
    call()
    return slowest(time.perf_counter() - began)


def compare(rank: int, path: str, layers: int, missed: torch.Tensor) -> None:
    """Measure, and print at rank 0."""
    import models
    from megatron.core.resharding import planner
    from megatron.core.resharding.refit import swap_model_weights

    from banyan.integrations.megatron import BanyanCopyService, banyan_reshard
    from banyan.integrations.megatron.resharding import execute_reshard_plan

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(path, RANKS), rank=rank, world_size=RANKS)
    source = models.build(tp=2, num_layers=layers, **SIZES)
    destination = models.build(tp=4, num_layers=layers, **SIZES)
    gloo, ours = models.gloo_service(), BanyanCopyService()
    newer = getattr(planner, "build_local_reshard_plan", None)
    plan = (newer or planner.build_centralized_reshard_plan)(source, destination)

    def swap(service: Any) -> Callable[[], object]:
        return lambda: swap_model_weights(source, destination, refit_method=service)

    locals_of = [one.detach() for one in destination.parameters()]
    copies = [torch.zeros_like(one) for one in locals_of]

    def copy() -> None:
        for to, one in zip(copies, locals_of, strict=True):
            to.copy_(one)

    ways = {
        "swap_model_weights, GlooCopyService": swap(gloo),
        "swap_model_weights, BanyanCopyService": swap(ours),
        "Banyan's execute_reshard_plan": lambda: execute_reshard_plan(
            plan, source, destination, ours
        ),
        "banyan_reshard": lambda: banyan_reshard(source, destination),
        "copies of the destination, all ranks": copy,
    }
    wanted: dict[str, torch.Tensor] = {}
    for name, way in list(ways.items())[:-1]:
        models.poison(destination)
        first = timed(way)
        if not wanted:
            wanted = models.values(destination)
        models.compare(name, destination, wanted)
        if rank == 0 and way is not ways["swap_model_weights, GlooCopyService"]:
            print(f"  the first {name}: {first * 1e3:.0f} ms with planning")
    wanted.clear()
    times = [{name: timed(way) for name, way in ways.items()} for _ in range(TURNS + 1)]
    medians = {name: statistics.median(one[name] for one in times[1:]) for name in ways}
    nbytes = sum(one.nbytes for one in locals_of)
    if rank == 0:
        import megatron.core

        peer, *_others, floor = medians.values()
        print(
            f"  Megatron-Core {megatron.core.__version__}, {layers} layers, {nbytes / 1e6:.0f} MB "
            "for each rank, tp=2,dp=2 to tp=4, bf16"
        )
        for name, seconds in medians.items():
            text = f"{peer / seconds:.2f} x" if seconds != floor else "the limit"
            print(f"  {name:40} {seconds * 1e3:7.0f} ms  {text}")
        met = peer / medians["banyan_reshard"] >= MEGATRON_GOAL
        print(f"  goal of banyan_reshard {MEGATRON_GOAL:.0f} x: {'met' if met else 'MISSED'}")
        missed[0] = not met
        sys.stdout.flush()
    ours.close()
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Run the ranks, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8, help="of the model (8: 1.1 GB)")
    arguments = parser.parse_args()
    import models  # noqa: F401  (ends with 77 without Megatron-Core)

    missed = torch.zeros(1, dtype=torch.int32).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            compare, (os.path.join(folder, "store"), arguments.layers, missed), nprocs=RANKS
        )
    return 1 if missed.item() else 0


if __name__ == "__main__":
    sys.exit(main())
