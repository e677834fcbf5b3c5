"""The packings for Megatron-Core, by the digests of layouts that its own models ran right in."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "models"))
import data
import megatron_layouts
from families import FAMILIES

BANYAN = str(pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan")


class Layouts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write_model(self, family):
        """Write the kept model, most without the layers that predict further tokens."""
        base = megatron_layouts.FURTHER.get(family, family)
        kept = json.loads((data.DATA / f"{base}.json").read_text())
        left_out = [FAMILIES[base].mtp] if FAMILIES[base].mtp and base == family else []
        left_out += ["inv_freq"] if FAMILIES[base].inv_freq else []
        kept["tensors"] = {name: tensor for name, tensor in kept["tensors"].items()
                           if not any(part in name for part in left_out)}
        data.write_folder(kept, self.folder / family)
        return {name: tensor["shape"] for name, tensor in kept["tensors"].items()}

    def test_every_rank_has_the_layout_with_which_megatron_core_was_right(self):
        for family, specs in megatron_layouts.read_kept().items():
            shapes = self.write_model(family)
            for spec, expected in specs.items():
                with self.subTest(family=family, spec=spec):
                    made = megatron_layouts.digest(BANYAN, self.folder / family, spec, shapes)
                    self.assertEqual(made, expected)

    def test_layouts_that_megatron_core_lacks_are_refused(self):
        families = megatron_layouts.LACKING + megatron_layouts.LATENT + megatron_layouts.HYBRID
        for family in families:
            self.write_model(family)
            for packing in megatron_layouts.PACKINGS:
                if not megatron_layouts.is_refused(family, packing):
                    continue
                with self.subTest(family=family, packing=packing):
                    done = subprocess.run(
                        [BANYAN, "layout", "save", "--model", self.folder / family, "--spec",
                         f"packing={packing}", "-o", self.folder / "layout.json"],
                        capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual(done.returncode, 1)
                    self.assertRegex(
                        done.stderr, r'tensor "(model|backbone)\..* in the packing '
                        rf'"{packing}": .*Megatron-Core .*: (use packing=megatron|give the layout)')
                    self.assertFalse((self.folder / "layout.json").exists())

    def test_copies_that_megatron_core_has_once_are_filled_from_there(self):
        self.write_model("deepseek-v3-mtp")
        for to in ("tp=1", "tp=2,packing=vllm_mtp"):
            done = subprocess.run(
                [BANYAN, "reshard", "--model", self.folder / "deepseek-v3-mtp", "--from",
                 "pp=2,packing=megatron", "--to", to, "--partial-source", "--iters", "1"],
                capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, "every one of .* destination elements is right")


if __name__ == "__main__":
    unittest.main()
