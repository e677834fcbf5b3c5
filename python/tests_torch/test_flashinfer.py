"""FlashInfer's mixed communication: every grid, operation and mode against float64, and errors."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import unittest
from typing import Any

from groups import DEVICE, dist, run, seed, torch

from banyan.integrations.flashinfer import (
    MixedCommHandler,
    MixedCommMode,
    MixedCommOp,
    run_mixed_comm,
)

Op, Mode = MixedCommOp, MixedCommMode
SCATTERS = (Op.REDUCESCATTER, Op.REDUCESCATTER_ALLREDUCE)
HIDDEN = 24
#: Relative rounding error of one conversion to the type.
EPSILON = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def nodes_are_possible(ranks: int) -> bool:
    """Between nodes, each rank needs a GPU of its own."""
    return DEVICE == "cpu" or torch.cuda.device_count() >= ranks


def device() -> torch.device:
    if DEVICE == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def handler_for(
    nodes: int, local_tp: int, inter_tp: int, dtype: torch.dtype, **options: Any
) -> MixedCommHandler:
    rank, size = dist.get_rank(), dist.get_world_size()
    local_size = size // nodes
    return MixedCommHandler(
        world_rank=rank,
        world_size=size,
        local_rank=rank % local_size,
        local_size=local_size,
        inter_rank=rank // local_size,
        inter_size=nodes,
        local_tp_size=local_tp,
        local_dp_size=local_size // local_tp,
        inter_tp_size=inter_tp,
        inter_dp_size=nodes // inter_tp,
        dtype=dtype,
        device=device(),
        **options,
    )


def data(rank: int, rows: int, dtype: torch.dtype, start: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(start * 1000 + rank)
    values = torch.rand(rows, HIDDEN, generator=generator, device="cpu") - 0.5
    return values.to(dtype).to(device())


def expected(
    handler: MixedCommHandler, op: MixedCommOp, rows: int, dtype: torch.dtype, start: int
) -> torch.Tensor:
    """Return the definition of the operation, in float64. ``rows`` are those of b."""
    info = handler.para_info
    count = rows * info.dp_size if op in SCATTERS else rows
    parts = {
        (tp, dp): data(info._rank_at(tp, dp), count, dtype, start).double()
        for tp, dp in itertools.product(range(info.tp_size), range(info.dp_size))
    }
    if op in SCATTERS:
        whole = torch.stack(list(parts.values())).sum(0)
        return whole[info.dp_rank * rows :][:rows]
    sums = [
        torch.stack([parts[tp, dp] for tp in range(info.tp_size)]).sum(0)
        for dp in range(info.dp_size)
    ]
    return torch.cat(sums) if info.use_dp else sums[0]


def close(found: torch.Tensor, wanted: torch.Tensor, summands: int) -> None:
    """Compare; single and separate collectives may round each partial sum to the type."""
    bound = EPSILON[found.dtype] * summands * (wanted.abs() + summands * 0.5)
    difference = (found.double() - wanted).abs()
    assert bool((difference <= bound).all()), f"{difference.max()} of {bound.max()}"


def grid(rank: int, nodes: int, local_tp: int, inter_tp: int, start: int) -> list[str]:
    """Run every operation in every mode, in three types."""
    seen = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        handler = handler_for(nodes, local_tp, inter_tp, dtype, use_autotune=False)
        info = handler.para_info
        assert info.tp_size * info.dp_size == dist.get_world_size()
        assert info._rank_at(info.tp_rank, info.dp_rank) == rank
        fused = {Mode.FUSED_OPT_WAITS_UC}
        fused |= {Mode.FUSED_OPT_BYTES1_UC} if info.use_local_tp else set()
        fused |= {Mode.FUSED_OPT_BYTES2_UC} if info.use_inter_tp else set()
        assert fused < set(handler.valid_mode_list), handler.valid_mode_list
        assert (Mode.NCCL_TP_DP in handler.valid_mode_list) == info.use_mixed
        assert Mode.AUTOTUNE not in handler.valid_mode_list
        assert (handler.tp_comm_group is not None) == info.use_mixed
        assert (handler.local_comm_group is not None) == (nodes > 1)
        for op in handler.valid_op_list:
            for rows in (1, 5):
                count = rows * info.dp_size if op in SCATTERS else rows
                mine = data(rank, count, dtype, start)
                wanted = expected(handler, op, rows, dtype, start)
                for mode in [None, *handler.valid_mode_list]:
                    found = run_mixed_comm(op, handler, mine, mode=mode)
                    close(found, wanted, dist.get_world_size())
                    out = torch.full_like(found, 7)
                    assert run_mixed_comm(op, handler, mine, out, mode) is out
                    assert torch.equal(out, found)
                    if info.use_mixed and info.use_tp:  # all tensor-parallel ranks, the same bits
                        parts = [torch.empty_like(out) for _ in range(info.tp_size)]
                        dist.all_gather(parts, out, group=handler.tp_comm_group)
                        assert all(torch.equal(one, out) for one in parts), f"{op} {mode}"
                    seen.append(f"{op.name} {mode.name if mode is not None else mode}")
        turned = data(rank, 6 * info.dp_size, dtype, start).T.contiguous().T
        assert not turned.is_contiguous()
        op = handler.valid_op_list[-1]
        found = run_mixed_comm(op, handler, turned)
        assert torch.equal(found, run_mixed_comm(op, handler, turned.contiguous()))
        handler.shutdown()
        try:
            handler.shutdown()
        except AssertionError as error:
            assert "more than once" in str(error)
        else:
            raise KeyError("shut down twice")
    return seen


def tuned(rank: int) -> None:
    """AUTOTUNE is a mode, whose choice is a valid one."""
    handler = handler_for(1, 2, 1, torch.float32)
    assert handler.valid_mode_list[-1] == Mode.AUTOTUNE
    info = handler.para_info
    assert handler.autotune_max_coef == 14 and info.dp_size == 2
    for op in handler.valid_op_list:
        assert len(handler.autotune_map[op]) == handler.autotune_max_coef
        assert set(handler.autotune_map[op]) <= set(handler.valid_mode_list)
        x = torch.zeros(2 * info.dp_size, 2048, device=device())
        rows = 2 if op in SCATTERS else 4
        assert handler.select_autotune_mode(op, x) == handler._choice(op, rows * 8192)
        assert handler.select_autotune_mode(op, x) in handler.valid_mode_list[:-1]
        mine = data(rank, 4, torch.float32, 3)
        first = run_mixed_comm(op, handler, mine)
        assert torch.equal(first, run_mixed_comm(op, handler, mine, mode=Mode.AUTOTUNE))
        close(first, expected(handler, op, 2 if op in SCATTERS else 4, torch.float32, 3), 4)
    handler.shutdown()


def refused(rank: int) -> None:
    case = unittest.TestCase()
    for change, message in (
        ({"dtype": torch.float64}, "dtype is torch.float64"),
        ({"local_tp": 3}, "a node: tp 3 x dp 1 is not the size 4"),
        ({"min_block_size": 100}, "min_block_size is 100"),
        ({"max_block_size": 128}, "max_block_size is 128, min_block_size 256"),
    ):
        arguments: dict[str, Any] = {
            "nodes": 1,
            "local_tp": 2,
            "inter_tp": 1,
            "dtype": torch.float32,
            "use_autotune": False,
        }
        with case.assertRaisesRegex(AssertionError, message):
            handler_for(**(arguments | change))
    handler = handler_for(1, 2, 1, torch.float32, use_autotune=False)
    gather, scatter = Op.ALLREDUCE_ALLGATHER, Op.REDUCESCATTER_ALLREDUCE
    x = torch.zeros(4, 8, device=device())
    for arguments, message in (
        ({"op": Op.ALLREDUCE}, "Invalid op: ALLREDUCE"),
        ({"mode": Mode.FUSED_OPT_BYTES2_UC}, "Invalid mode: FUSED_OPT_BYTES2_UC"),
        ({"mode": Mode.AUTOTUNE}, "Invalid mode: AUTOTUNE"),
        ({"x_in": x[0]}, "x_in.ndim should be at least 2"),
        ({"x_in": x.half()}, "x_in.dtype should be torch.float32"),
        ({"x_in": x.to("meta")}, "x_in.device should be"),
        ({"op": scatter, "x_in": x[:3]}, "should be divisible by dp_size"),
        ({"x_out": x[None]}, "x_out.ndim should be equal to x_in.ndim"),
        ({"x_out": torch.zeros(8, 8).half()}, "x_out.dtype should be equal"),
        ({"x_out": x.to("meta")}, "x_out.device should be equal"),
        ({"x_out": torch.zeros(8, 7, device=device())}, r"x_out.shape\[1:\] should be equal"),
        ({"x_out": x}, r"equal to x_in.shape\[0\] \* dp_size"),
        ({"op": scatter, "x_out": x}, r"x_out.shape\[0\] \* dp_size should be equal"),
    ):
        given: dict[str, Any] = {"op": gather, "handler": handler, "x_in": x} | arguments
        with case.assertRaisesRegex(ValueError, message):
            run_mixed_comm(**given)
    assert run_mixed_comm(gather, handler, x[:0]).shape == (0, 8)
    if DEVICE == "cpu":
        for call in (handler.checkpoint_prepare, lambda: handler.checkpoint_restore(None)):
            with case.assertRaisesRegex(NotImplementedError, "on the host"):
                call()
    handler.shutdown()
    if not nodes_are_possible(4):
        return
    inter = handler_for(2, 2, 1, torch.float32, use_autotune=False)
    with case.assertRaisesRegex(NotImplementedError, "multi-node"):
        inter.checkpoint_prepare()
    inter.shutdown()


def addresses(rank: int) -> None:
    """Every rank of a node sees the GPU memory of all of them at the handler's addresses."""
    handler = handler_for(1, 2, 1, torch.float32, use_autotune=False)
    for op in handler.valid_op_list:
        for mode in handler.valid_mode_list:
            run_mixed_comm(op, handler, data(rank, 4, torch.float32, 1), None, mode)
    assert set(handler.mc_ptr_dict) == {"full", "tp"} == set(handler.mc_buffer_dict)
    if DEVICE == "cpu":
        assert handler.uc_ptr_list is handler.vm_workspace_bytes is handler.mem_buffer.value is None
        assert not any(handler.mc_ptr_dict.values())
        handler.shutdown()
        return
    torch.cuda.synchronize()
    dist.barrier()
    assert handler.uc_ptr_list is not None and handler.vm_workspace_bytes
    assert len(set(handler.uc_ptr_list)) == handler.para_info.local_size
    assert handler.mem_buffer.value == handler.uc_ptr_list[handler.para_info.local_rank]
    for key, pointer in handler.mc_ptr_dict.items():
        assert handler.mc_buffer_dict[key].value == pointer
    driver, seen = ctypes.CDLL("libcuda.so.1"), []  # PyTorch copies on the GPU that has the memory
    for pointer in handler.uc_ptr_list:
        part = ctypes.create_string_buffer(handler.vm_workspace_bytes)
        code = driver.cuMemcpyDtoH_v2(part, ctypes.c_uint64(pointer), ctypes.c_size_t(len(part)))
        assert code == 0, f"cuMemcpyDtoH at {pointer:#x}: {code}"
        seen.append(hashlib.sha256(part).hexdigest())
    assert len(set(seen)) > 1, "all ranks have the same memory"
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, seen)
    assert every == [seen] * len(every), f"rank {rank}: {every}"
    handler.shutdown()


class Backend:
    def __init__(self, rank: int, size: int) -> None:
        self.Get_rank, self.Get_size = (lambda: rank), (lambda: size)

    def barrier(self) -> None:
        dist.barrier()


def checkpoints(rank: int) -> None:
    """Memory of GPUs is released and comes back, under the graphs that use it."""
    handler = handler_for(1, 1, 1, torch.float16, use_autotune=False)
    x = data(rank, 4, torch.float16, 1)
    out = torch.zeros(4 * 2, HIDDEN, dtype=torch.float16, device=device())
    run_mixed_comm(Op.ALLGATHER, handler, x, out, Mode.FUSED_OPT_WAITS_UC)
    graph = torch.cuda.CUDAGraph()
    dist.barrier()
    with torch.cuda.graph(graph):
        run_mixed_comm(Op.ALLGATHER, handler, x, out, Mode.FUSED_OPT_WAITS_UC)
    before = handler.uc_ptr_list
    for _ in range(2):
        handler.checkpoint_prepare()
    assert not handler._vm_mapped
    case = unittest.TestCase()
    for wrong, message in ((Backend(5, 2), "rank does not"), (Backend(rank, 3), "size does not")):
        with case.assertRaisesRegex(ValueError, message):
            handler.checkpoint_restore(wrong)
    for _ in range(2):
        handler.checkpoint_restore(Backend(rank, 2))
    now = [handler.mixed.peer_memory(i)[0] for i in range(2)]
    assert now == before, f"{now}, not {before}"
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    close(out, expected(handler, Op.ALLGATHER, 4, torch.float16, 1), 1)
    handler.shutdown()


class FlashInferTest(unittest.TestCase):
    def test_all_grids_of_four_ranks(self) -> None:
        start = seed()
        seen: set[str] = set()
        for nodes, local_tp, inter_tp in (
            (1, 4, 1),
            (1, 2, 1),
            (1, 1, 1),
            (2, 2, 1),
            (2, 1, 2),
            (2, 2, 2),
            (4, 1, 2),
        ):
            if nodes > 1 and not nodes_are_possible(4):
                continue
            for one in run(4, grid, nodes, local_tp, inter_tp, start, backend="gloo"):
                seen |= set(one)
        self.assertGreaterEqual(
            {one.split()[0] for one in seen}, {op.name for op in Op}, "operations that ran"
        )

    def test_other_numbers_of_ranks(self) -> None:
        start = seed()
        run(2, grid, 1, 2, 1, start, backend="gloo")
        run(2, grid, 1, 1, 1, start)
        for ranks, nodes, local_tp, inter_tp in ((6, 3, 2, 1), (8, 2, 2, 2)):
            if nodes_are_possible(ranks):
                run(ranks, grid, nodes, local_tp, inter_tp, start, backend="gloo")

    def test_autotuning(self) -> None:
        run(4, tuned, backend="gloo")

    def test_errors(self) -> None:
        run(4, refused, backend="gloo")

    @unittest.skipUnless(DEVICE == "cuda", "memory of GPUs")
    def test_checkpoints(self) -> None:
        run(2, checkpoints, backend="gloo")

    def test_addresses_of_the_memory(self) -> None:
        run(4, addresses)

    def test_enumerations(self) -> None:
        self.assertEqual([int(op) for op in Op], list(range(5)))
        self.assertEqual([int(mode) for mode in Mode], list(range(9)))
        supported = run_mixed_comm.is_compute_capability_supported  # type: ignore[attr-defined]
        self.assertEqual([supported(one) for one in (75, 80, 90, 100)], [False, True, True, True])


if __name__ == "__main__":
    unittest.main()
