"""NCCL M2N's handles, descriptors, windows, pointers and communicators, beside NumPy."""

from __future__ import annotations

import math
import pickle
import random
import sys
import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from groups import DEVICE, banyan, dist, run, seed, torch
from test_m2n import free_port

from banyan.integrations import m2n

ON_GPU = DEVICE == "cuda"
TYPES = (torch.float32, torch.int64, torch.uint8, torch.bfloat16)


class Side:
    """A random side, and its parts by NumPy's indexing alone."""

    def __init__(self, draw: random.Random, size: int, ndim: int) -> None:
        self.extents = [draw.choice((1, 2, 3, 4)) for _ in range(draw.randint(1, 3))]
        while math.prod(self.extents) > size:
            self.extents.pop(draw.randrange(len(self.extents)))
        count = math.prod(self.extents)
        first = draw.randrange(size - count + 1)
        self.ranks = list(range(first, first + count))
        if draw.random() < 0.5:
            self.ranks = draw.sample(range(size), count)
        self.dims = [draw.randrange(-1, ndim) for _ in self.extents]

    def parts_of(self, dim: int) -> int:
        """Return into how many parts a dimension is divided."""
        return math.prod(e for e, d in zip(self.extents, self.dims, strict=True) if d == dim)

    def part(self, whole: np.ndarray, rank: int) -> np.ndarray | None:
        """Return a rank's part, or None."""
        if rank not in self.ranks:
            return None
        place = np.unravel_index(self.ranks.index(rank), self.extents)
        indices = [np.arange(extent) for extent in whole.shape]
        for axis, dim in enumerate(self.dims):
            if dim >= 0:
                step = -(-len(indices[dim]) // self.extents[axis])
                indices[dim] = indices[dim][place[axis] * step :][:step]
        return whole[np.ix_(*indices)]

    @property
    def mesh(self) -> Any:
        return m2n.Mesh.from_ranks(np.array(self.ranks).reshape(self.extents))

    @property
    def placements(self) -> list[Any]:
        return [m2n.Replicate() if dim < 0 else m2n.Shard(dim) for dim in self.dims]


def values(shape: list[int], salt: int) -> np.ndarray:
    """Return a whole tensor whose elements follow from their index."""
    return ((np.arange(math.prod(shape)) * 37 + salt * 11) % 251).reshape(shape)


def tensor_of(part: np.ndarray | None, dtype: Any) -> Any:
    return None if part is None else torch.tensor(part, dtype=dtype)


def spaced(part: np.ndarray | None, dtype: Any) -> Any:
    """Return a part with strides."""
    if part is None:
        return None
    return torch.full([2 * extent for extent in part.shape], 3, dtype=dtype)[
        tuple(slice(0, None, 2) for _ in part.shape)
    ].copy_(torch.tensor(part, dtype=dtype))


def at(tensor: Any) -> int:
    return 0 if tensor is None else int(tensor.data_ptr())


def random_calls(rank: int, start: int) -> None:
    """Every way of a call moves the parts that NumPy cuts."""
    draw = random.Random(start)
    world = banyan.torch.world()
    communicator = m2n.Communicator(world)
    for number in range(60):
        way = ("parts", "whole", "descriptors", "window", "pointers", "bytes")[number % 6]
        even = way != "whole"
        shape = [draw.choice((1, 2, 3, 5)) for _ in range(draw.randint(1, 5))]
        sides = [Side(draw, world.size, len(shape)) for _ in range(2)]
        if even:
            shape = [
                draw.randint(1, 2) * math.lcm(*(side.parts_of(dim) for side in sides))
                for dim in range(len(shape))
            ]
        dtype = draw.choice(TYPES)
        whole = values(shape, number)
        parts = [side.part(whole, rank) for side in sides]
        make = spaced if way in ("parts", "whole", "descriptors") and number % 4 < 2 else tensor_of
        src, wanted = make(parts[0], dtype), tensor_of(parts[1], dtype)
        dst = make(None if parts[1] is None else np.full_like(parts[1], 77), dtype)
        shapes = [list(side.part(whole, side.ranks[0]).shape) for side in sides]  # type: ignore[union-attr]
        given: dict[str, Any] = {}
        for name, side in zip(("src", "dst"), sides, strict=True):
            given |= {f"{name}_mesh": side.mesh, f"{name}_placements": side.placements}
        typed: dict[str, Any] = {}
        for i, name in enumerate(("src", "dst")):
            typed |= {f"{name}_local_shape": shapes[i], f"{name}_dtype": dtype}
        handle = m2n.init(m2n.Config(max_cta=4)) if draw.random() < 0.3 else None
        if way == "parts":
            m2n.reshard(src, dst, world, **given, handle=handle)
        elif way == "whole":
            m2n.reshard(src, dst, communicator, **given, global_shape=shape, handle=handle)
        elif way == "pointers":
            m2n.reshard(at(src), at(dst), communicator.ptr, **given, **typed, handle=handle)
        elif way == "bytes":  # dense memory of another shape and type
            flat = [None if one is None else one.view(-1).view(torch.uint8) for one in (src, dst)]
            m2n.reshard(*flat, communicator.ptr, **given, **typed, handle=handle)
        elif way == "window":
            half = 8 * math.prod(shape)
            buffer = torch.full((2 * half,), 5, dtype=torch.uint8)
            views = []
            for one, begin in ((src, 0), (dst, half)):
                view = None
                if one is not None:
                    nbytes = one.numel() * one.element_size()
                    view = buffer[begin : begin + nbytes].view(dtype).view(one.shape)
                    view.copy_(one)
                views.append(view)
            window = communicator.register_window(buffer)
            m2n.reshard_with_window(*views, communicator, window.handle, **given, handle=handle)
            dst = views[1]
            window.close()
        else:
            ends = [
                m2n.DistTensor(
                    part, shapes[i], dtype, mesh=sides[i].mesh, placements=sides[i].placements
                )
                for i, part in enumerate((src, dst))
            ]
            with m2n.Handle.create() as own:
                own.reshard(world, ends[0], ends[1])
        where = f"{start} {number} {way}: {shape} {dtype} {[vars(side) for side in sides]}"
        assert wanted is None or torch.equal(dst, wanted), where
        if handle is not None:
            handle.destroy()


ENDS: dict[str, Any] = {
    "src_mesh": [0],
    "src_placements": [m2n.Replicate()],
    "dst_mesh": [1],
    "dst_placements": [m2n.Replicate()],
}


def open_plans(world: Any) -> int:
    """Return how many plans of these calls can run."""
    return sum(1 for one in world._plans.values() if getattr(one, "key", b""))


def kept(rank: int) -> None:
    """A plan is closed when the last handle that used it is destroyed."""
    world = banyan.torch.world()

    def move(extent: int, handle: Any = None, now: bool = True) -> None:
        whole = torch.arange(extent) * 3 + extent
        dst = torch.zeros_like(whole)
        m2n.reshard(
            whole if rank == 0 else None, dst if rank == 1 else None, world, **ENDS, handle=handle
        )
        assert rank == 0 or torch.equal(dst, whole) == now

    first, second = m2n.init(), m2n.Handle.create()
    assert first.ptr != second.ptr and repr(first) == f"<Handle ptr={first.ptr:#x}>"
    move(5, first)
    move(5, second)
    move(6, first)
    assert open_plans(world) == 2
    first.destroy()
    first.destroy()
    assert open_plans(world) == 1 and repr(first) == "<Handle destroyed>"
    move(5, second)
    assert open_plans(world) == 1
    second.destroy()
    assert open_plans(world) == 0
    # The plan of a group belongs to the handles of all its calls.
    first, second = m2n.init(), m2n.init()
    with m2n.group():
        move(8, first, now=False)
        move(9, second, now=False)
    assert open_plans(world) == 1
    first.destroy()
    assert open_plans(world) == 1
    second.destroy()
    assert open_plans(world) == 0
    # The ranks destroy their handles at different times, and number their plans alike.
    with m2n.init() as third:
        move(5, third)
        if rank == 0:
            third.destroy()
        with m2n.init() as fourth:
            for extent in (7, 5, 7, 5, 6):
                move(extent, fourth)
            banyan.reshard(None, None, world)  # another owner of the world's plans
            move(6, fourth)
    move(5)
    move(7)
    m2n.finalize()
    m2n.finalize()
    assert open_plans(world) <= 1  # that of banyan.reshard
    move(5)
    # More plans than a world keeps, with handles that end between them.
    most = 40 if ON_GPU else 280  # services of GPUs take memory
    for extent in range(10, 10 + most):
        one = m2n.init()
        move(extent, one)
        if extent % 3 == rank:
            one.destroy()
    for extent in (10, 9 + most, 30, 20):
        move(extent)


def refused(rank: int) -> None:
    """Errors of the handle reach all ranks, and are those of NCCL M2N, too."""
    world = banyan.torch.world()
    whole = torch.arange(12.0).reshape(3, 4)
    mesh = [m2n.Mesh((1,)), m2n.Mesh((1,), 1)]
    dst = torch.zeros(3, 4)

    def end(buffer: Any, side: int, shape: Any = (3, 4), dtype: Any = torch.float32) -> Any:
        return m2n.DistTensor(buffer, shape, dtype, mesh=mesh[side], placements=[m2n.Replicate()])

    mine = [end(whole if rank == 0 else None, 0), end(dst if rank == 1 else None, 1)]
    gone, alive = m2n.init(), m2n.init()
    gone.destroy()
    given = {"src": whole if rank == 0 else None, "dst": dst if rank == 1 else None, **ENDS}
    outside = torch.zeros(8, dtype=torch.uint8)
    communicator = m2n.Communicator(world)
    window = communicator.register_window(outside)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: gone.reshard(world, *mine), "Cannot reshard: Handle is not initialized or has"),
        (lambda: m2n.reshard(comm=world, handle=gone, **given), "Cannot reshard: Handle"),
        (
            lambda: alive.reshard(world, mine[0], end(None, 1, (3, 4, 1))),
            r"src/dst ndims mismatch: 2 != 3",
        ),
        (lambda: alive.reshard(world, mine[0], end(None, 1, (3, 4), "int8")), "dtype mismatch"),
        (lambda: alive.reshard(world, mine[0], 3), "must be DistTensor descriptors"),  # type: ignore[arg-type]
        (
            lambda: alive.reshard(
                world, mine[0], end(dst[:2].clone() if rank else None, 1, (2, 4))
            ),
            r"src is a part of a tensor of \(3, 4\), but dst of one of \(2, 4\)",
        ),
        (
            lambda: m2n.reshard_with_window(comm=world, window=window, **given),
            r"the window has 0x[0-9a-f]+ to 0x[0-9a-f]+, but the parts are at 0x",
        ),
        (lambda: alive.reshard_with_window(world, 12345, *mine), "a Window or its handle is"),
        (
            lambda: m2n.reshard(comm=world, src_local_shape=[3, 5], **given),
            r"src: \[3, 5\] of torch.float32|parts of tensors of the shapes",
        ),
        (lambda: m2n.reshard(12345, None, world, **ENDS), "src_local_shape is required for raw"),
        (
            lambda: m2n.reshard(12345, None, world, **ENDS, src_local_shape=[1]),
            "src_dtype is required for raw",
        ),
    ]
    for call, message in cases:
        with unittest.TestCase().assertRaisesRegex((ValueError, TypeError, banyan.Error), message):
            call()
        assert not dst.any()
    # An error of one rank alone is an error of NCCL M2N on the others.
    bad = given | ({"dst": torch.zeros(3, 5)} if rank == 1 else {})
    try:
        m2n.reshard(comm=world, **bad)
    except m2n.NcclReshardError as error:
        assert isinstance(error, banyan.Mismatch) and error.status == 4, error
        assert error.detail and "different calls" in error.detail
        assert isinstance(pickle.loads(pickle.dumps(error)), banyan.Mismatch)
    else:
        raise AssertionError("moved")
    for wrong in (lambda: m2n.group_end(), lambda: m2n.reshard(comm=12345, **given)):
        try:
            wrong()
        except (m2n.NcclReshardError, TypeError) as error:
            assert "without group_start" in str(error) or "0x3039 is not the pointer" in str(error)
        else:
            raise AssertionError("accepted")
    with m2n.group():
        m2n.reshard(comm=world, handle=alive, **given)
        try:
            alive.destroy()
        except m2n.NcclReshardError as error:
            assert "while a group is recorded" in str(error)
        else:
            raise AssertionError("destroyed in a group")
    assert rank == 0 or torch.equal(dst, whole)
    dst.zero_()
    alive.reshard(communicator.comm, *mine)
    assert rank == 0 or torch.equal(dst, whole)
    window.close()
    assert (window.handle, window.size, window.is_valid) == (0, 0, False)


def communicators(rank: int, port: int) -> None:
    """A communicator by address, one of a group with a store, and pointers of other libraries."""
    one = m2n.Communicator.open("127.0.0.1", port, rank, 3, 0)
    assert (one.rank, one.world_size, one.nranks) == (rank, 3, 3) and one.comm == one.ptr
    assert one.device.type == DEVICE and one.available and not one.disabled
    for i, dtype in enumerate((torch.int8, torch.bfloat16, torch.float64)):
        for shape in ([], [1], [7, 3], [0], [4, 1, 2, 5]):
            tensor = torch.full(shape, float(rank), dtype=dtype, device=one.device)
            one.broadcast(tensor, src=i)
            assert torch.equal(tensor, torch.full_like(tensor, i)), f"{dtype} {shape}"
    # Calls by the communicator, its pointer, and that of another library which is attached.
    foreign = SimpleNamespace(comm=SimpleNamespace(value=0x7F0012340), rank=rank, world_size=3)
    m2n.attach(foreign, one.world)
    handle = m2n.init()
    for comm in (one, one.ptr, foreign, foreign.comm.value):
        src = torch.arange(4) if rank == 0 else None
        dst = torch.zeros(4, dtype=torch.int64) if rank == 2 else None
        sides = ENDS | {"dst_mesh": [2]}
        m2n.reshard(src, dst, comm, **sides, handle=handle)
        assert dst is None or dst.tolist() == [0, 1, 2, 3]
    one.destroy()
    handle.destroy()  # after its world
    assert not one.world.is_open and one.disabled
    try:
        m2n.reshard(None, None, one.ptr, **ENDS)
    except (TypeError, ValueError) as error:
        assert "clos" in str(error) or "is not the pointer" in str(error), error
    else:
        raise AssertionError("ran on a closed world")
    try:
        m2n.Communicator.from_unique_id_bytes(b"", rank=0, world_size=1, device=0)
    except banyan.Unsupported as error:
        assert "master_address" in str(error)
    else:
        raise AssertionError("opened by an id")
    dist.barrier()


class HandleTest(unittest.TestCase):
    def test_random_calls_beside_numpy(self) -> None:
        start = seed()
        run(4, random_calls, start)
        run(7, random_calls, start + 1, backend="gloo" if DEVICE == "cpu" else "banyan")

    def test_plans_live_as_long_as_their_handles(self) -> None:
        run(2, kept)

    def test_errors_reach_all_ranks(self) -> None:
        run(2, refused)

    def test_communicators(self) -> None:
        run(3, communicators, free_port(), backend="gloo")

    def test_meshes(self) -> None:
        mesh = m2n.Mesh((2, 3), start_rank=4)
        self.assertEqual((mesh.dims, mesh.start_rank, mesh.ndims, mesh.size), ((2, 3), 4, 2, 6))
        self.assertEqual(mesh.mesh.tolist(), [[4, 5, 6], [7, 8, 9]])
        self.assertEqual(mesh, m2n.Mesh.from_ranks([[4, 5, 6], [7, 8, 9]]))
        other = m2n.Mesh.from_ranks([[4, 5, 6], [7, 9, 8]])
        self.assertNotEqual(mesh, other)
        self.assertEqual(len({mesh, other, m2n.Mesh((2, 3), 4)}), 2)
        self.assertEqual((other.dims, other.ranks[-2:]), ((2, 3), (9, 8)))
        cube = m2n.Mesh((2, 1, 3))
        self.assertEqual((cube.dims, cube.ndims), ((2, 1, 3), 3))

    def test_the_limit_of_dimensions_is_the_engines(self) -> None:
        mesh = m2n.Mesh((1,))
        for ndim in (m2n.MAX_TENSOR_DIMS, m2n.MAX_TENSOR_DIMS + 1):
            layout = banyan.Layout()
            shape = [1] * ndim
            try:
                layout.add_tensor("0", torch.float32, shape)
                m2n.DistTensor(torch.zeros(shape), mesh=mesh, placements=[m2n.Shard(ndim - 1)])
                self.assertEqual(ndim, 8)
            except ValueError as error:
                self.assertEqual(ndim, 9, error)
                with self.assertRaisesRegex(ValueError, r"rank must be 1\.\.8"):
                    m2n.DistTensor(torch.zeros(shape), mesh=mesh, placements=[m2n.Shard(0)])

    def test_another_import_finds_the_module(self) -> None:
        before = {name: sys.modules.get(name) for name in ("nccl", "nccl.m2n")}
        try:
            m2n.install()
            import nccl.m2n as found  # type: ignore[import-not-found]
            from nccl.m2n import Handle  # type: ignore[import-not-found]

            self.assertIs(found, m2n)
            self.assertIs(Handle, m2n.Handle)
        finally:
            for name, module in before.items():
                sys.modules.pop(name, None)
                if module is not None:
                    sys.modules[name] = module


if __name__ == "__main__":
    unittest.main()
