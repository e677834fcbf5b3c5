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

# vLLM computes A from A_log, which a move cannot do: A is left alone once A_log is left out.
LEFT_OUT = {"nemotron-h": "**.A_log"}
BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"


class Layouts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def save(self, model, spec, *options):
        out = self.folder / f"{spec}.json"
        done = subprocess.run([BANYAN, "layout", "save", "--model", model, "--spec", spec, "-o", out,
                               *options], capture_output=True, text=True, timeout=120)
        return done, out

    def layout(self, model, spec):
        left_out = LEFT_OUT.get(model.name)
        if left_out:
            done, _ = self.save(model, spec)
            self.assertEqual(done.returncode, 1)
            self.assertIn("computes other values from it", done.stderr)
        done, out = self.save(model, spec, *(["--skip", left_out] if left_out else []))
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
                    ranks = places.ranks_of(self.layout(model, f"tp={tp},packing={packing}"), shapes)
                    self.assertEqual(len(ranks), int(tp))
                    self.assertEqual(places.digests(ranks), expected)

    def test_every_rank_of_every_family_holds_what_vllms_loader_puts_there(self):
        models = sorted(data.DATA.glob("*.json"))
        self.assertGreater(len(models), 20)
        for path in models:
            self.hold(path)


if __name__ == "__main__":
    unittest.main()
