"""Memory pools: tensors in symmetric memory."""

from __future__ import annotations

import gc
import unittest

from groups import DEVICE, banyan, dist, run, torch

bt = banyan.torch
MIB = 1 << 20


def host_pool(rank: int) -> None:
    pool = bt.MemoryPool(4 * MIB, device="cpu")
    memory = pool._memory
    tensors = [pool.empty(1000 * (i + 1), dtype=torch.bfloat16) for i in range(5)]
    for i, tensor in enumerate(tensors):
        assert tensor.shape == (1000 * (i + 1),) and tensor.dtype == torch.bfloat16
        tensor.fill_(10 * i + rank)
    dist.barrier()
    for peer in range(dist.get_world_size()):  # the same offsets on all ranks
        theirs = memory.peer(peer, dtype="bfloat16").torch()
        for i, tensor in enumerate(tensors):
            at = (tensor.data_ptr() - tensors[0].data_ptr()) // 2
            assert (theirs[at : at + tensor.numel()] == 10 * i + peer).all()
        del theirs
    dist.barrier()
    dist.all_reduce(tensors[3])
    assert (tensors[3] == 4 * 30 + 6).all()
    assert torch.equal(bt.all_reduce(tensors[1]), torch.full((2000,), 46.0).bfloat16())

    used = pool.used_bytes
    assert used == sum(-(-2000 * (i + 1) // 512) * 512 for i in range(5))
    address = tensors[1].data_ptr()
    del tensors[1]
    assert pool.used_bytes == used - 4096
    again = pool.empty(2, 4, 256, dtype=torch.uint8)  # the first gap that is large enough
    assert again.data_ptr() == address and again.shape == (2, 4, 256)
    try:
        pool.empty(4 * MIB)
        raise AssertionError("no error")
    except banyan.OutOfMemory as error:
        assert f"no gap of {16 * MIB} bytes" in str(error), error
    try:
        pool.close()
        raise AssertionError("no error")
    except BufferError as error:
        assert "5 tensors" in str(error), error
    try:
        with pool.use():
            raise AssertionError("no error")
    except ValueError as error:
        assert "pool.empty" in str(error), error
    del again, tensors, tensor
    gc.collect()
    pool.close()
    with bt.MemoryPool(MIB, device="cpu") as second:
        assert second.used_bytes == 0


def resharded(rank: int) -> None:
    """A reshard in the world of the group finds the pool's tensors by their addresses."""
    world = bt.world()
    with bt.MemoryPool(4 * MIB, device=DEVICE) as pool:
        layouts = [banyan.Layout(), banyan.Layout()]
        mesh = banyan.Mesh((4,))
        for layout, axis in zip(layouts, (0, 1), strict=True):
            layout.add_sharded("w", "float32", (64, 32), mesh, [banyan.Shard(axis)], rank)
        whole = torch.arange(64 * 32, dtype=torch.float32).view(64, 32)
        source = pool.empty(16, 32).copy_(whole[rank * 16 : rank * 16 + 16])
        target = pool.empty(64, 8).fill_(-1)
        device = None if DEVICE == "cpu" else torch.device("cuda", torch.cuda.current_device())
        with banyan.Reshard(*layouts, world, device=device) as reshard:
            reshard({"w": source}, {"w": target})
        assert torch.equal(target, whole[:, rank * 8 : rank * 8 + 8])
        del source, target, reshard
        gc.collect()


def gpu_pool(rank: int) -> None:
    pool = bt.MemoryPool(256 * MIB)
    with pool.use():
        x = torch.full((5 * MIB,), rank + 1.0)
        layer = torch.nn.Linear(64, 64)
    outside = torch.full((100,), 1.0)
    base = pool._memory.array().address
    assert base <= x.data_ptr() < base + 256 * MIB
    assert base <= layer.weight.data_ptr() < base + 256 * MIB
    assert not base <= outside.data_ptr() < base + 256 * MIB
    count = dist.get_world_size()
    dist.all_reduce(x)
    assert (x == count * (count + 1) / 2).all()
    x.fill_(rank + 1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        bt.all_reduce_(x)
    graph.replay()
    torch.cuda.synchronize()
    assert (x == count * (count + 1) / 2).all()
    empty = pool.empty(3, 5, dtype=torch.int64)
    assert empty.shape == (3, 5) and base <= empty.data_ptr() < base + 256 * MIB
    try:
        with pool.use():
            torch.empty(512 * MIB, dtype=torch.uint8)
        raise AssertionError("no error")
    except torch.OutOfMemoryError:
        pass
    try:
        pool.close()
        raise AssertionError("no error")
    except BufferError:
        pass
    del x, layer, empty, graph
    gc.collect()
    dist.barrier()
    pool.close()


class Pool(unittest.TestCase):
    @unittest.skipUnless(DEVICE == "cpu", "of the host")
    def test_on_the_host(self) -> None:
        run(4, host_pool)

    @unittest.skipUnless(DEVICE == "cuda", "needs BANYAN_TEST_DEVICE=cuda")
    def test_on_gpus(self) -> None:
        for count in (1, 2, 4):
            run(count, gpu_pool)

    def test_with_a_reshard(self) -> None:
        run(4, resharded)


if __name__ == "__main__":
    unittest.main()
