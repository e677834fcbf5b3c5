"""Megatron-Core's swap of weights between 4 ranks, beside Banyan's ways to do the same.

usage: megatron_core.py [--layers N]

The models are real ones of Megatron-Core, in bfloat16, on the host. All ways take turns in the same
processes; times are medians of several turns at the slowest rank. Megatron-Core's plans and
Banyan's schedules are kept, as in a training loop.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from turns import run, timed, turns

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/tests_integrations/megatron"))

RANKS = 4
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


def compare(rank: int, layers: int) -> bool:
    """Measure, and print at rank 0. Return whether it meets the goal."""
    import models
    from megatron.core.resharding import planner
    from megatron.core.resharding.refit import swap_model_weights

    from banyan.integrations.megatron import BanyanCopyService, banyan_reshard
    from banyan.integrations.megatron.resharding import execute_reshard_plan

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
    medians = turns(ways)
    peer, *_others, floor = medians.values()
    met = peer / medians["banyan_reshard"] >= MEGATRON_GOAL
    nbytes = sum(one.nbytes for one in locals_of)
    if rank == 0:
        import megatron.core

        print(
            f"  Megatron-Core {megatron.core.__version__}, {layers} layers, {nbytes / 1e6:.0f} MB "
            "for each rank, tp=2,dp=2 to tp=4, bf16"
        )
        for name, seconds in medians.items():
            text = f"{peer / seconds:.2f} x" if seconds != floor else "the limit"
            print(f"  {name:40} {seconds * 1e3:7.0f} ms  {text}")
        print(f"  goal of banyan_reshard {MEGATRON_GOAL:.0f} x: {'met' if met else 'MISSED'}")
        sys.stdout.flush()
    ours.close()
    return met


def main() -> int:
    """Run the ranks, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8, help="of the model (8: 1.1 GB)")
    arguments = parser.parse_args()
    import models  # noqa: F401  (ends with 77 without Megatron-Core)

    return 0 if run(RANKS, compare, arguments.layers, backend="gloo", timeout=600)[0] else 1


if __name__ == "__main__":
    sys.exit(main())
