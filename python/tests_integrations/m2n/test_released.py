"""The calls beside the released nccl.m2n and, where it can be imported, beside NeMo-RL's own.

nccl.m2n's library needs GPUs. Its Python part does not: it reads the arguments and describes the
parts of all ranks, and these are compared.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import math
import os
import random
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from groups import DEVICE, banyan, dist, run, seed, torch
from torch.distributed.tensor import Replicate, Shard

from banyan.integrations import m2n

try:
    import nccl.m2n as released
except ImportError as error:
    print(f"skipped: nccl.m2n cannot be imported: {error}")
    sys.exit(77)

HAS_NEMO = importlib.util.find_spec("nemo_rl") is not None


def random_call(draw: random.Random, size: int) -> dict[str, Any]:
    """Return a call that nccl.m2n accepts: disjoint meshes of ranks in order, even parts."""
    ndim = draw.randint(1, released.MAX_TENSOR_DIMS)
    half, call = size // 2, {}
    shape = [draw.choice((4, 8, 12)) for _ in range(ndim)]
    for name, first in (("src", 0), ("dst", half)):
        extents = draw.choice([(half,), (1, half), (half, 1), (2, half // 2)])
        ranks = torch.arange(first, first + half).reshape(extents)
        dims = draw.sample(range(ndim), min(ndim, len(extents)))
        placements = [
            Shard(dims[i]) if i < len(dims) and draw.random() < 0.7 else Replicate()
            for i in range(len(extents))
        ]
        call[f"{name}_mesh"] = ranks.tolist()
        call[f"{name}_placements"] = placements
    call["shape"] = shape
    return call


def local_part(call: dict[str, Any], name: str, rank: int) -> torch.Tensor | None:
    """Return a rank's part by numpy's rules; all parts are even."""
    ranks = torch.tensor(call[f"{name}_mesh"])
    found = (ranks == rank).nonzero().tolist()
    if not found:
        return None
    whole = torch.arange(math.prod(call["shape"])).reshape(call["shape"])
    for axis, placement in enumerate(call[f"{name}_placements"]):
        if isinstance(placement, Shard):
            whole = whole.chunk(ranks.shape[axis], placement.dim)[found[0][axis]]
    return whole.contiguous()


def described(call: dict[str, Any], rank: int) -> list[Any]:
    """Return the parts that nccl.m2n describes to its library."""
    seen: list[Any] = []

    def record(handle: Any, comm: Any, src: Any, dst: Any, stream: Any) -> None:
        seen.extend([src, dst])

    import nccl.m2n.api as api

    kept, api._reshard_with_handle = api._reshard_with_handle, record
    try:
        released.reshard(
            local_part(call, "src", rank),
            local_part(call, "dst", rank),
            None,
            **{key: value for key, value in call.items() if key != "shape"},
        )
    finally:
        api._reshard_with_handle = kept
    return seen


def moved(rank: int, start: int) -> None:
    """What nccl.m2n accepts moves here, with the parts that it describes."""
    draw = random.Random(start)
    world = banyan.torch.world()
    for number in range(20):
        call = random_call(draw, world.size)
        src, wanted = local_part(call, "src", rank), local_part(call, "dst", rank)
        dst = None if wanted is None else torch.full_like(wanted, -1)
        arguments = {key: value for key, value in call.items() if key != "shape"}
        for one, part in zip(described(call, rank), (src, dst), strict=True):
            assert one.is_participating == (part is not None)
            assert part is None or one.local_shape == tuple(part.shape), f"{number}: {call}"
        if number % 2:  # its own classes
            for name in ("src", "dst"):
                arguments[f"{name}_mesh"] = released.Mesh.from_ranks(arguments[f"{name}_mesh"])
                placements = arguments[f"{name}_placements"]
                arguments[f"{name}_placements"] = [
                    released.Shard(one.dim) if isinstance(one, Shard) else released.Replicate()
                    for one in placements
                ] + [released.Replicate()] * (2 - len(placements))
        m2n.reshard(src, dst, world, **arguments)
        assert wanted is None or torch.equal(dst, wanted), f"{number}: {call}"


class Group:
    """A process group as NeMo-RL has it, over torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.tcp_store = dist.distributed_c10d._get_default_store()
        self.nccl_communicator = object()

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        dist.broadcast(tensor, src)


def nemo(rank: int, start: int) -> None:
    """NeMo-RL's function: its own broadcasts, ours behind its import, and ours in its place."""
    m2n.install()
    os.environ.pop("NRL_XFERDTENSOR_PYTHON", None)
    import nemo_rl.weight_sync.xferdtensor as theirs

    assert theirs._reshard is m2n.reshard
    draw, group = random.Random(start), Group()
    m2n.attach(group)
    for number in range(10):
        call = random_call(draw, group.world_size)
        src, wanted = local_part(call, "src", rank), local_part(call, "dst", rank)
        results = []
        for way in ("golden", "import", "function"):
            os.environ["NRL_XFERDTENSOR_GOLDEN"] = "1" if way == "golden" else "0"
            dst = None if wanted is None else torch.full_like(wanted, -1)
            move = m2n.xferdtensor if way == "function" else theirs.xferdtensor
            references = [
                None if one is None else theirs.DTensorRef(one, call["shape"]) for one in (src, dst)
            ]
            if way == "golden" and references[1] is None and references[0] is None:
                continue
            meshes = [
                SimpleNamespace(mesh=torch.tensor(call[f"{name}_mesh"])) for name in ("src", "dst")
            ]
            move(
                references[0],
                meshes[0],
                call["src_placements"],
                references[1],
                meshes[1],
                call["dst_placements"],
                group,
            )
            results.append(dst)
        for one in results:
            assert wanted is None or torch.equal(one, wanted), f"{number}: {call}"


class ReleasedTest(unittest.TestCase):
    def test_the_arguments_are_those_of_the_release(self) -> None:
        for name in ("reshard", "reshard_with_window", "xdtensor_reshard", "init", "finalize"):
            theirs = inspect.signature(getattr(released, name)).parameters
            ours = inspect.signature(getattr(m2n, name)).parameters
            self.assertEqual([key for key in ours if key in theirs], list(theirs), name)
            for key, one in theirs.items():
                self.assertEqual(ours[key].kind, one.kind, key)
                if key != "comm":  # here with a default
                    self.assertEqual(ours[key].default, one.default, key)

    def test_every_public_name_is_here_and_on_the_page(self) -> None:
        page = (Path(__file__).resolve().parents[3] / "docs/m2n.md").read_text()
        for name in released.__all__:
            self.assertTrue(hasattr(m2n, name) and name in m2n.__all__, name)
            self.assertRegex(page, rf"`{name}`")
        self.assertEqual(m2n.MESH_NDIMS, released.MESH_NDIMS)
        self.assertGreaterEqual(m2n.MAX_TENSOR_DIMS, released.MAX_TENSOR_DIMS)

    def test_classes_have_the_members_of_the_release(self) -> None:
        count = 0
        for name in ("Config", "DistTensor", "Handle", "Mesh", "NcclReshardError"):
            theirs, ours = getattr(released, name), getattr(m2n, name)
            for member in dir(theirs):
                if member.startswith("_") and member not in ("__init__", "__enter__", "__exit__"):
                    continue
                self.assertTrue(hasattr(ours, member), f"{name}.{member}")
                if not callable(getattr(theirs, member)) or name == "NcclReshardError":
                    continue
                one, other = (
                    inspect.signature(getattr(kind, member)).parameters.values()
                    for kind in (theirs, ours)
                )
                if member != "__exit__":  # names of what the interpreter passes
                    self.assertEqual(
                        [(p.name, p.kind, p.default) for p in one],
                        [(p.name, p.kind, p.default) for p in other],
                        f"{name}.{member}",
                    )
                    count += 1
        self.assertGreater(count, 12)
        for kind in ("NcclReshardError", "FunctionNotFoundError"):
            self.assertTrue(issubclass(getattr(m2n, kind), Exception))
        self.assertTrue(issubclass(m2n.FunctionNotFoundError, RuntimeError))
        error, other = m2n.NcclReshardError(4, "why"), released.NcclReshardError(4, "why")
        self.assertEqual(str(error), str(other))
        self.assertEqual((error.status, error.detail), (other.status, other.detail))

    def test_descriptors_are_those_of_the_release(self) -> None:
        draw = random.Random(seed())
        names = ("data_ptr", "local_shape", "ndims", "placements", "is_participating")
        types = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
        for number in range(300):
            ndim, axes = draw.randint(1, 3), draw.randint(1, 2)
            shape = [draw.choice((1, 2, 3)) for _ in range(ndim)]
            extents, first = [draw.randint(1, 4) for _ in range(axes)], draw.randrange(5)
            codes = [draw.randrange(-1, ndim) for _ in range(axes)]
            dtype: Any = draw.choice(types)
            buffer: Any = draw.choice((None, 4096, torch.zeros(shape, dtype=getattr(torch, dtype))))
            if number % 3 == 0:
                dtype = getattr(torch, dtype)
            given = (None, None) if isinstance(buffer, torch.Tensor) else (shape, dtype)
            one, other = (
                kind.DistTensor(
                    buffer,
                    *given,
                    mesh=kind.Mesh(extents, first),
                    placements=[kind.Replicate() if c < 0 else kind.Shard(c) for c in codes],
                )
                for kind in (released, m2n)
            )
            for name in names:
                self.assertEqual(getattr(one, name), getattr(other, name), name)
            self.assertIs(other.buffer, buffer)
            self.assertEqual((int(one.dtype), one.dtype.name), (int(other.dtype), other.dtype.name))
            self.assertEqual(repr(one), repr(other))
            self.assertEqual(repr(one.mesh), repr(other.mesh))
            self.assertEqual(one.mesh.size, other.mesh.size)

    def test_wrong_arguments_raise_as_in_the_release(self) -> None:
        def end(kind: Any, shape: Any, dtype: Any = "int8", **changes: Any) -> Any:
            given = {"buffer": None, "mesh": kind.Mesh((2,)), "placements": [0]} | changes
            return kind.DistTensor(local_shape=shape, dtype=dtype, **given)

        cases: list[tuple[Any, bool]] = [  # and whether the messages are equal
            (lambda kind: kind.Mesh(()), False),
            (lambda kind: kind.Mesh((0,)), True),
            (lambda kind: kind.Mesh((2,), -1), True),
            (lambda kind: kind.Mesh.from_device_mesh(3), True),
            (lambda kind: kind.Mesh.from_ranks([]), False),
            (lambda kind: kind.Config(0), True),
            (lambda kind: kind.Config(max_cta=4), True),
            (lambda kind: kind.Handle.create(3), False),
            (lambda kind: kind.finalize(3), False),
            (lambda kind: kind.Handle(0), True),
            (lambda kind: kind.Handle(0).ptr, True),
            (lambda kind: kind.Handle(0).__enter__(), True),
            (lambda kind: end(kind, None), True),
            (lambda kind: end(kind, (1,), None), True),
            (lambda kind: end(kind, (1,), "no type"), True),
            (lambda kind: end(kind, (-1,)), True),
            (lambda kind: end(kind, ()), False),
            (lambda kind: end(kind, (1,), mesh=3), False),
            (lambda kind: end(kind, (1,), placements=[-1]), False),
            (
                lambda kind: kind.DistTensor(
                    -1, (1,), "int8", mesh=kind.Mesh((2,)), placements=[0]
                ),
                True,
            ),
            (lambda kind: kind.reshard_with_window(None, None, None, None), True),
        ]
        for number, (case, equal) in enumerate(cases):
            found = []
            for kind in (released, m2n):
                try:
                    found.append((None, repr(case(kind))))
                except Exception as error:
                    found.append((error, str(error)))
            (one, text), (other, ours) = found
            where = f"case {number}: {one!r} and {other!r}"
            self.assertEqual(one is None, other is None, where)
            if type(one).__name__ == "NcclInvalid":  # of nccl.core
                self.assertIsInstance(other, banyan.Invalid, where)
            elif one is not None:
                self.assertIsInstance(other, type(one), where)
            if equal:
                self.assertEqual(text, ours, where)
        for binding in (m2n.Mesh((2,)).to_binding, m2n.Config().to_binding):
            with self.assertRaisesRegex(m2n.FunctionNotFoundError, "without libnccl_m2n.so"):
                binding()

    def test_meshes_are_those_of_the_release(self) -> None:
        for dims, first in itertools.product([(4,), (2, 3)], (0, 5)):
            mesh = m2n.Mesh(dims, start_rank=first)
            theirs = released.Mesh.from_ranks(mesh.mesh.tolist())
            self.assertEqual((theirs.dims[: theirs.ndims], theirs.start_rank), (dims, first))
        for wrong in ([], [[0], [1, 2]], "01"):
            with self.assertRaises((ValueError, TypeError)):
                released.Mesh.from_ranks(wrong)
            with self.assertRaises((ValueError, TypeError)):
                m2n._geometry.read_side(wrong, [Shard(0)], 1, "src")

    def test_parts_are_those_of_the_release(self) -> None:
        run(4, moved, seed())

    @unittest.skipUnless(HAS_NEMO, "NeMo-RL is not installed")
    @unittest.skipUnless(DEVICE == "cpu", "NeMo-RL's broadcasts run here over Gloo")
    def test_nemo_rl(self) -> None:
        run(4, nemo, seed(), backend="gloo")


if __name__ == "__main__":
    unittest.main()
