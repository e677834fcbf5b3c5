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

    def save(self, model, spec, *options):
        out = self.folder / f"{spec}.json"
        done = subprocess.run(
            [BANYAN, "layout", "save", "--model", model, "--spec", spec, "-o", out, *options],
            capture_output=True, text=True, timeout=120)
        return done, out

    def layout(self, model, spec, *options):
        done, out = self.save(model, spec, *options)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(out.read_text())

    def hold(self, path):
        kept = json.loads(path.read_text())
        model = self.folder / path.stem
        data.write_folder(kept, model)
        shapes = {name: tensor["shape"] for name, tensor in kept["tensors"].items()}
        for packing, sizes in kept["parameters"].items():
            for tp, expected in sizes.items():
                with self.subTest(model=path.stem, packing=packing, tp=tp):
                    layout = self.layout(model, f"tp={tp},packing={packing}", *kept["options"])
                    ranks = places.ranks_of(layout, shapes)
                    self.assertEqual(len(ranks), int(tp))
                    self.assertEqual(places.digests(ranks), expected)

    def test_every_rank_of_every_family_holds_what_vllms_loader_puts_there(self):
        models = sorted(data.DATA.glob("*.json"))
        self.assertGreater(len(models), 20)
        for path in models:
            self.hold(path)

    def test_what_vllm_computes_is_left_out_by_name_or_refused(self):
        kept = json.loads((data.DATA / "nemotron-h.json").read_text())
        self.assertEqual(kept["options"], ["--skip", "**.A_log"])
        data.write_folder(kept, self.folder / "model")
        done, _ = self.save(self.folder / "model", "tp=2,packing=vllm")
        self.assertEqual(done.returncode, 1)
        self.assertIn("computes other values from it", done.stderr)

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
            for name, digest in kept["parameters"]["vllm"]["2"].items()})


if __name__ == "__main__":
    unittest.main()
