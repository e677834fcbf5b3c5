"""banyan.torch.load_sharded: modules of FSDP2 and tensor parallelism read their own shards."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from groups import DEVICE, banyan, dist, run, torch

try:
    from safetensors.torch import save_file
except ImportError:
    print("skipped: the package safetensors is not installed")
    sys.exit(77)

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

WIDE, DEEP = 50, 33


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DEEP, WIDE)
        self.down = nn.Linear(WIDE, DEEP, bias=False)
        self.register_buffer("scale", torch.ones(3))


class Model(nn.Module):
    def __init__(self, tie: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(41, DEEP)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(DEEP, 41, bias=False)
        if tie:
            self.head.weight = self.embed.weight


def saved(folder: str, dtype: Any = None) -> dict[str, Any]:
    """Save a model with values that numbers of its elements give, and return its state dict."""
    with torch.device("cpu"):
        state = dict(Model().state_dict())
        for i, (name, one) in enumerate(state.items()):
            values = torch.arange(one.numel(), dtype=torch.float32).reshape(one.shape)
            state[name] = ((values + 1000 * i) % 2039).to(dtype or one.dtype)
    save_file(state, os.path.join(folder, "model.safetensors"))
    return state


def same(one: Any, whole: Any) -> None:
    full = one.full_tensor() if isinstance(one, DTensor) else one
    torch.testing.assert_close(full.cpu(), whole.to(full.dtype), rtol=0, atol=0)


def fsdp(rank: int, folder: str) -> int:
    with torch.device("cpu"):
        whole = saved(folder) if rank == 0 else None
    dist.barrier()
    whole_list = [whole]
    dist.broadcast_object_list(whole_list, 0)
    whole = whole_list[0]
    assert whole is not None
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    with torch.device("meta"):
        model = Model()
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    try:
        banyan.torch.load_sharded(folder, model)
    except banyan.Unsupported as error:
        assert "on the device meta" in str(error), error
    else:
        raise AssertionError("loaded into nothing")
    model.to_empty(device=DEVICE)
    versions = [one._version for one in model.parameters()]
    with banyan.Checkpoint(folder) as checkpoint:
        filled = banyan.torch.load_sharded(checkpoint, model)
        read = checkpoint.bytes_read
    assert filled.state == "whole"
    for name, one in model.state_dict().items():
        same(one, whole[name])
    assert all(a._version > b for a, b in zip(model.parameters(), versions, strict=True))
    return read


def placements(rank: int, folder: str) -> None:
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))
    whole = {
        "a": torch.arange(35 * 6, dtype=torch.float32).reshape(35, 6),
        "b": torch.arange(7 * 9 * 5, dtype=torch.float32).reshape(7, 9, 5),
    }
    if rank == 0:
        save_file({k: v.cpu() for k, v in whole.items()}, os.path.join(folder, "model.safetensors"))
    dist.barrier()
    for chosen in ((Shard(0), Shard(1)), (Shard(1), Shard(1)), (Replicate(), Shard(0))):
        state = {
            f"model.{k}": distribute_tensor(torch.full_like(v, -1), mesh, chosen)
            for k, v in whole.items()
        }
        expected = {k: distribute_tensor(v, mesh, chosen).to_local() for k, v in whole.items()}
        banyan.torch.load_sharded(folder, state, rename=lambda name: name.removeprefix("model."))
        for name, one in state.items():
            torch.testing.assert_close(
                one.to_local(), expected[name.removeprefix("model.")], rtol=0, atol=0
            )


def part_of_a_mesh(rank: int, folder: str) -> None:
    """Ranks outside of a tensor's mesh read nothing of it."""
    with torch.device("cpu"):
        a = torch.arange(40, dtype=torch.float32)
    if rank == 0:
        save_file({"a": a}, os.path.join(folder, "model.safetensors"))
    dist.barrier()
    mesh = dist.device_mesh.DeviceMesh(DEVICE, [0, 2])
    local = torch.zeros(20) if rank in (0, 2) else torch.zeros(0)
    one = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(40,), stride=(1,))
    with banyan.Checkpoint(folder) as checkpoint:
        banyan.torch.load_sharded(checkpoint, {"a": one})
        assert checkpoint.bytes_read == (80 if rank in (0, 2) else 0), checkpoint.bytes_read
    if rank in (0, 2):
        torch.testing.assert_close(one.to_local().cpu(), a[10 * rank :][:20], rtol=0, atol=0)


def resumed(rank: int, folder: str) -> None:
    """What ranks saved comes back on another mesh, with other placements."""
    whole = {"a": torch.arange(35 * 6.0).reshape(35, 6), "b": torch.arange(40.0)}
    line, grid = init_device_mesh(DEVICE, (4,)), init_device_mesh(DEVICE, (2, 2))
    state = {k: distribute_tensor(v, line, [Shard(0)]) for k, v in whole.items()}
    layout = banyan.torch.layout(state)
    tensors = banyan.Tensors(layout, {k: v.cpu() for k, v in local(state).items()})
    saved_in = os.path.join(folder, "step-1")
    banyan.Checkpoint.save(saved_in, layout, tensors, banyan.torch.world())
    other = {
        "a": distribute_tensor(torch.zeros(35, 6), grid, [Shard(1), Shard(0)]),
        "b": distribute_tensor(torch.zeros(40), grid, [Replicate(), Shard(0)]),
    }
    with banyan.Checkpoint(saved_in) as checkpoint:
        banyan.torch.load_sharded(checkpoint, other)
        assert checkpoint.bytes_read < sum(v.nbytes for v in whole.values())
    for name, one in other.items():
        wanted = distribute_tensor(whole[name], grid, one.placements).to_local()
        torch.testing.assert_close(one.to_local(), wanted, rtol=0, atol=0)


def local(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return banyan.torch.local_tensors(state)


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


class Groups(Folder):
    def test_fsdp_modules_read_their_shards(self) -> None:
        read = run(3, fsdp, self.folder)
        whole = Path(self.folder, "model.safetensors").stat().st_size
        # The buffers are read by every rank, the parameters by one.
        buffers = 2 * 3 * 4
        header = int.from_bytes(Path(self.folder, "model.safetensors").read_bytes()[:8], "little")
        self.assertEqual(sum(read), whole - 8 - header + 2 * buffers)

    def test_placements(self) -> None:
        run(4, placements, self.folder)

    def test_ranks_outside_of_the_mesh(self) -> None:
        run(3, part_of_a_mesh, self.folder)

    def test_saved_folders_on_another_mesh(self) -> None:
        run(4, resumed, self.folder)


class OneProcess(Folder):
    """After the groups: a process that has opened a GPU's driver cannot fork ranks that use it."""

    def test_one_process(self) -> None:
        state = saved(self.folder, torch.bfloat16)
        model = Model()
        with self.assertRaisesRegex(banyan.Mismatch, "BF16 in the checkpoint and F32 in the"):
            banyan.torch.load_sharded(self.folder, model)
        banyan.torch.load_sharded(self.folder, model, transform=banyan.Cast())
        for name, one in model.state_dict().items():
            same(one, state[name])
        tied = Model(tie=True)
        with self.assertRaisesRegex(
            banyan.Mismatch, "'embed.weight', 'head.weight' are one tensor here"
        ):
            banyan.torch.load_sharded(self.folder, tied, transform=banyan.Cast())
        banyan.torch.load_sharded(self.folder, tied, transform=banyan.Cast(), skip=["head.*"])
        same(tied.head.weight.detach(), state["embed.weight"])

    def test_mxfp8(self) -> None:
        """A load quantizes as a reshard does, also where pieces cut the blocks of scales."""
        whole = torch.randn(64, 160, dtype=torch.float32).to(torch.bfloat16)
        save_file({"w": whole, "n": whole[0].clone()}, os.path.join(self.folder, "x.safetensors"))
        path = os.path.join(self.folder, "x.safetensors")
        source = banyan.Layout()
        source.add_tensor("w", "bfloat16", (64, 160))
        source.add_piece(0, "w", (64, 160))
        for columns in (slice(32, 128), slice(16, 120)):
            middle = (columns.start + columns.stop) // 2
            layout, made = banyan.Layout(), []
            shape = (64, columns.stop - columns.start)
            layout.add_tensor("q", "float8_e4m3fn", shape)
            for start, stop in ((columns.start, middle), (middle, columns.stop)):
                box = banyan.Box((0, start), (64, stop - start))
                place = (0, start - columns.start)
                layout.add_piece(0, "w", (64, 160), box, local_start=place)
            for way in ("reshard", "load"):
                out = torch.zeros(shape, dtype=torch.uint8).view(torch.float8_e4m3fn)
                scales = torch.zeros(banyan.Mxfp8.scales_shape(shape), dtype=torch.uint8)
                transform = banyan.Mxfp8()
                transform.bind_scales("q", scales)
                if way == "reshard":
                    with (
                        banyan.World(0, 1, unique_id=banyan.UniqueId()) as world,
                        banyan.Reshard(source, layout, world, transform=transform) as reshard,
                    ):
                        reshard([whole], [out])
                else:
                    banyan.load_sharded(path, layout, [out], transform=transform)
                made.append((out.view(torch.uint8), scales))
            self.assertTrue(torch.equal(made[0][0], made[1][0]), f"elements of {columns}")
            self.assertTrue(torch.equal(made[0][1], made[1][1]), f"scales of {columns}")
            self.assertGreater(int(made[1][0].count_nonzero()), 1000)
        kept = banyan.Tensors(layout, [out])
        with self.assertRaisesRegex(banyan.NotFound, "scales"):
            banyan.load_sharded(path, layout, kept, transform=banyan.Mxfp8())
        self.assertEqual(kept.state, "empty")

    def test_names_on_one_side(self) -> None:
        saved(self.folder)
        small = nn.ModuleDict({"embed": nn.Embedding(41, DEEP), "haed": nn.Linear(3, 4)})
        before = small["embed"].weight.clone()
        with self.assertRaisesRegex(
            banyan.NotFound,
            r'(?s)2 tensors are not in .*"haed.weight" \(nearest: "head.weight"\).*"haed.bias".*'
            r"9 tensors of .* have no place:.*strict=False",
        ):
            banyan.torch.load_sharded(self.folder, small)
        torch.testing.assert_close(small["embed"].weight, before)
        filled = banyan.torch.load_sharded(self.folder, small, strict=False)
        self.assertEqual(filled.keys(), ["embed.weight"])
        same(small["embed"].weight.detach(), torch.arange(41 * DEEP).reshape(41, DEEP).float())
        with self.assertRaisesRegex(
            banyan.Mismatch, r"\[41, 33\] in the checkpoint and \[41, 32\]"
        ):
            banyan.torch.load_sharded(
                self.folder, nn.ModuleDict({"embed": nn.Embedding(41, 32)}), strict=False
            )


if __name__ == "__main__":
    unittest.main()
