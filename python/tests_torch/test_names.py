"""Layouts of fused tensors under the names that a checkpoint gives to their parts."""

from __future__ import annotations

import unittest

from groups import banyan, torch

from banyan.integrations._names import checkpoint_layout

EXPERTS, INNER, HIDDEN = 6, 5, 7


def split(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Divide as transformers does: gate and up of each expert."""
    made = {}
    for name, tensor in state.items():
        if name != "experts.gate_up":
            made[f"model.{name}"] = tensor
            continue
        for half, part in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
            for expert, one in enumerate(part.unbind(0)):
                made[f"experts.{expert}.{half}"] = one.contiguous()
    return made


class NamesTest(unittest.TestCase):
    def layout(self, box: banyan.Box) -> banyan.Layout:
        layout = banyan.Layout()
        fused = layout.add_tensor("local", "bfloat16", box.extent)
        layout.add_piece(fused, "experts.gate_up", [EXPERTS, 2 * INNER, HIDDEN], box)
        layout.add_piece(layout.add_tensor("norm", "float32", [HIDDEN]), "norm", [HIDDEN])
        return layout

    def test_elements_keep_their_places(self) -> None:
        """Check every element of a shard that cuts experts, and rows of "gate" and of "up"."""
        box = banyan.Box([1, 3, 0], [4, 6, HIDDEN])
        made = checkpoint_layout(self.layout(box), split)
        self.assertEqual([one.name for one in made.tensors], ["local", "norm"])
        whole = torch.arange(EXPERTS * 2 * INNER * HIDDEN).view(EXPERTS, 2 * INNER, HIDDEN)
        parts = split({"experts.gate_up": whole, "norm": torch.arange(HIDDEN)})
        local = torch.full(box.extent, -1)
        for piece in made.pieces:
            self.assertEqual(tuple(parts[piece.name].shape), piece.shape)
            if piece.tensor == 1:
                self.assertEqual(piece.name, "model.norm")
                continue
            at = list(piece.local_start)
            extent = [1] * len(at)
            for k, d in enumerate(piece.dim_map):
                assert d is not None
                extent[d] = piece.box.extent[k]
            view = local[tuple(slice(a, a + e) for a, e in zip(at, extent, strict=True))]
            self.assertTrue(bool((view == -1).all()))
            view.copy_(parts[piece.name][piece.box.slices].view(view.shape))
        self.assertTrue(torch.equal(local, whole[box.slices]))

    def test_computed_tensors_are_refused(self) -> None:
        box = banyan.Box([0, 0, 0], [EXPERTS, 2 * INNER, HIDDEN])
        with self.assertRaisesRegex(banyan.Unsupported, '"scaled" of the checkpoint is computed'):
            checkpoint_layout(self.layout(box), lambda state: {"scaled": state["norm"] * 2})


if __name__ == "__main__":
    unittest.main()
