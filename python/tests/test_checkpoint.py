"""Checkpoints: files against a reader of safetensors of our own; save, load and join."""

from __future__ import annotations

import json
import struct
import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np

import banyan
from ranks import run

Array = np.ndarray[Any, Any]


def read(path: Path) -> dict[str, Array]:
    """Read a safetensors file of float32."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        flat = np.frombuffer(raw[8 + length + begin : 8 + length + end], np.float32)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def values(name: str, shape: tuple[int, ...]) -> Array:
    base = np.arange(np.prod(shape), dtype=np.float32) + sum(name.encode())
    return base.reshape(shape)


SHAPES = {"a": (8, 6), "b": (4, 4, 2), "c": (5,)}


def saved(world: banyan.World, folder: Path) -> list[tuple[int, int]]:
    mesh = banyan.Mesh((2,))
    layout = banyan.Layout()
    for i, (name, shape) in enumerate(SHAPES.items()):
        layout.add_sharded(name, "float32", shape, mesh, [banyan.Shard(i % len(shape))], world.rank)
    tensors = banyan.Tensors.alloc(layout)
    for piece in layout.pieces:
        whole = values(piece.name, piece.shape)
        np.asarray(tensors[piece.name])[...] = whole[piece.box.slices]
    steps: list[tuple[int, int]] = []
    banyan.Checkpoint.save(
        folder, layout, tensors, world, progress=lambda done, total: steps.append((done, total))
    )
    try:
        banyan.Checkpoint.save(folder, layout, tensors, world)
    except banyan.Invalid as error:
        assert str(folder) in str(error)
    else:
        raise AssertionError("saved twice")
    return steps


class CheckpointTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_one_file(self) -> None:
        tensors = {name: values(name, shape) for name, shape in SHAPES.items()}
        tensors["t"] = values("t", (6, 4)).T
        path = self.folder / "x.safetensors"
        banyan.Checkpoint.write(path, tensors)
        for name, tensor in read(path).items():
            np.testing.assert_array_equal(tensor, tensors[name])
        with banyan.Checkpoint(path) as checkpoint:
            self.assertEqual(sorted(checkpoint.keys()), sorted(tensors))
            self.assertEqual((len(checkpoint), checkpoint.rank_count), (4, 0))
            for name in tensors:
                view = checkpoint[name].numpy()
                np.testing.assert_array_equal(view, tensors[name])
                self.assertFalse(view.flags.writeable)
                with self.assertRaisesRegex(BufferError, "still use"):
                    checkpoint.close()
                del view
            with self.assertRaises(banyan.NotFound):
                checkpoint["d"]
            layout = banyan.Layout()
            into = layout.add_tensor("ct", "float32", (4, 8))
            layout.add_piece(
                into, "a", (8, 6), banyan.Box((0, 1), (8, 4)), dim_map=(1, 0), local_start=(0, 0)
            )
            out = np.full((4, 8), np.nan, np.float32)
            steps: list[tuple[int, int]] = []
            checkpoint.load(
                layout,
                banyan.Tensors(layout, {"ct": out}),
                progress=lambda done, total: steps.append((done, total)),
            )
            np.testing.assert_array_equal(out, tensors["a"][:, 1:5].T)
            self.assertEqual(steps[-1], (128, 128))
            frozen = out.copy()
            frozen.flags.writeable = False
            with self.assertRaisesRegex(ValueError, '"ct" is read-only'):
                checkpoint.load(layout, banyan.Tensors(layout, [frozen]))
        with self.assertRaisesRegex(ValueError, "closed"):
            checkpoint.keys()

    def test_save_load_join(self) -> None:
        folder = self.folder / "saved"
        steps = run(2, saved, folder)
        self.assertEqual([s[-1][0] == s[-1][1] > 0 for s in steps], [True, True])
        with banyan.Checkpoint(folder) as checkpoint:
            self.assertEqual(checkpoint.rank_count, 2)
            with self.assertRaisesRegex(ValueError, "load them"):
                checkpoint["a"]
            layout = checkpoint.layout(1)
            tensors = banyan.Tensors.alloc(layout)
            checkpoint.load(layout, tensors)
            for piece in layout.pieces:
                expected = values(piece.name, piece.shape)[piece.box.slices]
                np.testing.assert_array_equal(np.asarray(tensors[piece.name]), expected)
            job = banyan.Job(checkpoint, "tp=1", model=banyan.Model(folder))
            self.assertEqual((job.world_size, job.source_ranks), (2, 2))
            self.assertEqual(str(job.layouts(1)[0].pieces), str(layout.pieces))
        banyan.Checkpoint.join(folder, self.folder / "joined")
        whole = read(self.folder / "joined" / "model.safetensors")
        self.assertEqual(sorted(whole), sorted(SHAPES))
        for name, shape in SHAPES.items():
            np.testing.assert_array_equal(whole[name], values(name, shape))

    def test_exceptions_of_callbacks_are_raised(self) -> None:
        def progress(done: int, total: int) -> None:
            raise KeyError("progress")

        with self.assertRaisesRegex(KeyError, "progress"):
            banyan.Checkpoint.write(
                self.folder / "x.safetensors", {"a": np.zeros(4, np.float32)}, progress=progress
            )
        with self.assertRaises(banyan.NotFound):
            banyan.Checkpoint(self.folder / "missing")
        with self.assertRaises(TypeError):
            banyan.Checkpoint.write(self.folder / "y", {3: np.zeros(4)})  # type: ignore[dict-item]


if __name__ == "__main__":
    unittest.main()
