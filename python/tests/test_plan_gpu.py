"""Plans on CUDA tensors: two ranks on one GPU. Needs PyTorch and a GPU."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import banyan
import programs
import ranks

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None


def values(rank: int, count: int, dtype: Any) -> Any:
    """Small integers: sums are exact in every type."""
    return ((torch.arange(count) * 13 + rank * 7) % 101).to(dtype)


def check_runs(world: banyan.World, loaded: banyan.LoadedPlan, reduce: Any, dtype: Any) -> None:
    inputs = [values(r, 4096, dtype) for r in range(world.size)]
    wanted = reduce(inputs)
    mine = inputs[world.rank].cuda()
    out = torch.full((wanted.numel(),), 77, dtype=dtype, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # the run follows the current stream
        assert loaded.run(mine, out) is out
    stream.synchronize()
    loaded.check()
    assert torch.equal(out.cpu(), wanted), (loaded.plan.name, dtype)

    out.fill_(77)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        loaded.run(mine, out)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), wanted), (loaded.plan.name, dtype, "in a graph")
    assert loaded.time(mine, out, runs=3) > 0
    try:
        loaded.run(inputs[world.rank], wanted.clone())
        raise AssertionError("a tensor of the host was accepted")
    except ValueError as error:
        assert "the executor is on cuda:0" in str(error), error


def plans(world: banyan.World, path: str) -> None:
    torch.cuda.set_device(0)
    algorithms: list[tuple[str, Any, Any]] = [
        ("allreduce_ring", "sum", lambda x: torch.stack(x).sum(0, dtype=x[0].dtype)),
        ("allreduce_twoshot", "max", lambda x: torch.stack(x).amax(0)),
        ("allgather_direct", "sum", torch.cat),
    ]
    loaded: Any = None
    with banyan.Executor(world, device=0) as executor:
        for name, op, reduce in algorithms:
            plan = banyan.compile_algorithm(name, world.size, op=op)
            loaded = executor.load(plan, 1 << 16)
            for dtype in (torch.float32, torch.bfloat16, torch.int32):
                check_runs(world, loaded, reduce, dtype)
        executor.begin_trace()
        loaded.run(torch.ones(64, device="cuda"), torch.ones(64 * world.size, device="cuda"))
        loaded.wait()
        executor.write_trace(path)


def programs_of_the_language(world: banyan.World) -> None:
    torch.cuda.set_device(0)
    of = next(p for p in programs.PROGRAMS if p[0] == "single_node_allgather_2")
    whole = torch.full((2048,), 77.0, device="cuda")
    mine = whole[world.rank * 1024 : (world.rank + 1) * 1024]
    mine[:] = world.rank + 5
    programs.build(of).run(world, mine, whole)
    assert whole.cpu().tolist() == [5.0] * 1024 + [6.0] * 1024


class Gpu(unittest.TestCase):
    def test_plans_run_on_cuda_tensors(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            ranks.run(2, plans, str(path))
            plan = banyan.compile_algorithm("allgather_direct", 2)
            self.assertIn("<svg", plan.view(trace=path).svg())

    def test_programs_run_on_cuda_tensors(self) -> None:
        ranks.run(2, programs_of_the_language)


if __name__ == "__main__":
    if torch is None or not torch.cuda.is_available():
        print("skipped: PyTorch with a GPU is needed")
        sys.exit(77)
    ranks.CONTEXT = multiprocessing.get_context("spawn")  # type: ignore[assignment]
    unittest.main()
