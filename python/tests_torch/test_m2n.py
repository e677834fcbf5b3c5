"""NCCL M2N's calls: DTensor's parts on any meshes, with kept plans and errors on all ranks."""

from __future__ import annotations

import math
import random
import unittest
from types import SimpleNamespace
from typing import Any

from groups import DEVICE, banyan, dist, run, seed, torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

from banyan.integrations import m2n


def whole_tensor(shape: tuple[int, ...], dtype: Any = torch.float32, salt: int = 0) -> Any:
    values = torch.arange(math.prod(shape), dtype=torch.int64) * 7 + salt
    return (values % 8191).reshape(shape).to(dtype)


def part(whole: Any, mesh: Any, placements: Any, rank: int) -> Any:
    """Return this rank's part as DTensor makes it; None outside of the mesh."""
    if rank not in mesh.mesh.flatten().tolist():
        return None
    return distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local().contiguous()


def reference(local: Any, shape: tuple[int, ...]) -> Any:
    """Return an object like NeMo-RL's DTensorRef."""
    if local is None:
        return None
    return SimpleNamespace(
        _local_tensor=local, shape=torch.Size(shape), dtype=local.dtype, device=local.device
    )


def random_side(
    draw: random.Random, size: int, ndim: int
) -> tuple[list[int], tuple[int, ...], Any]:
    """Return ranks, extents and placements."""
    extents = tuple(draw.choice((1, 2, 3)) for _ in range(draw.randint(1, 3)))
    while math.prod(extents) > size:
        extents = extents[:-1]
    ranks = draw.sample(range(size), math.prod(extents))
    placements = [
        Replicate() if draw.random() < 0.3 else Shard(draw.randrange(-ndim, ndim)) for _ in extents
    ]
    return ranks, extents, placements


def random_cases(rank: int, start: int) -> None:
    draw = random.Random(start)
    for case in range(25):
        shape = tuple(draw.choice((1, 2, 5, 8, 13)) for _ in range(draw.randint(1, 4)))
        dtype = draw.choice((torch.float32, torch.bfloat16, torch.int64, torch.uint8))
        sides = [random_side(draw, dist.get_world_size(), len(shape)) for _ in range(2)]
        meshes = [
            DeviceMesh(DEVICE, torch.tensor(ranks, device="cpu").reshape(extents))
            for ranks, extents, _ in sides
        ]
        for step in range(2):
            whole = whole_tensor(shape, dtype, case + step)
            src = part(whole, meshes[0], sides[0][2], rank)
            wanted = part(whole, meshes[1], sides[1][2], rank)
            dst = None if wanted is None else torch.full_like(wanted, 77)
            m2n.xferdtensor(
                reference(src, shape),
                meshes[0],
                sides[0][2],
                reference(dst, shape),
                meshes[1],
                sides[1][2],
                dist.group.WORLD,
            )
            assert wanted is None or torch.equal(dst, wanted), f"{start} {case}: {shape} {sides}"


def collocated(rank: int) -> None:
    """Both sides on one mesh, beside DTensor's redistribute."""
    mesh = DeviceMesh(DEVICE, torch.arange(4, device="cpu").reshape(2, 2))
    whole = whole_tensor((9, 6, 5))
    for source, destination in (
        ((Shard(0), Shard(1)), (Replicate(), Shard(2))),
        ((Shard(1), Shard(1)), (Shard(0), Replicate())),
        ((Replicate(), Replicate()), (Shard(2), Shard(0))),
    ):
        src = distribute_tensor(whole, mesh, source, src_data_rank=None)
        expected = src.redistribute(placements=destination)
        dst = distribute_tensor(torch.zeros_like(whole), mesh, destination, src_data_rank=None)
        m2n.xdtensor_reshard(src, dst)
        assert torch.equal(dst.to_local(), expected.to_local())


def half_meshes(rank: int) -> None:
    """nccl.m2n's own form: local parts, and meshes as lists of ranks."""
    whole = whole_tensor((8, 12))
    src = whole[rank * 4 :][:4].contiguous() if rank < 2 else None
    dst = torch.zeros(8, 6) if rank >= 2 else None
    arguments: dict[str, Any] = {
        "src_mesh": [0, 1],
        "src_placements": [Shard(0)],
        "dst_mesh": m2n.Mesh((2,), start_rank=2),
        "dst_placements": [m2n.Shard(1)],
    }
    world = banyan.torch.world()
    before = len(world._plans)
    for step in range(3):
        if src is not None:
            src += step
        m2n.reshard(src, dst, dist.group.WORLD, **arguments)
        if dst is not None:
            added = 0 if step == 0 else step * (step + 1) // 2
            assert torch.equal(dst, whole[:, (rank - 2) * 6 :][:, :6] + added)
    assert len(world._plans) == before + 1, "planned again"
    # Other memory: the plan is kept.
    other = None if dst is None else torch.zeros(12, 8).T[:8, :6]
    m2n.reshard(src, other, world, **arguments)
    assert len(world._plans) == before + 1
    assert dst is None or torch.equal(other, dst)
    # A placement by its dimension, and nested ranks with a second axis.
    arguments["src_mesh"], arguments["src_placements"] = [[0], [1]], [0, Replicate()]
    dst = None if dst is None else torch.zeros_like(dst)
    m2n.reshard(src, dst, **arguments)
    assert dst is None or torch.equal(other, dst)


def ranks_without_tensors(rank: int) -> None:
    """A rank outside of both meshes takes part."""
    whole = whole_tensor((6, 4))
    src = whole.clone() if rank == 0 else None
    dst = torch.zeros(3, 4) if rank in (1, 3) else None
    for _ in range(2):
        m2n.reshard(
            src,
            dst,
            src_mesh=[0],
            src_placements=[Replicate()],
            dst_mesh=[3, 1],
            dst_placements=[Shard(0)],
        )
    if dst is not None:
        assert torch.equal(dst, whole[3:] if rank == 1 else whole[:3])


def uneven(rank: int) -> None:
    """Parts by torch.chunk's rule, with the shape of the whole tensor."""
    whole = whole_tensor((10,))
    chunks = whole.split(3)  # 3, 3, 3, 1
    src = chunks[rank].contiguous()
    dst = torch.zeros(5) if rank < 2 else None
    arguments: dict[str, Any] = {
        "src_mesh": [0, 1, 2, 3],
        "src_placements": [Shard(0)],
        "dst_mesh": [0, 1],
        "dst_placements": [Shard(0)],
    }
    m2n.reshard(src, dst, global_shape=(10,), **arguments)
    assert dst is None or torch.equal(dst, whole[rank * 5 :][:5])
    try:
        m2n.reshard(src, dst, **arguments)
    except ValueError as error:
        assert "global_shape" in str(error), error
    else:
        raise AssertionError("guessed a shape")


def groups(rank: int) -> None:
    """Several tensors of a group are one plan."""
    world = banyan.torch.world()
    before = len(world._plans)
    shapes = [(8, 4), (8, 4), (2, 2, 6), (5,)]
    src = [whole_tensor(s, salt=i) if rank == 0 else None for i, s in enumerate(shapes)]
    dst = [torch.zeros(s) if rank == 1 else None for s in shapes]
    ends = {"src_placements": [Replicate()], "dst_placements": [Replicate()]}
    for _ in range(2):
        for one in dst if rank == 1 else ():
            one.zero_()
        with m2n.group():
            for one, other in zip(src, dst, strict=True):
                m2n.reshard(one, other, src_mesh=[0], dst_mesh=[1], **ends)
            assert rank == 0 or not dst[0].any()
    if rank == 1:
        for i, one in enumerate(dst):
            assert torch.equal(one, whole_tensor(shapes[i], salt=i))
    assert len(world._plans) == before + 1
    try:
        with m2n.group():
            m2n.reshard(src[0], dst[0], src_mesh=[0], dst_mesh=[1], **ends)
            raise KeyError("out")
    except KeyError:
        m2n.reshard(src[0], dst[0], src_mesh=[0], dst_mesh=[1], **ends)
    refusal = unittest.TestCase().assertRaisesRegex(banyan.Mismatch, r"in a group: \[1, 2\]")
    with refusal, m2n.group():
        for _ in range(rank + 1):
            m2n.reshard(src[0], dst[0], src_mesh=[0], dst_mesh=[1], **ends)
    try:
        m2n.group_end()
    except ValueError as error:
        assert "without group_start" in str(error)
    else:
        raise AssertionError("ended no group")


def refused(rank: int) -> None:
    """An error of one rank is an error of all, before anything moves."""
    whole = whole_tensor((8, 4))
    good: dict[str, Any] = {
        "src": whole[:4].contiguous()
        if rank == 0
        else whole[4:].contiguous()
        if rank == 1
        else None,
        "dst": torch.zeros(8, 4) if rank == 2 else None,
        "src_mesh": [0, 1],
        "src_placements": [Shard(0)],
        "dst_mesh": [2],
        "dst_placements": [Replicate()],
    }
    cases: list[tuple[int, dict[str, Any], str]] = [
        (0, {"src": None}, r"src is None, but rank 0 is in src_mesh"),
        (2, {"src": whole}, "src is given, but rank 2 is not in src_mesh"),
        (2, {"dst": torch.zeros(8, 5)}, "the ranks make different calls"),
        (2, {"dst": torch.zeros(8, 4, dtype=torch.float64)}, "the ranks make different calls"),
        (1, {"src_mesh": [0, 2]}, "src is given, but rank 1 is not in src_mesh"),
        (-1, {"src_mesh": [0, 0]}, r"src_mesh has a rank twice: \[0, 0\]"),
        (-1, {"dst_mesh": [9]}, "dst_mesh has rank 9, which is not one of the 3 ranks"),
        (-1, {"dst_mesh": [[2], [1, 0]]}, "rows of equal length"),
        (-1, {"dst_placements": [Partial()]}, "only Shard and Replicate are possible"),
        (0, {"src_placements": [Shard(2)]}, r"Shard\(dim=2\), but the tensor has 2 dimensions"),
        (-1, {"src_mesh": [[0, 1]]}, "src_placements has 1 entries for a mesh of 2 axes"),
        (
            0,
            {"src_local_shape": [3, 4]},
            r"src: \[3, 4\] of torch.float32 are given",
        ),
        (0, {"src_dtype": "int8"}, r"src: \[4, 4\] of torch.int8 are given"),
        (1, {"handle": 3}, "handle must be .*Handle or None, not int"),
        (1, {"src": 12345}, "src_local_shape is required for raw pointer buffers"),
        (1, {"src": [[1.0]]}, "src: a tensor, .* is needed, not list"),
    ]
    for where, change, message in cases:
        given = good | (change if where in (-1, rank) else {})
        if good["dst"] is not None:
            good["dst"].zero_()
        with unittest.TestCase().assertRaisesRegex((ValueError, TypeError, banyan.Error), message):
            m2n.reshard(**given)
        assert good["dst"] is None or not good["dst"].any()
    m2n.reshard(**good)
    assert good["dst"] is None or torch.equal(good["dst"], whole)


def stateless(rank: int, port: int) -> None:
    """A group as NeMo-RL makes it: a store, a rank and a size, and a communicator."""
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    group = SimpleNamespace(tcp_store=store, rank=rank, world_size=2, nccl_communicator=object())
    whole = whole_tensor((4, 4))
    mesh = [SimpleNamespace(mesh=torch.tensor([i])) for i in range(2)]
    dst = torch.zeros(4, 4)
    m2n.xferdtensor(
        reference(whole, (4, 4)) if rank == 0 else None,
        mesh[0],
        [Replicate()],
        reference(dst, (4, 4)) if rank == 1 else None,
        mesh[1],
        [Replicate()],
        group,
    )
    assert rank == 0 or torch.equal(dst, whole)
    dst.zero_()
    m2n.reshard(
        whole if rank == 0 else None,
        dst if rank == 1 else None,
        group.nccl_communicator,
        src_mesh=mesh[0].mesh.tolist(),
        src_placements=[Replicate()],
        dst_mesh=mesh[1].mesh.tolist(),
        dst_placements=[Replicate()],
    )
    assert rank == 0 or torch.equal(dst, whole)
    world = m2n.attach(group)
    try:
        m2n.reshard(whole, dst, object())
    except TypeError as error:
        assert "not object: attach(comm, world)" in str(error), error
    else:
        raise AssertionError("took anything as a communicator")
    world.close()
    dist.barrier()


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class M2NTest(unittest.TestCase):
    def test_random_meshes(self) -> None:
        start = seed()
        run(4, random_cases, start)
        run(6, random_cases, start + 1, backend="gloo" if DEVICE == "cpu" else "banyan")

    def test_one_mesh_for_both_sides(self) -> None:
        run(4, collocated)

    def test_disjoint_meshes_keep_their_plan(self) -> None:
        run(4, half_meshes)

    def test_ranks_without_tensors(self) -> None:
        run(4, ranks_without_tensors)

    def test_uneven_parts(self) -> None:
        run(4, uneven)

    def test_groups(self) -> None:
        run(2, groups)

    def test_errors_reach_all_ranks(self) -> None:
        run(3, refused)

    def test_groups_of_nemo_rl(self) -> None:
        run(2, stateless, free_port())


if __name__ == "__main__":
    unittest.main()
