"""MSCCL++'s runtime over a group of torch.distributed, with tensors of PyTorch (host or GPU)."""

from __future__ import annotations

import tempfile
import unittest

from groups import DEVICE, dist, run, torch

import banyan
from banyan.integrations.mscclpp import (
    CommGroup,
    DataType,
    ExecutionPlan,
    Executor,
)
from banyan.integrations.mscclpp.utils import pack, torch_dtype_to_mscclpp_dtype

COUNTS = (1, 3000, 3000, 500_000)


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else 0


def reduce(
    group: CommGroup,
    executor: Executor,
    plan: ExecutionPlan,
    dtype: torch.dtype,
    inputs: list[torch.Tensor],
) -> torch.Tensor:
    send, recv = inputs[group.my_rank], torch.zeros_like(inputs[0])
    executor.execute(
        group.my_rank,
        send.data_ptr(),
        recv.data_ptr(),
        send.nbytes,
        recv.nbytes,
        torch_dtype_to_mscclpp_dtype(dtype),
        plan,
        stream(),
    )
    return recv


def sums(rank: int, path: str, backend: str) -> None:
    group = CommGroup(torch_group=dist.group.WORLD)
    size = dist.get_world_size()
    assert (group.my_rank, group.nranks, group.nranks_per_node) == (rank, size, size)
    executor = Executor(group.communicator)
    plan = ExecutionPlan(path, rank)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int32):
        for count in COUNTS:
            generator = torch.Generator("cpu").manual_seed(count)
            inputs = [
                torch.randint(-8, 8, (count,), generator=generator, device="cpu").to(DEVICE, dtype)
                for _ in range(size)
            ]
            recv = reduce(group, executor, plan, dtype, inputs)
            assert torch.equal(recv, torch.stack(inputs).sum(0, dtype=dtype)), (dtype, count)
    group.barrier()
    executor.reset()


class Runtime(unittest.TestCase):
    def test_tensors_are_reduced(self) -> None:
        for name, backend in (("allreduce_packets", "gloo"), ("allreduce_twoshot", "banyan")):
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/plan.json"
                banyan.compile_algorithm(name, 3).write(path)
                run(3, sums, path, backend, backend=backend)

    def test_types_of_pytorch(self) -> None:
        self.assertIs(torch_dtype_to_mscclpp_dtype(torch.float8_e5m2), DataType.float8_e5m2)
        with self.assertRaisesRegex(ValueError, r"Unknown data type: torch\.float64"):
            torch_dtype_to_mscclpp_dtype(torch.float64)
        tensor = torch.zeros(3)
        self.assertEqual(pack(tensor), tensor.data_ptr().to_bytes(8, "little"))


if __name__ == "__main__":
    unittest.main()
