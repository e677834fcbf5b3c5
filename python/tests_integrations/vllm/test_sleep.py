"""Updates of weights whose memory vLLM's sleep frees and maps again, by its own allocator.

Runs where vLLM for GPUs is installed. Without it, BANYAN_VLLM_FILES names a folder that
``allocator.py`` has filled.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import multiprocessing
import os
import sys
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if os.environ.get("BANYAN_TEST_DEVICE") != "cuda" or not torch.cuda.is_available():
    print("skipped: BANYAN_TEST_DEVICE is not cuda, or there is no GPU")
    sys.exit(77)
if "BANYAN_VLLM_FILES" in os.environ:
    import allocator

    allocator.load(Path(os.environ["BANYAN_VLLM_FILES"]))
elif importlib.util.find_spec("vllm") is None or not importlib.util.find_spec(
    "vllm.cumem_allocator"
):
    print("skipped: vLLM for GPUs is not installed, and BANYAN_VLLM_FILES names none of its files")
    sys.exit(77)

from vllm.device_allocator.cumem import CuMemAllocator
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

import banyan
from banyan.integrations import _updates as updates
from banyan.integrations.vllm._memory import Memory

#: Each weight has 64 MiB.
SHAPE = 4096, 4096
NAMES = "layers.0", "layers.1", "layers.2"
WEIGHTS_BYTES = 3 * (64 << 20)
DEVICE = torch.device("cuda", 0)
#: Seconds that a wait may last.
TIMEOUT = 60.0
ANSWER = 300


class Keeps(QuantizeMethodBase):
    """A method that leaves a weight as it was loaded."""

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None: ...

    def apply(self, layer: nn.Module, *_: Any, **__: Any) -> Tensor:
        return layer.weight

    def process_weights_after_loading(self, layer: nn.Module) -> None: ...


class Packs(Keeps):
    """A method that replaces the weight by another one."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        layer.weight = nn.Parameter(layer.weight.t().contiguous() * 2, requires_grad=False)


class Layer(nn.Module):
    def __init__(self, method: QuantizeMethodBase | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SHAPE, device=DEVICE), requires_grad=False)
        if method is not None:
            self.quant_method = method


class Model(nn.Module):
    """A model as vLLM has it after it loaded zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(None), Layer(Keeps()), Layer(Packs())])
        record_metadata_for_reloading(self)
        Packs().process_weights_after_loading(self.layers[2])


def layout() -> banyan.Layout:
    made = banyan.Layout()
    for name in NAMES:
        made.add_piece(made.add_tensor(f"{name}.weight", "float32", SHAPE), f"{name}.weight", SHAPE)
    return made


def values(name: str, version: int) -> Tensor:
    """Return a weight's values of a version."""
    numbers = torch.arange(SHAPE[0] * SHAPE[1], device=DEVICE) % 9973
    return (numbers + 1000 * version + 100_000 * NAMES.index(name)).float().view(SHAPE)


def joined(rank: int, identity: str) -> banyan.World:
    world = updates.join(identity, rank, 2, timeout=TIMEOUT)
    world.timeout = TIMEOUT
    return world


def trainer(identity: str, group_bytes: int) -> None:
    """Send five versions; the third is refused once, since the engine sleeps."""
    with joined(0, identity) as world:
        one = updates.Updates(world, layout(), None, device=DEVICE, group_bytes=group_bytes)
        for version in (1, 2, 3, 3, 4, 5):
            sent = {f"{name}.weight": values(name, version) for name in NAMES}
            try:
                made = one.update(lambda sent=sent: sent)
            except banyan.Invalid as error:
                assert version == 3 and "weights are asleep" in str(error), error
                continue
            assert made == version, (made, version)
            world.barrier()  # the engine has measured the memory of the GPU
        one.close()


class Engine:
    """A worker whose weights are in the memory of vLLM's allocator."""

    def __init__(self, world: banyan.World, group_bytes: int) -> None:
        self.world = world
        self.allocator = CuMemAllocator.get_instance()
        with self.allocator.use_memory_pool(tag="weights"):
            self.model = Model()
        self.memory = Memory(self.model, layout(), DEVICE, torch.float32)
        assert self.memory.buffered == {"layers.2.weight"}, self.memory.buffered
        self.updates = updates.Updates(
            world, None, self.memory.layout, device=DEVICE, group_bytes=group_bytes
        )

    def update(self) -> int:
        return self.updates.update(self.memory.tensors, finish=self.memory.finish, unmap=True)

    def check(self, version: int) -> None:
        for name in NAMES:
            wanted = values(name, version)
            if name == "layers.2":
                wanted = wanted.t() * 2
            found = self.model.get_submodule(name).weight
            assert torch.equal(found, wanted), (name, version, found[0, :4], wanted[0, :4])

    @contextlib.contextmanager
    def asleep(self, *offloaded: str) -> Any:
        """Sleep, and let something else write to the memory that becomes free."""
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        self.allocator.sleep(offload_tags=offloaded)
        torch.cuda.synchronize()
        freed = torch.cuda.mem_get_info()[0] - before
        assert freed >= WEIGHTS_BYTES, f"sleep freed {freed} bytes of {WEIGHTS_BYTES}"
        self.world.barrier()
        other = torch.full((WEIGHTS_BYTES,), 0x55, dtype=torch.uint8, device=DEVICE)
        yield
        assert bool((other == 0x55).all())  # no update has written to it
        del other
        torch.cuda.empty_cache()
        self.allocator.wake_up(tags=["weights"])


def engine(identity: str, group_bytes: int) -> None:
    with joined(1, identity) as world:
        one = Engine(world, group_bytes)
        for version in (1, 2):  # level 1 keeps the weights on the host
            assert one.update() == version
            one.check(version)
            with one.asleep("weights"):
                if version == 2:
                    try:
                        one.update()
                    except banyan.Invalid as error:
                        assert "no weights were moved" in str(error), error
                        assert "weights are asleep" in str(error), error
                    else:
                        raise AssertionError("an update of weights that are asleep")
            one.check(version)
        for version in (3, 4, 5):  # level 2 discards them
            assert one.update() == version
            one.check(version)
            if version < 5:
                with one.asleep():
                    pass
        address = one.model.layers[0].weight.data_ptr()
        share = "a descriptor or a fabric handle" if shareable(address) else "nothing: staged"
        print(f"the allocator's memory reaches other processes by {share}", flush=True)
        world.barrier()
        one.updates.close()


def shareable(address: int) -> bool:
    """True if other processes can map memory of the allocator: the handle types are not 0."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, properties = ctypes.c_ulonglong(), (ctypes.c_uint * 16)()
    assert driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address)) == 0
    driver.cuMemGetAllocationPropertiesFromHandle(properties, handle)
    driver.cuMemRelease(handle)
    return properties[1] != 0


def run(role: Callable[[str, int], None], identity: str, group_bytes: int, pipe: Any) -> None:
    torch.cuda.set_device(DEVICE)
    try:
        role(identity, group_bytes)
        pipe.send("")
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        pipe.close()
        os._exit(0)  # PyTorch's pools need not be taken down in order


class SleepTest(unittest.TestCase):
    def updates(self, group_bytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        made = banyan.UniqueId()  # lives until all have joined
        identity = updates.id_text(made)
        running = []
        for role in (trainer, engine):
            ours, theirs = context.Pipe(False)
            process = context.Process(target=run, args=(role, identity, group_bytes, theirs))
            process.start()
            theirs.close()
            running.append((process, ours))
        errors = []
        for process, pipe in running:
            try:
                errors.append(pipe.recv() if pipe.poll(ANSWER) else "no answer in time")
            except EOFError:
                errors.append("the process died")
            if errors[-1]:
                process.kill()
            process.join()
        del made
        self.assertEqual(errors, ["", ""], "\n".join(errors))

    def test_all_at_once(self) -> None:
        self.updates(0)

    def test_groups_of_layers(self) -> None:
        self.updates(1)


if __name__ == "__main__":
    unittest.main()
