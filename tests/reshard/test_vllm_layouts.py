"""The vLLM packing, by the digests of what vLLM's own loader does (scripts/test-models)."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "models"))
import data
import places

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"


class Layouts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def save(self, model, spec):
        out = self.folder / f"{spec}.json"
        done = subprocess.run(
            [BANYAN, "layout", "save", "--model", model, "--spec", spec, "-o", out],
            capture_output=True, text=True, timeout=120)
        return done, out

    def layout(self, model, spec):
        done, out = self.save(model, spec)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(out.read_text())

    def hold(self, path):
        kept = json.loads(path.read_text())
        model = self.folder / path.stem
        data.write_folder(kept, model)
        shapes = {name: tensor["shape"] for name, tensor in kept["tensors"].items()}
        for packing, sizes in kept["parameters"].items():
            for size, expected in sizes.items():
                with self.subTest(model=path.stem, packing=packing, size=size):
                    layout = self.layout(model, f"{size},packing={packing}")
                    ranks = places.ranks_of(layout, shapes)
                    self.assertIn(f"tp={len(ranks)}", size)
                    self.assertEqual(places.digests(ranks), expected)

    def test_every_rank_of_every_family_has_the_layout_of_vllms_loader(self):
        models = sorted(data.DATA.glob("*.json"))
        self.assertGreater(len(models), 20)
        for path in models:
            self.hold(path)

    def refused(self, name, change, spec):
        kept = json.loads((data.DATA / f"{name}.json").read_text())
        change(kept["tensors"])
        data.write_folder(kept, self.folder / name)
        done, _ = self.save(self.folder / name, spec)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return done.stderr

    def test_a_tensor_parallelism_that_cuts_blocks_of_scales_is_refused(self):
        self.assertRegex(self.refused("deepseek-v3-fp8", lambda tensors: None, "tp=8,packing=vllm"),
                         r"weight_scale_inv.*elements 0:64 along dimension \d cut blocks of 128")

    def test_experts_in_mxfp4_are_refused_by_name(self):
        def published(tensors):
            for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
                experts, columns, rows = tensors.pop(name)["shape"]
                tensors[name + "_blocks"] = {"dtype": "U8", "shape": [experts, rows, columns // 32, 16]}
                tensors[name + "_scales"] = {"dtype": "U8", "shape": [experts, rows, columns // 32]}
        self.assertRegex(self.refused("gpt-oss", published, "tp=2,packing=vllm"),
                         "no rule matches the names of 8 tensors: .*experts.down_proj_blocks")

    def test_the_text_of_a_larger_model_is_named_as_vllm_has_it_there(self):
        kept = json.loads((data.DATA / "gemma3.json").read_text())
        prefix = "model.language_model."
        kept["tensors"] = {prefix + name.removeprefix("model."): tensor
                           for name, tensor in kept["tensors"].items()}
        data.write_folder(kept, self.folder / "larger")
        shapes = {name: tensor["shape"] for name, tensor in kept["tensors"].items()}
        ranks = places.ranks_of(self.layout(self.folder / "larger", "tp=2,packing=vllm"), shapes)
        self.assertEqual(places.digests(ranks), {
            "language_model." + name: digest
            for name, digest in kept["parameters"]["vllm"]["tp=2"].items()})


if __name__ == "__main__":
    unittest.main()
