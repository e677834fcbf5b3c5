"""Tensors that go out and come in: types, shapes, lifetimes."""

from __future__ import annotations

import array
import ctypes
import gc
import math
import unittest
from collections.abc import Callable
from typing import Any

import numpy as np

import banyan
from ranks import run

NUMPY_TYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]
NUMPY_TYPES += ["uint16", "uint32", "uint64", "complex64", "bool"]


def peers(world: banyan.World) -> None:
    memory = banyan.alloc(world, 4096 * (world.rank + 1))
    assert memory.nbytes == 4096 * (world.rank + 1) and memory.device == "cpu"
    mine = np.asarray(memory.array(1024, "int32"))
    assert not mine.any()
    mine[:] = np.arange(1024) * 7 + world.rank
    world.barrier()
    theirs = mine
    for rank in range(world.size):
        theirs = memory.peer(rank, (32, 32), "int32").numpy()
        assert theirs.shape == (32, 32)
        assert (theirs.reshape(-1) == np.arange(1024) * 7 + rank).all()
        if rank > 0:
            assert memory.peer(rank).shape == (4096 * (rank + 1),)
    world.barrier()
    try:
        memory.close()
    except BufferError as error:
        assert "still use" in str(error)
    else:
        raise AssertionError("freed under NumPy's feet")
    del mine, theirs
    gc.collect()
    memory.close()
    memory.close()
    try:
        memory.array()
    except ValueError as error:
        assert "closed" in str(error)
    else:
        raise AssertionError("array of closed memory")


class Old:
    """A tensor of a library from before DLPack 1.0."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.tensor.__dlpack__()


class OnlyDLPack(Old):
    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:  # type: ignore
        return self.tensor.__dlpack__(max_version=max_version)


class MemoryTest(unittest.TestCase):
    def setUp(self) -> None:
        self.world = banyan.World(0, 1, unique_id=banyan.UniqueId())
        self.comm = banyan.Communicator(self.world)

    def tearDown(self) -> None:
        gc.collect()
        self.world.close()

    def test_peers_see_each_others_parts(self) -> None:
        run(3, peers)

    def test_types_and_shapes(self) -> None:
        memory = banyan.alloc(self.world, 10000)
        for name in NUMPY_TYPES:
            out = memory.array((3, 5), name)
            self.assertEqual((out.shape, out.dtype), ((3, 5), name))
            # NumPy has codes of its own for types that DLPack has since version 1.
            view = np.asarray(out) if name != "complex64" else out.numpy()
            self.assertEqual((view.dtype, view.shape), (np.dtype(name), (3, 5)))
            self.assertEqual(view.ctypes.data, out.address)
            self.assertEqual(np.from_dlpack(out).ctypes.data, out.address)
            for dtype in (np.dtype(name), getattr(np, name if name != "bool" else "bool_")):
                self.assertEqual(memory.array(1, dtype).dtype, name)
        for text, expected in [
            ("BF16", "bfloat16"),
            ("torch.bfloat16", "bfloat16"),
            ("F8_E4M3", "float8_e4m3fn"),
        ]:
            self.assertEqual(memory.array(1, text).dtype, expected)
            self.assertEqual(banyan.dtype_bytes(text), 2 if expected == "bfloat16" else 1)
        with self.assertRaises(banyan.NotFound):
            memory.array(1, "float31")
        with self.assertRaisesRegex(BufferError, "DLPack"):
            memoryview(memory.array(4, "bfloat16"))
        wrong: list[tuple[Any, int]] = [((5000,), 0), (-1, 0), ((1 << 62, 8), 0), (1, 10000)]
        for shape, offset in [*wrong, (None, 10001)]:
            with self.assertRaises(ValueError):
                memory.array(shape, "float32", offset)
        self.assertEqual(memory.array(None, "float32", 9997).shape, (0,))

    def test_arrays_keep_memory(self) -> None:
        memory = banyan.alloc(self.world, 64)
        view: memoryview[Any] = memoryview(memory.array(16, "float32"))
        view[3] = 2.5
        del memory
        gc.collect()
        self.assertEqual(view[3], 2.5)
        with self.assertRaisesRegex(BufferError, "this world"):
            self.world.close()
        self.assertTrue(self.world.is_open)
        view.release()

    def test_tensors_of_other_libraries(self) -> None:
        expected = np.arange(24, dtype=np.float32)
        makers: list[Callable[[], Any]] = [
            lambda: expected.copy(),
            lambda: array.array("f", expected),
            lambda: memoryview(bytearray(expected.tobytes())).cast("f"),
            lambda: (ctypes.c_float * 24)(*expected),
            lambda: Old(expected.copy()),
            lambda: OnlyDLPack(expected.copy()),
            lambda: expected.reshape(2, 3, 4).copy(),
        ]
        for make in makers:
            tensor = make()
            result = self.comm.all_reduce(tensor)
            self.assertIs(result, tensor)
            output = np.zeros(24, np.float32)
            self.comm.all_reduce(tensor, output)
            np.testing.assert_array_equal(output, expected)

    def test_what_is_no_tensor(self) -> None:
        with self.assertRaises(TypeError):
            self.comm.all_reduce(None)  # type: ignore[arg-type]
        for wrong in (5, [1.0, 2.0], "text", object()):
            with self.assertRaisesRegex(TypeError, "input: a tensor is needed"):
                self.comm.all_reduce(wrong)  # type: ignore[arg-type]
        output = np.zeros(3, np.float32)
        output.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "output: the buffer is read-only"):
            self.comm.all_reduce(np.zeros(3, np.float32), output)
        with self.assertRaisesRegex(ValueError, "read-only"):
            self.comm.all_reduce(OnlyDLPack(output))  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "not dense.*dimension 1"):
            self.comm.all_reduce(np.zeros((4, 4), np.float32)[:, ::2])
        with self.assertRaisesRegex(ValueError, "float32.*int32"):
            self.comm.all_reduce(np.zeros(3, np.float32), np.zeros(3, np.int32))
        with self.assertRaisesRegex(ValueError, "3 elements.*4"):
            self.comm.all_reduce(np.zeros(3, np.float32), np.zeros(4, np.float32))
        with self.assertRaisesRegex(TypeError, "format"):
            self.comm.all_reduce(np.zeros(3, dtype=[("a", "f4")]))
        with self.assertRaisesRegex(ValueError, "stream"):
            self.comm.all_reduce(np.zeros(3, np.float32), stream=5)

    def test_devices(self) -> None:
        for wrong in ("gpu", "cuda:", "cuda:x", "cuda:1x"):
            with self.assertRaisesRegex(ValueError, "not a device"):
                banyan.alloc(self.world, 16, wrong)
        self.assertEqual(banyan.alloc(self.world, 16, "cpu").device, "cpu")

    def test_lifetime_in_any_order(self) -> None:
        references = []
        for _ in range(50):
            memory = banyan.alloc(self.world, 256)
            references.append(memory.array(math.prod((8, 8)), "float32").numpy())
            if len(references) > 5:
                references.pop(0)
        del references


if __name__ == "__main__":
    unittest.main()
