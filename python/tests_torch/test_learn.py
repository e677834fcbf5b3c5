"""Layouts are learned from a model's own loader, or refused by name."""

from __future__ import annotations

import dataclasses
import os
import random
import struct
import tempfile
import unittest
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from groups import banyan, torch
from torch.testing._internal.two_tensor import TwoTensor

from banyan.integrations import _layout_cache as cache
from banyan.integrations._loader import Learned, learn
from banyan.integrations._verify import Values, available_bytes, needed_bytes, verify

BF16, F32 = torch.bfloat16, torch.float32
Pairs = Iterable[tuple[str, torch.Tensor]]
SEED = int(os.environ.get("TEST_SEED", "1"))


class Model(torch.nn.Module):
    """Parameters as engines have them, and a loader that fills them."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape, dtype in (
            ("qkv", (12, 4), BF16),
            ("experts", (3, 8, 4), F32),
            ("words", (10, 4), BF16),
            ("decay", (6,), F32),
            ("transposed", (4, 6), BF16),
            ("scalar", (1,), F32),
            ("untouched", (3,), F32),
        ):
            setattr(self, name, torch.nn.Parameter(torch.ones(shape, dtype=dtype)))
        self.register_buffer("bias", torch.zeros(4))
        self.register_buffer("cache", torch.zeros(4))

    def load(self, pairs: Pairs) -> None:
        for name, w in pairs:
            if name == "q":
                self.qkv.data[:4].copy_(w[4:8])
            elif name == "k":
                self.qkv.data.narrow(0, 4, 4).copy_(w.t())
            elif name == "v":
                self.qkv[8:] = w.view(2, 2, 4).flatten(0, 1)
            elif name.startswith("expert"):
                at = 0 if name.endswith("gate") else 4
                self.experts.data[int(name[6])].narrow(0, at, 4).copy_(w.to(F32).contiguous())
            elif name == "words":
                self.words.data[:7].copy_(w)
                self.words.data[7:].fill_(0.5)
            elif name == "decay":
                self.decay.data.copy_(w)
                self.decay.data.copy_(-torch.exp(self.decay.float()))
            elif name == "transposed":
                self.transposed.data = torch.cat([w[:2], w[2:]]).t().clone()
            elif name == "scalar":
                self.scalar.data[0] = w
            elif name == "bias":
                self.bias.copy_(w)


CHECKPOINT: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "q": (BF16, (16, 4)),
    "k": (BF16, (4, 4)),
    "v": (BF16, (4, 4)),
    **{f"expert{e}.{n}": (BF16, (4, 4)) for e in range(3) for n in ("gate", "up")},
    "words": (BF16, (7, 4)),
    "decay": (BF16, (6,)),
    "transposed": (BF16, (6, 4)),
    "scalar": (F32, ()),
    "bias": (F32, (4,)),
    "unused": (F32, (2,)),
}


def on_meta(model: Any) -> Any:
    return model.to("meta")


class Learning(unittest.TestCase):
    def learn(self, model: Any = None) -> tuple[Any, Learned]:
        model = model or Model()
        return model, learn(model, model.load, CHECKPOINT)

    def test_every_element_has_its_place(self) -> None:
        _, learned = self.learn(on_meta(Model()))
        layout = learned.layout
        names = [local.name for local in layout.tensors]
        pieces = {
            (names[p.tensor], p.local_start): (p.name, str(p.box), p.dim_map) for p in layout.pieces
        }
        self.assertEqual(len(pieces), 15)
        self.assertEqual(pieces["qkv", (0, 0)], ("q", "[4:8, 0:4]", (0, 1)))
        self.assertEqual(pieces["qkv", (4, 0)], ("k", "[0:4, 0:4]", (1, 0)))
        self.assertEqual(pieces["qkv", (8, 0)], ("v", "[0:4, 0:4]", (0, 1)))
        self.assertEqual(pieces["experts", (2, 4, 0)], ("expert2.up", "[0:4, 0:4]", (1, 2)))
        self.assertEqual(pieces["transposed", (0, 0)], ("transposed", "[0:2, 0:4]", (1, 0)))
        self.assertEqual(pieces["transposed", (0, 2)], ("transposed", "[2:6, 0:4]", (1, 0)))
        self.assertEqual(pieces["scalar", (0,)], ("scalar", "[]", ()))
        maps = {p.name for p in layout.pieces if p.negative_exp}
        self.assertEqual(maps, {"decay"})
        half = torch.tensor([0.5], dtype=BF16).view(torch.uint8).tolist()
        (padding,) = layout.padding
        self.assertEqual((names[padding[0]], str(padding[1])), ("words", "[7:10, 0:4]"))
        self.assertEqual(padding[2], bytes(half))
        self.assertEqual([names[n] for n, _ in layout.left_alone], ["untouched"])
        self.assertEqual(learned.left_alone, ("untouched", "cache"))
        self.assertEqual(learned.unused, ("unused",))

    def test_the_model_keeps_its_memory(self) -> None:
        model = Model()
        del model.transposed  # of which the loader replaces the memory
        tensors = {n: t for n, t in CHECKPOINT.items() if n != "transposed"}
        before = {name: t.clone() for name, t in model.state_dict().items()}
        learn(model, model.load, tensors)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, before[name]), name)

    def test_random_values_land_where_the_layout_says(self) -> None:
        _, learned = self.learn(on_meta(Model()))
        model = Model()
        verify(model, model.load, CHECKPOINT, learned.layout)

    def test_a_reshard_gives_the_bytes_of_the_loader(self) -> None:
        _, learned = self.learn(on_meta(Model()))
        values = dict(Values(CHECKPOINT).pairs())
        source = banyan.Layout()
        for name, (dtype, shape) in CHECKPOINT.items():
            source.add_piece(source.add_tensor(name, dtype, shape), name, shape)
        loaded, sent = Model(), Model()
        with torch.no_grad():
            loaded.load((n, t.clone()) for n, t in values.items())
        names = [local.name for local in learned.layout.tensors]
        into = {n: t.detach() for n, t in sent.state_dict().items() if n in names}
        with banyan.World() as world:
            banyan.reshard(
                values,
                into,
                world,
                source_layout=source,
                destination_layout=learned.layout,
                transform=banyan.Cast(),
            )
        for name, tensor in loaded.state_dict().items():
            close = 1e-6 if name == "decay" else 0  # torch may round exp to a neighbour
            torch.testing.assert_close(into.get(name, tensor), tensor, rtol=close, atol=0)

    def test_a_wrong_layout_is_noticed(self) -> None:
        learned = self.learn(on_meta(Model()))[1]
        model = Model()

        def other(pairs: Pairs) -> None:
            swapped = {"expert0.up": "expert0.gate", "expert0.gate": "expert0.up"}
            model.load((swapped.get(n, n), t) for n, t in pairs)

        with self.assertRaisesRegex(banyan.Corrupt, '"experts" .* does not hold "expert0.gate"'):
            verify(model, other, CHECKPOINT, learned.layout)

        def further(pairs: Pairs) -> None:
            model.load(pairs)
            model.cache.add_(1)

        with self.assertRaisesRegex(banyan.Corrupt, '"cache" changed, and the layout lacks it'):
            verify(model, further, CHECKPOINT, learned.layout)
        del model.qkv
        lacking = {n: t for n, t in CHECKPOINT.items() if n not in "qkv"}
        with self.assertRaisesRegex(banyan.Corrupt, '"qkv" is in the layout, and not in the model'):
            verify(model, model.load, lacking, learned.layout)

    def test_random_values_differ_between_tensors_and_stay(self) -> None:
        checkpoint = {f"w{n}": (BF16, (3, 5)) for n in range(200)} | {"c": (F32, (7,))}
        values = Values(checkpoint)
        before = {name: values[name].clone() for name in checkpoint}
        self.assertTrue(all(bool(one.isfinite().all()) for one in before.values()))
        self.assertEqual(len({str(one.tolist()) for one in before.values()}), 201)
        for _, one in values.pairs():  # a loader that writes to what it is given
            one.mul_(2)
        for name, one in before.items():
            self.assertTrue(torch.equal(values[name], one), name)
        layout = banyan.Layout()
        layout.add_tensor("w", BF16, (100, 3))
        few = {"big": (BF16, (1 << 20, 4)), "small": (BF16, (3,)), "c": (F32, (7,))}
        held = Values(few)._memory.values()
        wanted = 600 + sum(one.nbytes for one in held)
        self.assertEqual(needed_bytes(layout, few), wanted)
        self.assertGreater(available_bytes(), 1 << 20)

    def test_a_parameter_that_the_loader_makes(self) -> None:
        def make() -> Any:
            model = torch.nn.Module()
            model.w = torch.nn.Parameter(torch.zeros(4))

            def load(pairs: Pairs) -> None:
                model.bias = torch.nn.Parameter(torch.empty(8))
                model.bias.data[4:].zero_()
                for name, tensor in pairs:
                    (model.w.data if name == "w" else model.bias.data[:4]).copy_(tensor)

            model.load = load
            return model

        checkpoint = {"w": (F32, (4,)), "b": (BF16, (4,))}
        first, second = make(), make()
        learned = learn(first, first.load, checkpoint)
        self.assertEqual([t.name for t in learned.layout.tensors], ["w", "bias"])
        verify(second, second.load, checkpoint, learned.layout)


class Following(unittest.TestCase):
    """Ways in which loaders move elements."""

    def check(
        self,
        shape: tuple[int, ...],
        load: Callable[[torch.Tensor, torch.Tensor], Any],
        pieces: int,
        source: tuple[int, ...] = (4, 6),
    ) -> None:
        def make() -> Any:
            model = torch.nn.Module()
            model.w = torch.nn.Parameter(torch.zeros(shape, dtype=BF16))
            return model

        def run(model: Any) -> Callable[[Pairs], None]:
            def loader(pairs: Pairs) -> None:
                for _, tensor in pairs:
                    load(model.w.data, tensor)

            return loader

        checkpoint = {"a": (BF16, source)}
        model, other = make(), make()
        learned = learn(model, run(model), checkpoint)
        self.assertEqual(len(learned.layout.pieces), pieces)
        verify(other, run(other), checkpoint, learned.layout)

    def test_repeated_heads(self) -> None:
        self.check(
            (12, 4),
            lambda w, t: w.copy_(t.view(2, 2, 6)[:, None].expand(2, 2, 2, 6).reshape(12, 4)),
            16,  # each row of 6 falls into two rows of 4
        )

    def test_stacked_rows(self) -> None:
        self.check((2, 4, 6), lambda w, t: w.copy_(torch.stack([t, t])), 2)

    def test_permuted_rows(self) -> None:
        order = torch.tensor([2, 3, 0, 1])
        self.check((4, 6), lambda w, t: w.copy_(t.index_select(0, order)), 2)
        self.check((4, 6), lambda w, t: w.copy_(t[order]), 2)
        self.check((4, 4), lambda w, t: w.copy_(t.t()[order]), 2)
        self.check((4, 6), lambda w, t: w.copy_(t.flip(0)), 4)
        self.check((4, 6), lambda w, t: w.copy_(t.roll(1, 0)), 2)
        self.check((8, 6), lambda w, t: w.copy_(t.repeat(2, 1)), 2)
        index = torch.tensor([[1, 0], [0, 1], [5, 4], [2, 2]])
        self.check((4, 2), lambda w, t: w.copy_(t.gather(1, index)), 7)

    def test_repeated_rows(self) -> None:
        self.check((8, 6), lambda w, t: w.copy_(t.repeat_interleave(2, 0)), 8)

    def test_padded_rows(self) -> None:
        pad = torch.nn.functional.pad
        self.check((6, 8), lambda w, t: w.copy_(pad(t, (0, 2, 1, 1), value=-1)), 1)

    def test_parameters_in_one_memory(self) -> None:
        def make() -> Any:
            model = torch.nn.Module()
            memory = torch.zeros(10, 6, dtype=BF16)
            model.first = torch.nn.Parameter(memory[:4])
            model.second = torch.nn.Parameter(memory[4:8])
            model.tied = torch.nn.Parameter(memory[:4])
            model.register_buffer("view", memory[2:4])
            return model

        def run(model: Any) -> Callable[[Pairs], None]:
            def load(pairs: Pairs) -> None:
                for name, tensor in pairs:
                    (model.tied if name == "a" else model.second).data.copy_(tensor)

            return load

        checkpoint = {"a": (BF16, (4, 6)), "b": (BF16, (4, 6))}
        model, other = make(), make()
        learned = learn(model, run(model), checkpoint)
        self.assertEqual([t.name for t in learned.layout.tensors], ["first", "second"])
        verify(other, run(other), checkpoint, learned.layout)
        model.third = torch.nn.Parameter(model.second.data[2:])
        with self.assertRaisesRegex(
            banyan.Unsupported, 'parameters "second" and "third" share a part of their memory'
        ):
            learn(model, run(model), checkpoint)

    def test_a_buffer_that_collects_parts(self) -> None:
        def load(w: torch.Tensor, t: torch.Tensor) -> None:
            collected = torch.zeros(8, 6, dtype=F32)  # of the loader's own
            collected[:4] = t
            collected[5:7] = t[:2]
            w.copy_(collected)

        self.check((8, 6), load, 2)

    def test_interleaved_rows(self) -> None:
        self.check((4, 6), lambda w, t: w.copy_(torch.cat([t[::2], t[1::2]])), 4)

    def test_one_value_for_many_elements(self) -> None:
        self.check((3,), lambda w, t: w.copy_(t), 3, source=(1,))

    def test_scalars(self) -> None:
        self.check((), lambda w, t: w.copy_(t[0]), 1, source=(1,))
        self.check((2,), lambda w, t: (w[1:].copy_(t), w[:1].fill_(2)), 1, source=())

    def test_in_place_of_the_parameters_memory(self) -> None:
        def load(w: torch.Tensor, t: torch.Tensor) -> None:
            w.zero_()
            w[1:3, 2:].copy_(t[:2, :4])

        self.check((4, 6), load, 1)


class Refusing(unittest.TestCase):
    def refused(
        self, message: str, load: Callable[[Any, str, torch.Tensor], Any], **options: Any
    ) -> None:
        with self.assertRaisesRegex(banyan.Unsupported, message):
            self.learn(load, **options)

    def learn(self, load: Callable[[Any, str, torch.Tensor], Any], **options: Any) -> Learned:
        model = torch.nn.Module()
        model.w = torch.nn.Parameter(torch.zeros(4, 4))
        model.small = torch.nn.Parameter(torch.zeros(4, 4, dtype=BF16))
        checkpoint = {"a": (F32, (4, 4)), "b": (F32, (4, 4))}

        def run(pairs: Pairs) -> None:
            for name, tensor in pairs:
                load(model, name, tensor)

        return learn(model, run, checkpoint, **options)

    def test_computed_values(self) -> None:
        self.refused(
            r'parameter "w" \[0:4, 0:4\]: the loader computes it \(mul of "a"\)',
            lambda model, name, t: model.w.data.copy_(t * 2) if name == "a" else None,
        )
        self.refused(
            r'"w" \[1:2, 0:4\]: the loader computes it \(mul_ of "a"\)',
            lambda model, name, t: model.w.data.copy_(t)[1].mul_(3) if name == "a" else None,
        )
        self.refused(
            r'"w" .* computes it from "b" \(float32 → exp → float32\)',
            lambda model, name, t: model.w.data.copy_(t.exp()) if name == "b" else None,
        )

    def test_values_that_are_rounded_on_the_way(self) -> None:
        self.refused(
            r'"w" .* computes it from "a" \(float32 → bfloat16 → float32\)',
            lambda model, name, t: model.w.data.copy_(t.to(BF16)) if name == "a" else None,
        )

    def test_values_that_decide(self) -> None:
        self.refused('the loader reads values of "a"', lambda model, name, t: float(t[0, 0]) > 0)
        self.refused(
            'the loader computes nonzero of "a"', lambda model, name, t: model.w[t.nonzero()]
        )
        self.refused(
            'it failed at "a" .*cannot be called on meta|it failed at "a"',
            lambda model, name, t: t.numpy(),
        )

    def test_a_hole(self) -> None:
        def load(model: Any, name: str, t: torch.Tensor) -> None:
            if name == "a":
                model.w.data[1:3].copy_(t[:2])

        self.refused(r'parameter "w" \[0:1, 0:4\]: the loader fills it with nothing', load)
        layout = self.learn(load, holes=["*w"]).layout
        left = [(layout.tensors[n].name, str(box)) for n, box in layout.left_alone]
        holes = [("w", "[0:1, 0:4]"), ("w", "[3:4, 0:4]"), ("small", "[0:4, 0:4]")]
        self.assertEqual(sorted(left), sorted(holes))

    def test_two_tensors_in_one_place(self) -> None:
        def load(model: Any, name: str, t: torch.Tensor) -> None:
            (model.w.data if name == "a" else model.w.data[2:]).copy_(t[: 4 if name == "a" else 2])

        self.refused(r'"w": the loader writes "b" to \[2:4, 0:4\] over "a"', load)
        pieces = self.learn(load, replaced=["w"]).layout.pieces
        self.assertEqual(
            [(p.name, str(p.box), p.local_start) for p in pieces],
            [("a", "[0:2, 0:4]", (0, 0)), ("b", "[0:2, 0:4]", (2, 0))],
        )

    def test_bits_that_are_read_as_another_type(self) -> None:
        self.refused(
            r'"w" .* computes it \(it is read as int32 without a cast of "a"\)',
            lambda model, name, t: model.w.data.copy_(t.view(torch.int32)) if name == "a" else None,
        )
        self.refused(
            r'"w" .* computes it \(it is written as int32 of "a"\)',
            lambda model, name, t: model.w.data.view(torch.int32).copy_(t) if name == "a" else None,
        )

        def alike(model: Any, name: str, t: torch.Tensor) -> None:
            if name == "a":
                model.w.data.view(torch.int32).copy_(t.view(torch.int32))

        (piece,) = self.learn(alike).layout.pieces
        self.assertEqual((piece.name, str(piece.box)), ("a", "[0:4, 0:4]"))

    def test_values_of_the_loaders_own(self) -> None:
        def load(model: Any, name: str, t: torch.Tensor) -> None:
            model.w.data.copy_(torch.arange(16.0).view(4, 4))

        self.refused(r'"w" .* computes it \(values that the loader makes\)', load)

        def constant(model: Any, name: str, t: torch.Tensor) -> None:
            model.w.data.copy_(torch.full((4, 4), 2.5))
            model.small.data.copy_(t)

        learned = self.learn(constant, replaced=["small"])
        self.assertEqual(learned.left_alone, ("w",))
        ((_, box, fill),) = learned.layout.padding
        self.assertEqual((str(box), fill), ("[0:4, 0:4]", struct.pack("f", 2.5)))

    def test_copies_in_other_threads(self) -> None:
        for device, message in (("meta", '"w": the loader reports it'), ("cpu", 'failed at "a"')):
            model = torch.nn.Module()
            model.w = torch.nn.Parameter(torch.zeros(4, device=device), requires_grad=False)

            def load(pairs: Pairs, w: torch.Tensor = model.w) -> set[str]:
                with ThreadPoolExecutor() as pool:
                    list(pool.map(lambda pair: w.copy_(pair[1]), pairs))
                return {"w"}

            with self.assertRaisesRegex(banyan.Unsupported, message):
                learn(model, load, {"a": (F32, (4,))})

    def test_tensors_around_others(self) -> None:
        around = TwoTensor(torch.zeros(4), torch.zeros(4))
        model = torch.nn.Module()
        model.w = torch.nn.Parameter(around)
        with self.assertRaisesRegex(banyan.Unsupported, '"w" is a TwoTensor'):
            learn(model, lambda pairs: None, {"a": (F32, (4,))})

    def test_copies_of_single_elements(self) -> None:
        model = torch.nn.Module()
        model.w = torch.nn.Parameter(torch.empty(1 << 17))
        checkpoint = {"scalar": (F32, (1,))}
        with self.assertRaisesRegex(
            banyan.Unsupported, '"scalar": a copy falls apart into more than 65536 boxes'
        ):
            learn(model, lambda pairs: [model.w.data.copy_(t) for _, t in pairs], checkpoint)

    def test_a_checkpoint_of_another_model(self) -> None:
        self.refused("uses none of the checkpoint's 2 tensors", lambda model, name, t: None)

    def test_memory_that_nobody_filled(self) -> None:
        def load(model: Any, name: str, t: torch.Tensor) -> None:
            if name == "a":
                joined = torch.empty_like(t)
                joined[1:].copy_(t[1:])
                model.w.data.copy_(joined)

        self.refused(r'"w" \[0:1, 0:4\]: the loader computes it \(uninitialized memory\)', load)

    def test_integers_that_become_numbers(self) -> None:
        model = torch.nn.Linear(2, 2, bias=False)
        with self.assertRaisesRegex(banyan.Unsupported, r'from "a" \(int32 → float32\)'):
            learn(
                model,
                lambda pairs: [model.weight.data.copy_(t) for _, t in pairs],
                {"a": (torch.int32, (2, 2))},
            )


class Kept(unittest.TestCase):
    """Files of learned layouts, and their folder."""

    ORIGIN = cache.Origin("toy", "1.2", "linear", "0f" * 32, 2)

    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        change = mock.patch.dict(os.environ, {"BANYAN_LAYOUTS": str(self.folder)})
        change.start()
        self.addCleanup(change.stop)
        self.layout = banyan.Layout()
        self.layout.add_piece(self.layout.add_tensor("w", F32, (4,)), "a", (4,))

    def test_a_rank_learns_once(self) -> None:
        learned = mock.Mock(return_value=self.layout)
        for _ in range(2):
            found = cache.find(self.ORIGIN, 1, learned, lambda layout: False)
            self.assertEqual([p.name for p in found.pieces], ["a"])
        learned.assert_called_once()
        (path,) = self.folder.iterdir()
        self.assertEqual(path.name, "toy-1.2-linear-tp2-0f0f0f0f0f0f0f0f-rank1.json")

    def test_the_file_of_all_ranks_comes_first(self) -> None:
        path = self.folder / "toy-1.2-linear-tp2-0f0f0f0f0f0f0f0f.json"
        both = {rank: (self.ORIGIN, self.layout) for rank in range(2)}
        cache.save(path, both, is_verified=True)
        never = mock.Mock(side_effect=AssertionError("learned"))
        for rank in range(2):
            cache.find(self.ORIGIN, rank, never, never)
        with self.assertRaisesRegex(banyan.NotFound, f"{path} has no rank 2"):
            cache.find(self.ORIGIN, 2, never, never)

    def test_a_layout_is_verified_once(self) -> None:
        path = self.folder / "toy-1.2-linear-tp2-0f0f0f0f0f0f0f0f.json"
        cache.save(path, {0: (self.ORIGIN, self.layout)}, is_verified=False)
        never = mock.Mock(side_effect=AssertionError("called"))
        verify = mock.Mock(side_effect=[False, banyan.Corrupt("wrong"), True])
        cache.find(self.ORIGIN, 0, never, verify)
        self.assertEqual(list(self.folder.iterdir()), [path])  # it is there, unverified
        with self.assertRaisesRegex(banyan.Corrupt, "wrong"):
            cache.find(self.ORIGIN, 0, never, verify)
        for _ in range(2):  # then it is verified, and kept as that
            found = cache.find(self.ORIGIN, 0, never, verify)
            self.assertEqual([p.name for p in found.pieces], ["a"])
        self.assertEqual(verify.call_count, 3)
        with self.assertRaisesRegex(banyan.Corrupt, "wrong"):  # a wrong one is not kept
            verify = mock.Mock(side_effect=banyan.Corrupt("wrong"))
            cache.find(
                dataclasses.replace(self.ORIGIN, config_digest="2d" * 32), 0, self.learn, verify
            )
        self.assertEqual(len(list(self.folder.iterdir())), 2)

    def learn(self) -> banyan.Layout:
        return self.layout

    def test_another_origin_is_refused_with_both(self) -> None:
        path = self.folder / "learned.json"
        cache.save(path, {0: (self.ORIGIN, self.layout)}, is_verified=True)
        for name, other in (
            ("engine_release", "1.3"),
            ("model_type", "bilinear"),
            ("config_digest", "1e" * 32),
            ("tensor_parallel_size", 4),
        ):
            mine = getattr(self.ORIGIN, name)
            message = f"learned.json was learned for {name} {mine}, and this is {name} {other}"
            with self.assertRaisesRegex(banyan.Mismatch, message):
                cache.load(path, dataclasses.replace(self.ORIGIN, **{name: other}), 0)
        plain = banyan.LayoutFile()
        plain.add(0, self.layout)
        plain.save(path)
        with self.assertRaisesRegex(banyan.Mismatch, "was learned for engine None, and this is"):
            cache.load(path, self.ORIGIN, 0)

    def test_the_folder(self) -> None:
        self.assertEqual(cache.folder(), self.folder)
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}):
            del os.environ["BANYAN_LAYOUTS"]
            self.assertEqual(cache.folder(), Path("/cache/banyan/layouts"))
            del os.environ["XDG_CACHE_HOME"]
            self.assertEqual(cache.folder(), Path("/home/me/.cache/banyan/layouts"))

    def test_a_digest_is_of_names_types_and_shapes(self) -> None:
        checkpoint = {"a": (F32, (4,)), "b": (F32, (2, 2))}
        config = {"layers": 2}
        digest = cache.digest(config, checkpoint)
        self.assertEqual(digest, cache.digest(config, dict(reversed(checkpoint.items()))))
        others = [
            cache.digest({"layers": 3}, checkpoint),
            cache.digest(config, checkpoint | {"b": (BF16, (2, 2))}),
            cache.digest(config, checkpoint | {"b": (F32, (4,))}),
            cache.digest(config, {"a": (F32, (4,))}),
        ]
        self.assertEqual(len({digest, *others}), 5)


class Random(unittest.TestCase):
    """Loaders of random views, held against what they do."""

    def view(self, rng: random.Random, t: torch.Tensor) -> torch.Tensor:
        for _ in range(rng.randint(0, 5)):
            d = rng.randrange(t.ndim)
            n = t.shape[d]
            what = rng.choice(["transpose", "narrow", "unflatten", "flatten", "step", "unsqueeze"])
            if what == "transpose":
                t = t.transpose(d, rng.randrange(t.ndim))
            elif what == "narrow":
                start = rng.randrange(n)
                t = t.narrow(d, start, rng.randint(1, n - start))
            elif what == "unflatten":
                inner = rng.choice([f for f in range(1, n + 1) if n % f == 0])
                t = t.unflatten(d, (n // inner, inner))
            elif what == "flatten" and d > 0:
                t = t.flatten(d - 1, d)
            elif what == "step" and n > 2:
                t = t[(slice(None),) * d + (slice(rng.randrange(2), None, rng.randint(1, 3)),)]
            elif what == "unsqueeze" and t.ndim < 6:
                t = t.unsqueeze(d)
        return t

    def test_random_loaders(self) -> None:
        shapes = [(2, 3, 4, 6), (6, 24), (144,), (12, 12), (3, 48), (24, 2, 3)]
        pieces = 0
        for number in range(200):
            rng = random.Random(f"{SEED} {number}")
            checkpoint = {n: (BF16, rng.choice(shapes)) for n in "abc"}
            seed = rng.random()
            shape = rng.choice([(3, 144), (6, 9, 8), (432,), (12, 36), (2, 216)])
            is_transposed = len(shape) == 2 and rng.random() < 0.5

            def load(model: Any, pairs: Pairs, seed: float = seed) -> None:
                steps = random.Random(seed)
                w = model.w.data
                flat = (w if w.is_contiguous() else w.t()).view(-1)
                at = 0
                for _, tensor in pairs:
                    source = self.view(steps, tensor)
                    into = flat[at : at + source.numel()].view(source.shape)
                    into.copy_(source.clone() if steps.random() < 0.3 else source)
                    at += source.numel()
                flat[at:].fill_(3)

            def make(shape: Any = shape, is_transposed: bool = is_transposed) -> Any:
                model = torch.nn.Module()
                w = torch.zeros(shape, dtype=F32)
                model.w = torch.nn.Parameter(w.t().contiguous().t() if is_transposed else w)
                return model

            model = make()
            learned = learn(model, lambda pairs, m=model: load(m, pairs), checkpoint)
            fresh = make()
            verify(fresh, lambda pairs, m=fresh: load(m, pairs), checkpoint, learned.layout)
            pieces += len(learned.layout.pieces)
        print(f"seed {SEED}: {pieces} pieces")
        self.assertGreater(pieces, 5000)


if __name__ == "__main__":
    unittest.main()
