"""Reshards of state dicts, compared with DTensor's own full_tensor and distribute_tensor."""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import unittest
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from groups import DEVICE, banyan, dist, run, seed, torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

import banyan._reshard
from banyan.torch._reshard import _Match

State = dict[str, torch.Tensor]
#: Of the groups that DTensor itself uses.
BACKEND = "gloo" if DEVICE == "cpu" else "banyan"


def whole(
    shape: tuple[int, ...], first: int = 0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return a tensor whose elements differ."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) + first).to(dtype).view(shape)


def divided(full: torch.Tensor, mesh: DeviceMesh, placements: list[Placement]) -> DTensor:
    """Divide a tensor that all ranks have, without a message."""
    return distribute_tensor(full, mesh, placements, src_data_rank=None)


@contextlib.contextmanager
def counted() -> Iterator[list[Any]]:
    """Record the plans that are made."""
    made: list[Any] = []
    module: Any = banyan._reshard
    real = module.ReshardPlan

    def plan(*args: Any, **options: Any) -> Any:
        made.append(real(*args, **options))
        return made[-1]

    module.ReshardPlan = plan
    try:
        yield made
    finally:
        module.ReshardPlan = real


# ---- random meshes and placements ----


def random_mesh(rng: random.Random, size: int) -> DeviceMesh:
    """Return a mesh of some or all ranks, in any order. All ranks draw the same."""
    shape = rng.choice([(4,), (2, 2), (1, 4), (2,), (3,), (2, 1, 2), (1, 2, 1, 2)])
    ranks = list(range(size))
    if rng.random() < 0.5:
        rng.shuffle(ranks)
    count = torch.Size(shape).numel()
    return DeviceMesh(DEVICE, torch.tensor(ranks[:count], device="cpu").view(shape))


def ascending(mesh: DeviceMesh) -> bool:
    """True if full_tensor is right: its gathers are in the order of the ranks."""
    ranks = mesh.mesh
    return all(torch.equal(ranks.sort(axis).values, ranks) for axis in range(ranks.ndim))


def random_placements(rng: random.Random, mesh: DeviceMesh, ndim: int) -> list[Placement]:
    kinds: list[Placement] = [Replicate(), *(Shard(dim) for dim in range(ndim))]
    placements: list[Any] = [rng.choice(kinds) for _ in range(mesh.ndim)]
    for axis in range(mesh.ndim):  # as FSDP2 divides what tensor parallelism leaves
        later = [
            mesh.size(j)
            for j in range(axis + 1, mesh.ndim)
            if isinstance(placements[axis], Shard) and placements[j] == placements[axis]
        ]
        if later and rng.random() < 0.5:
            factor = torch.Size(later).numel()
            placements[axis] = _StridedShard(placements[axis].dim, split_factor=factor)
            break
    return placements


def random_states(rank: int, number: int) -> int:
    rng = random.Random(number)
    compared = 0
    for turn in range(8):
        fulls = {
            f"layers.{i}.weight": whole(
                tuple(rng.choice([1, 2, 3, 5, 8, 13, 64]) for _ in range(rng.randint(0, 3))),
                first=1000 * i + turn,
                dtype=rng.choice([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
            )
            for i in range(6)
        }
        meshes = [random_mesh(rng, 4) for _ in range(3)]
        sides: list[State] = []
        for side in range(2):
            state: State = {}
            for name, full in rng.sample(list(fulls.items()), len(fulls)):
                mesh = rng.choice(meshes)
                if rng.random() < 0.2:
                    holders = rng.sample(range(4), rng.randint(1, 4))
                    if rank in holders:
                        state[name] = full.clone()
                    continue
                one = divided(full.clone(), mesh, random_placements(rng, mesh, full.ndim))
                if side == 0 and ascending(mesh) and rng.random() < 0.5:
                    read = one.full_tensor()  # DTensor's own reading of these shards
                    assert mesh.get_coordinate() is None or torch.equal(read, full), one
                state[name] = one
            sides.append(state)
        source, destination = sides
        with torch.no_grad():
            expected = {
                name: local.clone()
                for name, local in banyan.torch.local_tensors(destination).items()
            }
            for local in banyan.torch.local_tensors(destination).values():
                local.fill_(1 if local.dtype == torch.bool else 99)
        banyan.torch.reshard(source, destination)
        for name, local in banyan.torch.local_tensors(destination).items():
            if not torch.equal(local, expected[name]):
                raise AssertionError(
                    f"{number}, {turn}: {name} from {source.get(name)} to {destination[name]}, "
                    f"not {expected[name]}"
                )
            compared += local.numel()
    return compared


# ---- models ----


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 3 * width + 1, bias=True)
        self.down = nn.Linear(3 * width + 1, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.down(torch.relu(self.up(x)))) * self.scale


class Model(nn.Module):
    def __init__(self, even: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(36, 8)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 36, bias=False)
        if even:
            for block in self.blocks:
                block.up, block.down = nn.Linear(8, 32), nn.Linear(32, 8, bias=False)
        generator = torch.Generator(DEVICE).manual_seed(7)
        for one in self.state_dict().values():
            if one.is_floating_point():
                one.copy_(torch.rand(one.shape, generator=generator))
        self.head.weight = self.embed.weight  # tied

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def blank(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for one in model.state_dict().values():
            one.fill_(0)
    return model


def sharded(model: Any, mesh: DeviceMesh) -> Any:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def parallel(model: Any, mesh: DeviceMesh) -> Any:
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def equal_models(model: nn.Module, expected: nn.Module) -> None:
    """Compare by full_tensor, DTensor's own all-gather."""
    wanted = expected.state_dict()
    for name, one in model.state_dict().items():
        full = one.full_tensor() if isinstance(one, DTensor) else one
        assert torch.equal(full, wanted[name]), name


def models(rank: int) -> None:
    grid = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    line = init_device_mesh(DEVICE, (4,))
    hybrid = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicate", "shard"))
    for even in (False, True):
        made: dict[str, Callable[[nn.Module], Any]] = {
            "fsdp": lambda model: sharded(model, line),
            "hybrid": lambda model: sharded(model, hybrid),
            "tp of all ranks": lambda model: parallel(model, line),
            "tp of each replica": lambda model: parallel(model, grid["tp"]),
            "plain": lambda model: model,
        }
        if even:
            made["fsdp x tp"] = lambda model: sharded(parallel(model, grid["tp"]), grid["dp"])
        wanted = Model(even)
        source = made["fsdp"](Model(even))
        for kind in [*made, "fsdp"]:
            destination = made[kind](blank(Model(even)))
            with counted() as plans:
                for turn in range(3):  # the module, and state dicts made anew
                    filled = banyan.torch.reshard(
                        source if turn == 0 else source.state_dict(),
                        destination if turn == 0 else destination.state_dict(),
                    )
                    assert (filled.state, filled.version) == ("whole", turn + 1), filled.version
            assert len(plans) == 1, (kind, len(plans))
            equal_models(destination, wanted)
            source = made[kind](Model(even))
            if kind == "fsdp x tp":  # FSDP2 divides the rows that tensor parallelism divides
                placements = source.get_parameter("blocks.0.up.weight").placements
                assert isinstance(placements[0], _StridedShard), placements


def unsharded(rank: int) -> None:
    """A forward pass after a reshard uses the new values, also if FSDP2 had gathered old ones."""
    mesh, ids = init_device_mesh(DEVICE, (4,)), torch.arange(4)
    model, wanted = Model(), Model().eval()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    model.eval()
    for _ in range(2):
        with torch.no_grad():
            model(ids)
            assert not isinstance(model.embed.weight, DTensor)
            for one in wanted.parameters():
                one.mul_(0.5)
            banyan.torch.reshard(wanted, model)
            torch.testing.assert_close(model(ids), wanted(ids))


def disjoint(rank: int) -> None:
    """Ranks 0 and 1 train; ranks 2 and 3 are the engine."""
    trainer, engine = DeviceMesh(DEVICE, [0, 1]), DeviceMesh(DEVICE, [2, 3])
    wanted = Model()
    source = sharded(Model(), trainer) if rank < 2 else None
    destination = parallel(blank(Model()), engine) if rank >= 2 else None
    with counted() as plans:
        for turn in range(3):
            filled = banyan.torch.reshard(source, destination)
            assert filled.version == turn + 1 and filled.state == "whole"
        assert len(plans) == 1
        if destination is not None:
            equal_models(destination, wanted)
        # Two trainers' layouts into one engine: the engine cannot tell their plans apart.
        other = Model() if rank < 2 else None
        for model in (other, source, other, source):
            if destination is not None:
                blank(destination)
            banyan.torch.reshard(model, destination)
            if destination is not None:
                equal_models(destination, wanted)
        assert len(plans) == 2


def two_jobs(rank: int, folder: str) -> None:
    """Two jobs of two ranks each, with ranks 0 and 1 each, joined by a world of all four."""
    world = banyan.World.from_store(dist.FileStore(folder + "/joined", 4), rank, 4)
    dist.destroy_process_group()
    job = rank // 2
    store = dist.FileStore(f"{folder}/job{job}", 2)
    dist.init_process_group(BACKEND, store=store, rank=rank % 2, world_size=2)
    mesh = init_device_mesh(DEVICE, (2,))
    full = whole((9, 4))
    source: State = {"w": divided(full, mesh, [Shard(0)])} if job == 0 else {}
    target = divided(torch.zeros(9, 4), mesh, [Shard(1)])
    destination: State = {"w": target} if job == 1 else {}
    text = message(lambda: banyan.torch.reshard(source, destination, world=world))
    assert "pass ranks=, with the rank in the world of each rank of this job" in text, text
    banyan.torch.reshard(source, destination, world=world, ranks=[2 * job, 2 * job + 1])
    assert job == 0 or torch.equal(target.full_tensor(), full)
    world.close()


# ---- memory ----


def memory(rank: int) -> None:
    mesh = init_device_mesh(DEVICE, (4,))
    full = whole((6, 10))
    # Views with strides, on both sides; an empty shard (6 rows over 4 ranks: 2, 2, 2, 0); a scalar.
    store = torch.zeros(20, 6)
    into = torch.full((6, 20), -1.0)
    one = divided(full, mesh, [Shard(0)])
    assert rank < 3 or one.to_local().numel() == 0
    columns = divided(full, mesh, [Shard(1)])
    local = torch.zeros(10, 6).T[:, : columns.to_local().shape[1]]
    strided = DTensor.from_local(
        local, mesh, [Shard(1)], run_check=False, shape=full.shape, stride=(10, 1)
    )
    store[::2] = full.T
    source: State = {"a": one, "b": store[::2].T, "c": torch.tensor(3.5), "d": torch.zeros(0, 4)}
    destination: State = {
        "a": strided,
        "b": into[:, ::2],
        "c": torch.tensor(0.0),
        "d": torch.zeros(0, 4),
    }
    banyan.torch.reshard(source, destination)
    assert torch.equal(strided.to_local(), columns.to_local())
    assert torch.equal(into[:, ::2], full) and (into[:, 1::2] == -1).all()
    assert destination["c"].item() == 3.5
    # Other memory for the same names: the plan stays, and the new memory is filled.
    with counted() as plans:
        into = torch.full((6, 20), -1.0)
        destination = {**destination, "b": into[:, ::2], "c": torch.tensor(0.0)}
        again = banyan.torch.reshard(source, destination)
        assert torch.equal(into[:, ::2], full) and destination["c"].item() == 3.5
        assert not plans and again["b"].data_ptr() == into.data_ptr()
        # Another shape, another plan; then both are kept.
        small: State = {"a": whole((3, 2))}
        for _ in range(2):
            target: State = {"a": torch.zeros(3, 2)}
            banyan.torch.reshard(small, target)
            assert torch.equal(target["a"], small["a"])
            banyan.torch.reshard(source, destination)
        assert len(plans) == 1
        kept = len(banyan.torch.world()._plans)
        banyan.torch.reshard(small, target, keep=False)
        assert len(plans) == 2 and len(banyan.torch.world()._plans) == kept


def tied(rank: int) -> list[str]:
    """Tied tensors are filled once, and only from a source in which they are equal."""
    weight, target = whole((5, 4)), torch.zeros(5, 4)
    banyan.torch.reshard({"embed": weight, "head": weight}, {"embed": target, "head": target})
    assert torch.equal(target, weight)
    target = torch.zeros(5, 4)
    banyan.torch.reshard({"embed": weight}, {"embed": target, "head": target})
    assert torch.equal(target, weight)
    apart = [torch.zeros(5, 4), torch.zeros(5, 4)]
    banyan.torch.reshard({"embed": weight, "head": weight}, {"embed": apart[0], "head": apart[1]})
    assert torch.equal(apart[0], weight) and torch.equal(apart[1], weight)
    target = torch.zeros(5, 4)
    banyan.torch.reshard({"embed": weight, "head": weight}, {"head": target})
    assert torch.equal(target, weight)
    # The tensors of a kept plan are tied no longer, on one rank.
    source: State = {"embed": weight, "head": weight if rank != 1 else whole((5, 4), 100)}
    other = {**source, "head": whole((5, 4), 100)}
    return [
        message(lambda: banyan.torch.reshard(other, {"embed": target, "head": target})),
        message(lambda: banyan.torch.reshard(source, {"embed": target, "head": target})),
        message(
            lambda: banyan.torch.reshard(
                {"a": weight, "b": whole((4, 4), 50)}, {"a": target, "b": target[1:]}
            )
        ),
        message(lambda: banyan.torch.reshard({"a": weight}, {"a": torch.zeros(1, 4).expand(5, 4)})),
    ]


def autograd(rank: int) -> str:
    mesh = init_device_mesh(DEVICE, (4,))
    model = sharded(Model(), mesh)
    ids = torch.arange(4)
    plain = nn.Linear(4, 4)
    out = plain(torch.ones(4, requires_grad=True)).sum()
    version, fsdp = plain.weight._version, next(model.parameters())._version
    banyan.torch.reshard(nn.Linear(4, 4), plain)
    assert (
        plain.weight._version > version and plain.weight.requires_grad and plain.weight.grad is None
    )
    banyan.torch.reshard(Model(), model)
    assert next(model.parameters())._version > fsdp
    model(ids).sum().backward()
    with torch.inference_mode():
        frozen = torch.zeros(2)
    banyan.torch.reshard({"x": torch.ones(2)}, {"x": frozen})
    assert frozen.tolist() == [1, 1]
    return message(out.backward)


def torn(rank: int, folder: str) -> Any:
    """A run that failed leaves a torn destination, whose change autograd sees."""
    mesh = init_device_mesh(DEVICE, (4,))
    source: State = {"w": divided(whole((512, 512)), mesh, [Shard(0)])}
    destination: State = {"w": divided(torch.zeros(512, 512), mesh, [Shard(1)])}
    world = banyan.World.from_store(dist.FileStore(folder + "/apart", 4), rank, 4)
    plan = banyan.torch.Reshard(source, destination, world=world)
    plan(source, destination)
    assert (plan.destination.state, plan.destination.version) == ("whole", 1)
    version = destination["w"]._version
    if rank == 3:
        plan._take(source, destination)
        time.sleep(2)  # the others have begun the run
        world.abort("test")
        return None
    text = message(lambda: plan(source, destination))
    return text, plan.destination.state, destination["w"]._version > version


# ---- other options ----


def options(rank: int) -> None:
    mesh = init_device_mesh(DEVICE, (4,))
    full = whole((8, 8))
    source: State = {"model.w": divided(full, mesh, [Shard(0)]), "model.extra.x": torch.ones(2)}
    for rename in ({"model.w": "w"}, lambda name: name.removeprefix("model.")):
        target: State = {"w": torch.zeros(8, 8), "mine": torch.full((3,), 5.0)}
        filled = banyan.torch.reshard(source, target, rename=rename, strict=False)
        assert torch.equal(target["w"], full) and target["mine"].tolist() == [5, 5, 5]
        assert filled.keys() == ["w"]
    target["w"].zero_()
    odd: Any = {"_extra_state": object(), **source}
    banyan.torch.reshard(
        odd, {"model.w": target["w"], "other": torch.ones(1)}, skip=["model.extra.*", "other", "_*"]
    )
    assert torch.equal(target["w"], full)
    half: State = {"model.w": torch.zeros(8, 8, dtype=torch.bfloat16)}
    with counted() as plans:
        cast = banyan.Cast()
        for _ in range(2):
            banyan.torch.reshard(source, half, transform=cast, skip=["model.extra.x"])
        assert len(plans) == 1
    assert torch.equal(half["model.w"], full.bfloat16())
    # Explicit plans, and runs that are started.
    wide: State = {"model.w": torch.zeros(8, 8)}
    with banyan.torch.Reshard(
        source, wide, skip=["model.extra.x"], checksums=DEVICE == "cpu"
    ) as plan:
        assert sum(one.nbytes for one in plan.plan.recvs) == 8 * 8 * 4
        assert (plan.destination.state, wide["model.w"].sum().item()) == ("empty", 0)
        if DEVICE == "cpu":
            plan.start(source, wide).wait()
        else:
            plan(source, wide)
        assert plan.destination.state == "whole" and torch.equal(wide["model.w"], full)
        assert plan(source, wide).version == 2
        other: State = {"model.w": torch.zeros(8, 8)}
        plan(source, other)
        assert torch.equal(other["model.w"], full)
        text = message(lambda: plan(source, {"model.w": torch.zeros(8, 9 - (rank == 2))}))
        assert "not those of the plan" in text, text
    # A world in place of a group, with ranks in another order.
    world = banyan.torch.world().split([3, 2, 1, 0])
    wide["model.w"].zero_()
    banyan.torch.reshard(source, wide, world=world, skip=["model.extra.x"])
    assert torch.equal(wide["model.w"], full)
    banyan.torch.reshard(source, other, world=world, ranks=[3, 2, 1, 0], skip=["model.extra.x"])
    text = message(lambda: banyan.torch.reshard({"x": full}, wide, world=world, ranks=range(4)))
    assert re.search(f"which is rank\\s{3 - rank} of the world", text), text
    world.close()
    # A group of two ranks, which have other numbers in it.
    group: Any = dist.new_group([1, 3])
    if rank % 2:
        pair = DeviceMesh(DEVICE, [1, 3])
        small: State = {"w": divided(full, pair, [Shard(1)])}
        wide = {"w": torch.zeros(8, 8)}
        banyan.torch.reshard(small, wide, group=group)
        assert torch.equal(wide["w"], full)
        text = message(lambda: banyan.torch.reshard(source, wide, group=group))
        assert "rank 0 of its mesh is not one of the 2 ranks of the world" in text, text
        banyan.torch.world(group).close()


def shard_order(rank: int) -> None:
    """Specs of DTensor that name the order of the axes."""
    mesh = init_device_mesh(DEVICE, (2, 2))
    full = whole((8, 6))
    local = divided(full, mesh, [_StridedShard(0, split_factor=2), Shard(0)]).to_local()
    meta = TensorMeta(full.shape, full.stride(), full.dtype)
    spec = DTensorSpec(mesh, (Shard(0), Shard(0)), meta, shard_order=(ShardOrderEntry(0, (1, 0)),))
    one = DTensor(local, spec, requires_grad=False)
    target: State = {"w": torch.zeros(8, 6)}
    banyan.torch.reshard({"w": one}, target)
    assert torch.equal(target["w"], full)


def with_the_rest(rank: int, folder: str) -> None:
    """Layouts of state dicts, in checkpoints and layout files."""
    mesh = init_device_mesh(DEVICE, (4,))
    model, wanted = sharded(Model(), mesh), Model()
    world = banyan.torch.world()
    layout = banyan.torch.layout(model)
    locals_of = {
        name: one.detach().cpu() for name, one in banyan.torch.local_tensors(model).items()
    }
    assert {one.name for one in layout.tensors} == locals_of.keys()
    banyan.Checkpoint.save(folder, layout, banyan.Tensors(layout, locals_of), world)
    fresh = {name: torch.zeros_like(one.cpu()) for name, one in wanted.state_dict().items()}
    whole_layout = banyan.torch.layout(fresh)
    with banyan.Checkpoint(folder) as checkpoint:
        checkpoint.load(whole_layout, banyan.Tensors(whole_layout, fresh))
    for name, one in wanted.state_dict().items():
        assert torch.equal(fresh[name], one.cpu()), name
    file = banyan.LayoutFile()
    file.add(rank, layout)
    assert len(file.layout(rank)) == len(layout)


# ---- errors ----


def message(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


def devices(rank: int) -> None:
    host, gpu = torch.ones(3, device="cpu"), torch.zeros(3, device="cuda")
    expected = 'destination tensor "w" is on cuda:.*, and source tensor "w" is on cpu'
    assert re.search(expected, message(lambda: banyan.torch.reshard({"w": host}, {"w": gpu})))
    pair: list[Any] = [({"w": host}, None), (None, {"w": gpu})]
    expected = 'source tensor "w" is on cpu, and destination tensor "w" is on cuda'
    assert re.search(expected, message(lambda: banyan.torch.reshard(*pair[rank])))
    # A rank without tensors takes part, too.
    pair = [({"w": gpu + 2}, {"w": gpu}), (None, None)]
    banyan.torch.reshard(*pair[rank])
    assert rank == 1 or gpu.tolist() == [2, 2, 2]


def refused(rank: int) -> list[str]:
    mesh = init_device_mesh(DEVICE, (4,))
    full = whole((8, 8))
    good: State = {"w": full}

    def into(**state: Any) -> Callable[[], object]:
        return lambda: banyan.torch.reshard(good, {"w": torch.zeros(8, 8), **state})

    only_1: Any = {"w": full, "s": torch.eye(3).to_sparse() if rank == 1 else torch.eye(3)}
    partial = DTensor.from_local(full, mesh, [Partial()], run_check=False)
    store = whole((9, 8))
    number: Any = 3 if rank == 2 else good
    numbered: Any = {1: full}
    freed = torch.zeros(8, 8)
    freed.untyped_storage().resize_(0)
    wrong = DTensor.from_local(
        torch.zeros(3, 8), mesh, [Shard(0)], run_check=False, shape=full.shape, stride=(8, 1)
    )
    strided = divided(
        full, init_device_mesh(DEVICE, (2, 2)), [_StridedShard(0, split_factor=2), Shard(1)]
    )
    results = [
        message(
            lambda: banyan.torch.reshard(
                {"layers.0.weight": full, "b": full}, {"layer.0.weight": full.clone()}
            )
        ),
        message(lambda: banyan.torch.reshard({"a": full}, {"b": full.clone()}, strict=False)),
        message(into(w=torch.zeros(8, 9))),
        message(into(w=torch.zeros(8, 8, dtype=torch.float16))),
        message(lambda: banyan.torch.reshard({"w": partial}, {"w": full.clone()})),
        message(lambda: banyan.torch.reshard(only_1, {"w": full.clone(), "s": torch.zeros(3, 3)})),
        message(into(w=torch.quantize_per_tensor(full, 0.1, 0, torch.qint8))),
        message(into(w=torch.zeros(8, 8, dtype=torch.complex128))),
        message(into(w=torch.empty(8, 8, device="meta"))),
        message(into(w=freed)),
        message(into(w=torch.zeros(8, 8, dtype=torch.complex64).conj())),
        message(into(w=wrong)),
        message(lambda: banyan.torch.reshard({"w": strided}, {"w": full.clone()})),
        message(into(w=[1, 2])),
        message(lambda: banyan.torch.reshard(number, good)),
        message(
            lambda: banyan.torch.reshard(good, good, rename=lambda _: "x", world=None, group=None)
        ),
        message(lambda: banyan.torch.reshard({"w": full, "v": full}, good, rename={"v": "w"})),
        message(lambda: banyan.torch.reshard({"w": store[:8]}, {"w": store[1:]})),
        message(lambda: banyan.torch.reshard(numbered, {"w": full.clone()})),
        message(lambda: banyan.torch.reshard(good, good, skip="w")),
    ]
    fresh = torch.zeros(8, 8)
    banyan.torch.reshard(good, {"w": fresh})  # the world works on
    assert torch.equal(fresh, full)
    return results


class ReshardTest(unittest.TestCase):
    def test_random_meshes_and_placements(self) -> None:
        number = seed()
        for turn in range(2):
            self.assertGreater(sum(run(4, random_states, number + turn, backend=BACKEND)), 100)

    def test_models(self) -> None:
        run(4, models, backend=BACKEND)
        run(4, unsharded, backend=BACKEND)

    def test_other_ranks(self) -> None:
        run(4, disjoint, backend=BACKEND)

    def test_two_jobs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(4, two_jobs, folder, backend=BACKEND)

    def test_memory(self) -> None:
        run(4, memory, backend=BACKEND)

    def test_tied_tensors(self) -> None:
        for messages in run(4, tied, backend=BACKEND):
            for text, expected in zip(
                messages,
                (
                    '"embed", "head" of the destination are one tensor, but the source has several',
                    '"embed" and "head" of the source share memory on some ranks only',
                    'destination tensors "a" and "b" share memory',
                    'destination tensor "a" is expanded',
                ),
                strict=True,
            ):
                self.assertIn(expected, text)

    def test_autograd_sees_the_change(self) -> None:
        for text in run(4, autograd, backend=BACKEND):
            self.assertRegex(text, "modified by an inplace operation")

    def test_failed_runs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            results = run(4, torn, folder, backend=BACKEND)
        for text, *rest in results[:3]:
            self.assertRegex(text, "Aborted: rank 3 aborted: test")
            self.assertEqual(rest, ["torn", True])

    def test_devices(self) -> None:
        def listed(places: dict[str, str]) -> bytes:
            return zlib.compress(json.dumps([[["w"], []], [["w"], []], places]).encode())

        lists = [listed({"cpu": 'source tensor "w"'}), listed({}), listed({"cuda": 'tensor "v"'})]
        text = message(lambda: _Match(lists, True))
        self.assertIn('source tensor "w" is on cpu, and tensor "v" is on cuda', text)
        if DEVICE == "cuda":
            run(2, devices, backend=BACKEND)

    def test_options(self) -> None:
        run(4, options, backend=BACKEND)

    def test_order_of_axes(self) -> None:
        run(4, shard_order, backend=BACKEND)

    def test_layouts_for_checkpoints_and_files(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(4, with_the_rest, folder, backend=BACKEND)

    def test_what_is_refused(self) -> None:
        for rank, messages in enumerate(run(4, refused, backend=BACKEND)):
            for text, expected in zip(
                messages,
                (
                    'NotFound: 1 destination tensors are in no source:\n  "layer.0.weight" '
                    '\\(nearest: "layers.0.weight"\\)\n'
                    '2 source tensors are in no destination:\n  "b"\n',
                    "NotFound: no name is on both sides",
                    'Mismatch: .*"w"',
                    'Mismatch: .*"w"',
                    'Unsupported: .*source tensor "w" has the placement Partial.*redistribute it',
                    ("Invalid: rank 1: " if rank != 1 else "Unsupported: ")
                    + 'source tensor "s" is sparse',
                    'destination tensor "w" has the type torch.qint8',
                    'destination tensor "w" has the type torch.complex128',
                    'destination tensor "w" is on the device meta',
                    'destination tensor "w" has no memory: its storage has been freed',
                    'destination tensor "w" is a lazy view: call resolve_conj',
                    'tensor "w" has shape',
                    'source tensor "w" has the placements .*the split_factor 2 is not',
                    'destination tensor "w" is a list, not a tensor',
                    "source: a state dict or a module is needed, not int",
                    '"w"\n1 source.*\n  "x"',
                    'source: two tensors have the name "w"',
                    'Invalid: .*"w"',
                    "source: the name 1 is not a string",
                    "TypeError: skip: a list of patterns is needed, not a string",
                ),
                strict=True,
            ):
                self.assertRegex(text, expected)

    def test_example_of_the_documentation(self) -> None:
        page = Path(__file__).parents[2] / "docs" / "torch.md"
        example = page.read_text().split("## Reshard")[1].split("```python\n")[1].split("```")[0]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "example.py"
            path.write_text(example)
            command = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "4",
                str(path),
            ]
            done = subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, timeout=200
            )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
