"""load_sharded: a rank's parts of safetensors files, beside what the safetensors package reads."""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

try:  # without its types, since type checkers run where it is missing, too
    safe_open: Any = importlib.import_module("safetensors").safe_open
    numpy_files: Any = importlib.import_module("safetensors.numpy")
except ImportError:
    print("skipped: the package safetensors is not installed")
    sys.exit(77)

import banyan
from ranks import run

Array = np.ndarray[Any, Any]
PAGE = 4096


def small_shapes(layers: int = 2) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a small Qwen3."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (256, 64)}
    for layer in range(layers):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (64,),
                "self_attn.q_proj": (128, 64),
                "self_attn.k_proj": (64, 64),
                "self_attn.v_proj": (64, 64),
                "self_attn.q_norm": (16,),
                "self_attn.k_norm": (16,),
                "self_attn.o_proj": (64, 128),
                "post_attention_layernorm": (64,),
                "mlp.gate_proj": (96, 64),
                "mlp.up_proj": (96, 64),
                "mlp.down_proj": (64, 96),
            }.items()
        }
    return shapes | {"model.norm.weight": (64,), "lm_head.weight": (256, 64)}


def seed() -> int:
    value = int(os.environ.get("TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"TEST_SEED={value}", flush=True)
    return value


def write_model(folder: Path, tensors: dict[str, Array], shards: int) -> None:
    """Write a folder as the hub has it, with an index if there are several shards."""
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        numpy_files.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = {key: tensors[key] for key in list(tensors)[shard::shards]}
        numpy_files.save_file(own, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(own, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


CONFIG = {
    "model_type": "qwen3",
    "head_dim": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 64,
    "num_hidden_layers": 2,
}


class LoadTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.seed = seed()
        self.random = random.Random(self.seed)
        self.generator = np.random.default_rng(self.seed)

    def model(self, shards: int = 1) -> tuple[Path, dict[str, Array]]:
        tensors = {
            name: self.generator.standard_normal(shape).astype(np.float32)
            for name, shape in small_shapes().items()
        }
        folder = self.folder / f"model-{shards}"
        write_model(folder, tensors, shards)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        return folder, tensors

    def compare(self, layout: banyan.Layout, loaded: banyan.Tensors, folder: Path) -> None:
        """Compare every piece with a slice that the safetensors package reads."""
        readers = [safe_open(file, "numpy") for file in sorted(folder.glob("*.safetensors"))]
        where = {name: reader for reader in readers for name in list(reader.keys())}
        for piece in layout.pieces:
            expected = where[piece.name].get_slice(piece.name)[piece.box.slices]
            local = np.asarray(loaded[layout.tensors[piece.tensor].name])
            place = tuple(
                slice(start, start + extent)
                for start, extent in zip(piece.local_start, piece.box.extent, strict=True)
            )
            np.testing.assert_array_equal(local[place], expected, piece.name)

    def test_every_rank_of_a_spec_gets_its_slices(self) -> None:
        for shards in (1, 3):
            folder, tensors = self.model(shards)
            for text in ("tp=4,packing=vllm", "tp=2,pp=2", "fsdp=3"):
                spec, taken = banyan.Spec(text), set[str]()
                for rank in range(spec.world_size):
                    layout = banyan.Layout()
                    layout.add_model(banyan.Model(folder), spec, rank)
                    loaded = banyan.load_sharded(folder, text, rank=rank)
                    self.assertEqual((loaded.state, loaded.version), ("whole", 1))
                    self.compare(layout, loaded, folder)
                    taken |= {piece.name for piece in layout.pieces}
                self.assertEqual(taken, set(tensors))
            with self.assertRaisesRegex(ValueError, "rank 4 is not in the 4 ranks"):
                banyan.load_sharded(folder, "tp=4", rank=4)
            with self.assertRaisesRegex(ValueError, "rank: give the rank"):
                banyan.load_sharded(folder, "tp=4")

    def test_random_boxes_land_in_strided_tensors(self) -> None:
        for _ in range(30):
            shapes = {
                f"t{i}": tuple(
                    self.random.choice((1, 3, 8, 70, 700)) for _ in range(self.random.randint(1, 3))
                )
                for i in range(4)
            }
            shapes = {name: shape for name, shape in shapes.items() if np.prod(shape) < 500_000}
            whole = {
                name: self.generator.standard_normal(shape).astype(np.float32)
                for name, shape in shapes.items()
            }
            path = self.folder / "random.safetensors"
            numpy_files.save_file(whole, path)
            layout, memory, views = banyan.Layout(), {}, {}
            for name, shape in shapes.items():
                start = [self.random.randrange(extent) for extent in shape]
                extent = [
                    self.random.randint(1, size - at) for at, size in zip(start, shape, strict=True)
                ]
                order = self.random.sample(range(len(shape)), len(shape))
                local_shape = [0] * len(shape)
                for d, k in enumerate(order):
                    local_shape[k] = extent[d]
                room = np.full([2 * size + 1 for size in local_shape], np.nan, np.float32)
                view = room[1::2] if self.random.random() < 0.5 else room
                view = view[tuple(slice(size) for size in local_shape)]
                if self.random.random() < 0.5:
                    view = np.full(local_shape, np.nan, np.float32)
                tensor = layout.add_tensor(name, "float32", local_shape)
                layout.add_piece(tensor, name, shape, banyan.Box(start, extent), dim_map=order)
                memory[name] = view
                box = tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
                views[name] = whole[name][box].transpose(np.argsort(order))
            with banyan.Checkpoint(path) as checkpoint:
                banyan.load_sharded(checkpoint, layout, memory, threads=self.random.randint(0, 3))
                read = checkpoint.bytes_read
            for name, expected in views.items():
                np.testing.assert_array_equal(memory[name], expected, f"{name} {self.seed}")
            self.assertGreaterEqual(read, sum(one.nbytes for one in views.values()))
            self.assertLessEqual(read, sum(one.nbytes for one in whole.values()))

    def test_only_the_pages_of_a_rank_are_read(self) -> None:
        whole = {
            "rows": self.generator.standard_normal((4096, 64)).astype(np.float32),
            "columns": self.generator.standard_normal((32, 8 * 1024)).astype(np.float32),
            "other": self.generator.standard_normal((1024, 1024)).astype(np.float32),
        }
        path = self.folder / "model.safetensors"
        numpy_files.save_file(whole, path)
        for rank in range(4):
            layout, mesh = banyan.Layout(), banyan.Mesh((4,))
            layout.add_sharded("rows", "float32", (4096, 64), mesh, [banyan.Shard(0)], rank)
            layout.add_sharded("columns", "float32", (32, 8192), mesh, [banyan.Shard(1)], rank)
            with banyan.Checkpoint(path) as checkpoint:
                self.assertEqual(checkpoint.bytes_read, 0)
                loaded = banyan.load_sharded(checkpoint, layout)
                self.assertEqual(checkpoint.bytes_read, layout.nbytes)
                np.testing.assert_array_equal(
                    np.asarray(loaded["columns"]), whole["columns"][:, rank * 2048 :][:, :2048]
                )
        # Gaps of less than a page are read, and no larger ones.
        for gap, counted in ((PAGE - 4, 3 * PAGE - 4), (PAGE, 2 * PAGE)):
            wide = np.arange(2 * (PAGE + gap) // 4, dtype=np.float32).reshape(2, -1)
            numpy_files.save_file({"wide": wide}, path)
            layout = banyan.Layout()
            layout.add_tensor("wide", "float32", (2, PAGE // 4))
            layout.add_piece(0, "wide", wide.shape, banyan.Box((0, 0), (2, PAGE // 4)))
            with banyan.Checkpoint(path) as checkpoint:
                loaded = banyan.load_sharded(checkpoint, layout)
                np.testing.assert_array_equal(np.asarray(loaded["wide"]), wide[:, : PAGE // 4])
                self.assertEqual(checkpoint.bytes_read, counted)

    def test_parts_larger_than_a_buffer(self) -> None:
        whole = self.generator.standard_normal((3000, 2100)).astype(np.float32)
        path = self.folder / "model.safetensors"
        numpy_files.save_file({"large": whole}, path)
        steps: list[tuple[int, int]] = []
        for dim_map in ((0, 1), (1, 0)):
            layout = banyan.Layout()
            shape = (2999, 2100) if dim_map == (0, 1) else (2100, 2999)
            layout.add_tensor("large", "float32", shape)
            layout.add_piece(
                0, "large", whole.shape, banyan.Box((1, 0), (2999, 2100)), dim_map=dim_map
            )
            steps.clear()
            loaded = banyan.load_sharded(
                path, layout, progress=lambda done, total: steps.append((done, total))
            )
            expected = whole[1:] if dim_map == (0, 1) else whole[1:].T
            np.testing.assert_array_equal(np.asarray(loaded["large"]), expected)
            self.assertEqual(steps[-1], (2999 * 2100 * 4, 2999 * 2100 * 4))
            self.assertEqual(steps, sorted(steps))

    def test_types_change_by_a_cast_only(self) -> None:
        folder, tensors = self.model()
        name = "model.norm.weight"
        layout = banyan.Layout()
        layout.add_tensor(name, "float16", tensors[name].shape)
        layout.add_piece(0, name, tensors[name].shape)
        half = np.zeros(tensors[name].shape, np.float16)
        with self.assertRaisesRegex(
            banyan.Mismatch, f"{name} is F32 in the checkpoint and F16 in the layout"
        ):
            banyan.load_sharded(folder, layout, {name: half})
        self.assertFalse(half.any())
        banyan.load_sharded(folder, layout, {name: half}, transform=banyan.Cast())
        np.testing.assert_array_equal(half, tensors[name].astype(np.float16))
        with self.assertRaisesRegex(banyan.Mismatch, "is F32 in the checkpoint"):
            banyan.load_sharded(folder, layout, [half], transform=banyan.Cast(["lm_head*"]))
        with self.assertRaisesRegex(banyan.Mismatch, "is F32 in the checkpoint and F16"):
            banyan.load_sharded(folder, layout, [half], transform=banyan.Mxfp8())
        loaded = banyan.load_sharded(folder, "tp=2", rank=1, dtype="float16")
        q = "model.layers.1.self_attn.q_proj.weight"
        np.testing.assert_array_equal(np.asarray(loaded[q]), tensors[q][64:].astype(np.float16))
        given = {
            key: np.zeros(np.asarray(loaded[key]).shape, np.float16) for key in list(loaded.keys())
        }
        banyan.load_sharded(folder, "tp=2", given, rank=1, transform=banyan.Cast())
        np.testing.assert_array_equal(given[q], np.asarray(loaded[q]))
        # Padding is filled, in the new type too.
        padded = banyan.load_sharded(
            folder, "tp=1,packing=vllm,vocab_multiple=100", rank=0, dtype="float16"
        )
        head = np.asarray(padded["lm_head.weight"])
        self.assertEqual(head.shape, (300, 64))
        self.assertFalse(head[256:].any())

    def test_the_hubs_cache(self) -> None:
        folder, tensors = self.model(2)
        cache = self.folder / "models--org--name"
        commits = ("a" * 40, "b" * 40)
        blobs = cache / "blobs"
        blobs.mkdir(parents=True)
        for commit in commits:
            snapshot = cache / "snapshots" / commit
            snapshot.mkdir(parents=True)
            for file in folder.iterdir():
                blob = blobs / f"{commit[0]}{file.name}"
                blob.write_bytes(file.read_bytes())
                (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
        with self.assertRaisesRegex(banyan.NotFound, "has the snapshots a+, b+ and no refs/main"):
            banyan.load_sharded(cache, "tp=1", rank=0)
        (cache / "refs").mkdir()
        (cache / "refs/main").write_text(commits[1])
        for path in (cache, cache / "snapshots" / commits[0]):
            loaded = banyan.load_sharded(path, "tp=1", rank=0, strict=True)
            for name, tensor in tensors.items():
                np.testing.assert_array_equal(np.asarray(loaded[name]), tensor)
        (blobs / "bmodel-00002-of-00002.safetensors").unlink()
        with self.assertRaisesRegex(
            banyan.NotFound, f"snapshots/{commits[1]}/model-00002-of-00002.safetensors"
        ):
            banyan.load_sharded(cache, "tp=1", rank=0)
        (cache / "refs/main").write_text("c" * 40)
        with self.assertRaisesRegex(banyan.NotFound, "refs/main is the commit c+, but the"):
            banyan.load_sharded(cache, "tp=1", rank=0)

    def test_errors_come_before_anything_is_filled(self) -> None:
        folder, tensors = self.model(2)
        layout = banyan.Layout()
        names = ["model.norm.weight", "lm_head.weight"]
        for i, name in enumerate(names):
            layout.add_tensor(name, "float32", (7, 7) if i else tensors[name].shape)
            layout.add_piece(i, name, (7, 7) if i else tensors[name].shape)
        given = [np.full(one.shape, 7, np.float32) for one in layout.tensors]
        kept = banyan.Tensors(layout, given)
        with self.assertRaisesRegex(
            banyan.Mismatch, r"lm_head.weight has shape \[256, 64\] in the checkpoint and \[7, 7\]"
        ):
            banyan.load_sharded(folder, layout, kept)
        self.assertEqual(kept.state, "empty")
        missing = banyan.Layout()
        missing.add_tensor("model.nrom.weight", "float32", (64,))
        missing.add_piece(0, "model.nrom.weight", (64,))
        with self.assertRaisesRegex(
            banyan.NotFound, r'"model.nrom.weight" \(it has "model.norm.weight"\)'
        ):
            banyan.load_sharded(folder, missing, [given[0]])
        for one in given:
            self.assertTrue((one == 7).all())
        single = banyan.Layout()
        single.add_tensor("model.norm.weight", "float32", (64,))
        single.add_piece(0, "model.norm.weight", (64,))
        with self.assertRaisesRegex(
            banyan.NotFound,
            r'has 24 tensors of which the layout takes nothing: "lm_head.weight", '
            r".* and 4 more; give skip=",
        ):
            banyan.load_sharded(folder, single, strict=True)
        banyan.load_sharded(folder, single, strict=True, skip=["model.l**", "model.e*.*", "lm_*.*"])
        skipped = banyan.load_sharded(folder, "tp=1", rank=0, strict=True, skip=["lm_head.weight"])
        self.assertNotIn("lm_head.weight", skipped.keys())
        shard = folder / "model-00001-of-00002.safetensors"
        shard.write_bytes(shard.read_bytes()[:-8])
        with self.assertRaisesRegex(banyan.FormatError, "00001-of-00002.safetensors.*"):
            banyan.load_sharded(folder, "tp=1", rank=0)

    def test_a_file_that_shrinks_leaves_torn_tensors(self) -> None:
        folder, tensors = self.model()
        file = folder / "model.safetensors"
        layout = banyan.Layout()
        layout.add_model(banyan.Model(folder), banyan.Spec("tp=1"), 0)
        with banyan.Checkpoint(folder) as checkpoint:
            loaded = banyan.load_sharded(checkpoint, layout)
            size = file.stat().st_size
            os.truncate(file, size - 4096)
            with self.assertRaisesRegex(
                banyan.FormatError, f"has changed since it was opened: it had {size} bytes"
            ):
                banyan.load_sharded(checkpoint, layout, loaded)
            self.assertEqual((loaded.state, loaded.version), ("torn", 1))
        numpy_files.save_file(tensors, file)
        banyan.load_sharded(folder, layout, loaded)
        self.assertEqual((loaded.state, loaded.version), ("whole", 2))

    def test_layout_files_and_saved_folders(self) -> None:
        folder, tensors = self.model()
        file = banyan.LayoutFile()
        for rank in range(2):
            layout = banyan.Layout()
            layout.add_model(banyan.Model(folder), banyan.Spec("tp=2,packing=vllm"), rank)
            file.add(rank, layout)
        saved = self.folder / "saved"
        run(2, save, folder, saved)
        for rank in range(2):
            direct = banyan.load_sharded(folder, file, rank=rank)
            through = banyan.load_sharded(saved, file, rank=rank)
            self.compare(file.layout(rank), direct, folder)
            self.compare(file.layout(rank), through, folder)
        with banyan.Checkpoint(saved) as checkpoint:
            # Two ranks hold replicas of some tensors; each box is read once.
            whole = banyan.load_sharded(checkpoint, "tp=1", rank=0)
            self.assertEqual(checkpoint.bytes_read, sum(one.nbytes for one in tensors.values()))
            for name, tensor in tensors.items():
                np.testing.assert_array_equal(np.asarray(whole[name]), tensor)
        banyan.Checkpoint.join(saved, self.folder / "joined")
        joined = numpy_files.load_file(self.folder / "joined/model.safetensors")
        self.assertEqual(joined.keys(), tensors.keys())
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(joined[name], tensor)
        with self.assertRaisesRegex(ValueError, "rank 2 is not in the 2 ranks of the file"):
            banyan.load_sharded(folder, file, rank=2)


def save(world: banyan.World, folder: Path, saved: Path) -> None:
    layout = banyan.Layout()
    layout.add_model(banyan.Model(folder), banyan.Spec("tp=2"), world.rank)
    tensors = banyan.load_sharded(folder, layout)
    banyan.Checkpoint.save(saved, layout, tensors, world, small_files_from=folder)


if __name__ == "__main__":
    unittest.main()
