"""Which layers receive weights in place, and how the others get them, without an engine."""

from __future__ import annotations

import sys
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import environment  # noqa: F401
import torch
from torch import nn
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

import banyan
from banyan.integrations import _updates as updates
from banyan.integrations.vllm._memory import Memory
from banyan.integrations.vllm._worker import BanyanWorkerEngine, _Guard

SHAPE = 4, 6
CPU = torch.device("cpu")


class Keeps(QuantizeMethodBase):
    """A method that leaves a weight as it was loaded."""

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None: ...

    def apply(self, layer: nn.Module, *_: Any, **__: Any) -> torch.Tensor:
        return layer.weight

    def process_weights_after_loading(self, layer: nn.Module) -> None: ...


class Packs(Keeps):
    """A method that replaces the weight by another one."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        layer.weight = nn.Parameter(layer.weight.t().contiguous() * 2, requires_grad=False)


class Derives(Keeps):
    """A method that leaves the weight, and computes with something that it makes of it."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        derived = layer.weight.detach() * 3
        layer.compute = lambda: derived

    def apply(self, layer: nn.Module, *_: Any, **__: Any) -> torch.Tensor:
        made: torch.Tensor = layer.compute()
        return made


class Kernel:
    """An object of vLLM's that a method holds, and that has what it made of a weight."""

    __module__ = "vllm.model_executor.kernels"
    made: torch.Tensor | None = None


class Delegates(Keeps):
    """A method whose kernel has all, and which removes the parameter."""

    def __init__(self) -> None:
        self.kernels = [Kernel()]

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        self.kernels[0].made = layer.weight.detach() * 5
        layer.weight = None

    def apply(self, layer: nn.Module, *_: Any, **__: Any) -> torch.Tensor:
        assert self.kernels[0].made is not None
        return self.kernels[0].made


class Reorders(Keeps):
    """A method that changes the weight in place."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        layer.weight.data.copy_(layer.weight.data.flip(0))


class Shrinks(Keeps):
    """A method whose result depends on how often it ran."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        rows = SHAPE[0] - len(getattr(layer, "runs", []))
        layer.runs = [*getattr(layer, "runs", []), 1]
        layer.weight = nn.Parameter(layer.weight[:rows].clone(), requires_grad=False)


class Layer(nn.Module):
    def __init__(self, method: QuantizeMethodBase | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SHAPE), requires_grad=False)
        if method is not None:
            self.quant_method = method


class Model(nn.Module):
    """A model as vLLM has it after it loaded zeros."""

    def __init__(self, **methods: QuantizeMethodBase | None) -> None:
        super().__init__()
        for name, method in methods.items():
            setattr(self, name, Layer(method))
        record_metadata_for_reloading(self)

    def process(self) -> Model:
        for layer in self.children():
            if hasattr(layer, "quant_method"):
                layer.quant_method.process_weights_after_loading(layer)
        return self

    def result(self, name: str) -> torch.Tensor:
        layer = getattr(self, name)
        method = getattr(layer, "quant_method", None)
        return layer.weight if method is None else method.apply(layer)


class Consumes(nn.Module):
    """An attention layer that makes its own weights of another layer's, and empties these."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.source = source

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        self.made = self.source.weight.detach() * 7
        self.source.weight = nn.Parameter(torch.empty(0), requires_grad=False)


def layout_of(*names: str) -> banyan.Layout:
    layout = banyan.Layout()
    for name in names:
        tensor = layout.add_tensor(f"{name}.weight", "float32", SHAPE)
        layout.add_piece(tensor, f"{name}.weight", SHAPE)
    return layout


class MemoryTest(unittest.TestCase):
    def test_layers_get_what_a_fresh_load_gives(self) -> None:
        methods = {
            "plain": None,
            "keeps": Keeps(),
            "packs": Packs(),
            "derives": Derives(),
            "delegates": Delegates(),
            "reorders": Reorders(),
        }
        model = Model(**methods).process()
        addresses = {name: p.data_ptr() for name, p in model.named_parameters()}
        memory = Memory(model, layout_of(*methods), CPU, torch.float32)
        changed = {"packs", "derives", "delegates", "reorders"}
        self.assertEqual(memory.buffered, {f"{name}.weight" for name in changed})
        for name in methods:  # trying the layers has changed nothing
            self.assertFalse(bool(model.result(name).any()), name)
        for version in (1, 2):
            values = torch.arange(24.0).reshape(SHAPE) + 100 * version
            given = memory.tensors()
            for tensor in given.values():
                tensor.copy_(values)
            memory.finish(list(given))
            wanted = {
                "plain": values,
                "keeps": values,
                "packs": values.t() * 2,
                "derives": values * 3,
                "delegates": values * 5,
                "reorders": values.flip(0),
            }
            for name, one in wanted.items():
                self.assertTrue(torch.equal(model.result(name), one), name)
        self.assertEqual({n: p.data_ptr() for n, p in model.named_parameters()}, addresses)

    def test_tied_layers_are_both_processed(self) -> None:
        model = Model(first=Keeps(), second=Derives())
        model.second.weight = model.first.weight
        memory = Memory(model.process(), layout_of("first"), CPU, torch.float32)
        self.assertEqual(memory.buffered, {"first.weight"})
        memory.tensors()["first.weight"].fill_(7)
        memory.finish(["first.weight"])
        self.assertTrue(bool((model.result("first") == 7).all()))
        self.assertTrue(bool((model.result("second") == 21).all()))
        self.assertIs(model.first.weight, model.second.weight)

    def test_attention_layers_consume_the_weights_of_others(self) -> None:
        model = Model(kept=Keeps()).process()
        model.attention = Consumes(model.kept)
        model.attention.process_weights_after_loading(torch.float32)
        with self.assertRaisesRegex(
            banyan.Unsupported, r'"kept.weight": .* has torch.float32 \[0]'
        ):
            Memory(model, layout_of("kept"), CPU, torch.float32)
        module = "banyan.integrations.vllm._memory"
        with mock.patch(f"{module}.is_deferred_attention_layer", lambda m: m is model.attention):
            memory = Memory(model, layout_of("kept"), CPU, torch.float32)
            self.assertEqual(memory.buffered, {"kept.weight"})
            for version in (1, 2):
                memory.tensors()["kept.weight"].fill_(version)
                memory.finish(["kept.weight"])
                self.assertTrue(bool((model.attention.made == 7 * version).all()))
                self.assertEqual(model.kept.weight.numel(), 0)

    def test_weights_that_are_asleep_are_refused(self) -> None:
        memory = Memory(Model(keeps=Keeps()), layout_of("keeps"), CPU, torch.float32)
        data = [SimpleNamespace(is_asleep=True, tag="kv_cache")]
        allocator = SimpleNamespace(pointer_to_data=dict(enumerate(data)))
        module: Any = SimpleNamespace(CuMemAllocator=SimpleNamespace(instance=allocator))
        with mock.patch.dict(sys.modules, {"vllm.device_allocator.cumem": module}):
            self.assertEqual(list(memory.tensors()), ["keeps.weight"])
            allocator.pointer_to_data[1] = SimpleNamespace(is_asleep=True, tag="weights")
            with self.assertRaisesRegex(banyan.Invalid, "weights are asleep: call wake_up"):
                memory.tensors()
            allocator.pointer_to_data[1].is_asleep = False
            self.assertEqual(list(memory.tensors()), ["keeps.weight"])

    def test_what_cannot_be_restored_is_refused(self) -> None:
        model = Model(shrinks=Shrinks()).process()
        with self.assertRaisesRegex(banyan.Unsupported, '"shrinks.weight": vLLM\'s reload makes'):
            Memory(model, layout_of("shrinks"), CPU, torch.float32)
        with self.assertRaisesRegex(banyan.Unsupported, '"other.weight", which the running'):
            Memory(model, layout_of("other"), CPU, torch.float32)
        layout = layout_of("shrinks")
        layout.leave_alone(layout.add_tensor("b", "float32", [2]), banyan.Box([0], [2]))
        with self.assertRaisesRegex(banyan.NotFound, 'nothing of 1 parameters of vLLM: "b"'):
            Memory(model, layout, CPU, torch.float32)

    def test_a_torn_model_refuses_calls_and_logits(self) -> None:
        class Computes(nn.Module):
            def forward(self) -> str:
                return "hidden"

            def compute_logits(self) -> str:
                return "logits"

        model, weights = Computes(), updates.Weights()
        guard = _Guard(model, weights.require_whole)
        for _ in range(2):
            weights.torn = "a trainer died"
            guard.set(True)
            guard.set(True)
            for call in (model, model.compute_logits):
                with self.assertRaisesRegex(updates.Torn, "a trainer died"):
                    call()
            weights.torn = None
            guard.set(False)
            self.assertEqual((model(), model.compute_logits()), ("hidden", "logits"))


class RefusedTest(unittest.TestCase):
    def test_engines_that_change_their_layers(self) -> None:
        def learn(**config: Any) -> None:
            parallel = SimpleNamespace(enable_eplb=config.pop("enable_eplb", False))
            engine = SimpleNamespace(
                parallel_config=parallel, vllm_config=SimpleNamespace(**config)
            )
            BanyanWorkerEngine._learn(engine, None, [])

        with self.assertRaisesRegex(banyan.Unsupported, r"moves experts .* \(enable_eplb\)"):
            learn(enable_eplb=True, lora_config=None)
        with self.assertRaisesRegex(banyan.Unsupported, r"for LoRA \(enable_lora\)"):
            learn(lora_config=object())
        self.assertFalse(BanyanWorkerEngine.supports_draft_weight_update)


if __name__ == "__main__":
    unittest.main()
