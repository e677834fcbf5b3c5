"""Banyan's MXFP8 has the bytes of vLLM's, and all ranks choose the same tensors for it."""

from __future__ import annotations

import unittest
from typing import Any

import environment  # noqa: F401
import torch
from vllm.model_executor.layers.quantization.utils.mxfp8_utils import _mxfp8_e4m3_quantize_torch

import banyan
from banyan.integrations import _mxfp8


def blocks(dtype: torch.dtype) -> torch.Tensor:
    """Return a block for each finite value of a type, in which it is the largest."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    finite = every[every.isfinite()].float()
    return (finite[:, None] * torch.linspace(-1, 1, _mxfp8.BLOCK)).to(dtype)


class BytesTest(unittest.TestCase):
    def differences(self, values: torch.Tensor) -> tuple[int, int]:
        """Return how many elements and scales differ."""
        elements, scales = _mxfp8_e4m3_quantize_torch(values)
        made, made_scales = _mxfp8.quantized(values)
        self.assertEqual(scales.shape, made_scales.shape)
        return int((made != elements.view(torch.uint8)).sum()), int((made_scales != scales).sum())

    def test_every_finite_value_is_the_largest_of_a_block(self) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            self.assertEqual(self.differences(blocks(dtype)), (0, 0))

    def test_random_values_and_edges(self) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            for shape in ((512, 128), (64, 2048), (8, 32)):
                values = _mxfp8.probe(shape, dtype)
                self.assertTrue(bool(values.isfinite().all()) or dtype == torch.float16)
                self.assertEqual(self.differences(values[values.isfinite().all(1)]), (0, 0))

    def test_infinity_and_nan_differ(self) -> None:
        values = torch.ones((2, _mxfp8.BLOCK), dtype=torch.bfloat16)
        values[0, 0], values[1, 0] = float("inf"), float("nan")
        self.assertNotEqual(self.differences(values), (0, 0))


def source(rows: int, start: int = 0, columns: int = 64) -> banyan.Layout:
    layout = banyan.Layout()
    number = layout.add_tensor("w", "bfloat16", (rows, columns))
    layout.add_piece(number, "w", (rows, 128), banyan.Box((0, start), (rows, columns)))
    return layout


def destination(*names: str, dtype: str = "bfloat16") -> banyan.Layout:
    """Return a layout in which a local tensor "fused" has the rows of several."""
    layout = banyan.Layout()
    number = layout.add_tensor("fused", dtype, (8 * len(names), 128))
    for place, name in enumerate(names):
        layout.add_piece(number, name, (8, 128), local_start=(8 * place, 0))
    return layout


def text(offers: Any = (), cut: Any = (), wanted: Any = ()) -> dict[str, Any]:
    return {"mxfp8": offers, "cut": cut, "destination": [(name,) for name in wanted]}


class ChoiceTest(unittest.TestCase):
    def test_pieces_that_cut_blocks_are_found(self) -> None:
        self.assertEqual(_mxfp8.cut(source(8)), [])
        self.assertEqual(_mxfp8.cut(source(8, 32, 96)), [])
        self.assertEqual(_mxfp8.cut(source(8, 16)), ["w"])
        self.assertEqual(_mxfp8.cut(source(8, 0, 48)), ["w"])
        self.assertEqual(_mxfp8.cut(None), [])

    def test_offers_are_whole_parameters_of_the_trainers_type(self) -> None:
        types = {"q": "bfloat16", "k": "bfloat16"}
        layout = destination("q", "k")
        self.assertEqual(_mxfp8.offers(layout, {"fused"}, types), [["k", "q"]])
        self.assertEqual(_mxfp8.offers(layout, (), types), [])
        self.assertEqual(_mxfp8.offers(layout, {"fused"}, types | {"k": "float32"}), [])

    def test_all_ranks_choose_what_every_worker_offers(self) -> None:
        offers = [["k", "q"], ["o"]]
        trainer, worker = text(), text(offers, wanted=["k", "q", "o", "norm"])
        self.assertEqual(_mxfp8.chosen([trainer, worker]), {"k", "q", "o"})
        cut = text(cut=["q"])  # k goes with q, with which it is fused
        self.assertEqual(_mxfp8.chosen([cut, worker]), {"o"})
        other = text([["o"]], wanted=["o", "k"])  # this worker has k as values
        self.assertEqual(_mxfp8.chosen([trainer, worker, other]), {"o"})


if __name__ == "__main__":
    unittest.main()
