"""banyan layout, and layout files in place of specs."""

import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import safetensors
import small_model

try:
    import jsonschema
except ImportError:
    jsonschema = None

ROOT = pathlib.Path(__file__).resolve().parents[3]
BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"


def banyan(*arguments):
    return subprocess.run([BANYAN, *arguments], capture_output=True, text=True, timeout=120)


class Layout(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = small_model.write(small_model.dense(), self.folder / "small.json")

    def save(self, spec, name=None, model=None):
        path = self.folder / (name or f"{spec}.json")
        done = banyan("layout", "save", "--model", model or self.model, "--spec", spec, "-o", path)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        return path

    def succeeds(self, *arguments):
        done = banyan(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_a_file_fits_its_schema_and_has_equal_ranks_once(self):
        path = self.save("tp=2,dp=3,packing=vllm")
        layout = json.loads(path.read_text())
        self.assertEqual([group["ranks"] for group in layout["ranks"]], [[0, 2, 4], [1, 3, 5]])
        padded = [tensor for tensor in layout["ranks"][0]["tensors"]
                  if tensor["name"].endswith("qkv_proj.weight")]
        self.assertEqual(len(padded[0]["pieces"]), 3)
        if not jsonschema:
            self.skipTest("the jsonschema package is not here")
        schema = json.loads((ROOT / "docs/layout.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(layout, schema)
        layout["ranks"][0]["tensors"][0]["peices"] = []
        with self.assertRaises(jsonschema.ValidationError):
            jsonschema.validate(layout, schema)

    def test_a_model_moves_between_files_as_between_specs(self):
        source, destination = "tp=2,pp=2,packing=megatron", "tp=4,packing=vllm"
        files = self.save(source), self.save(destination)
        expected = json.loads(self.succeeds("reshard", "--model", self.model, "--from", source,
                                            "--to", destination, "--json"))
        for model in [], ["--model", self.model]:
            found = json.loads(self.succeeds("reshard", *model, "--from", files[0], "--to",
                                             files[1], "--json", "--disjoint"))
            for key in "tensors", "verified_elements", "bytes":
                self.assertEqual(found[key], expected[key])
            self.assertEqual(found["ranks"], 8)
        found = json.loads(self.succeeds("plan-scale", "--from", files[0], "--to", files[1],
                                         "--json"))
        self.assertEqual(found["tensors"], expected["tensors"])
        self.assertIn("direct", self.succeeds("simulate", "--topology", "h200x8", "--from",
                                              files[0], "--to", files[1]))

    def test_files_say_where_tensors_of_a_folder_go(self):
        draw = random.Random(3)
        tensors = {
            name: (tensor["dtype"], tensor["shape"],
                   draw.randbytes(math.prod(tensor["shape"]) * safetensors.BYTES[tensor["dtype"]]))
            for name, tensor in small_model.dense().items()}
        safetensors.write_folder(self.folder / "in", tensors, 2)
        vllm, whole = self.save("tp=2,packing=vllm"), self.save("tp=1", "whole.json")
        self.succeeds("reshard", "--in", self.folder / "in", "--out", self.folder / "saved",
                      "--from", "tp=2", "--to", vllm)
        self.succeeds("reshard", "--in", self.folder / "saved", "--out", self.folder / "joined",
                      "--to", whole, "--join")
        self.assertEqual(safetensors.read_folder(self.folder / "joined"), tensors)
        path = self.folder / "as_saved.json"
        self.succeeds("layout", "save", "--model", self.folder / "saved", "-o", path)
        self.assertEqual(sum(len(group["ranks"]) for group in json.loads(path.read_text())["ranks"]),
                         2)

    def retyped(self, path, dtype):
        """The layout with every tensor of another type."""
        layout = json.loads(path.read_text())
        for group in layout["ranks"]:
            for tensor in group["tensors"]:
                tensor["dtype"] = dtype
        path = path.with_suffix(f".{dtype}.json")
        path.write_text(json.dumps(layout))
        return path

    def test_tensors_arrive_in_the_type_that_a_file_declares(self):
        source, destination = self.save("tp=1"), self.save("tp=2,packing=vllm")
        self.succeeds("reshard", "--model", self.model, "--iters", "2", "--from", source,
                      "--to", self.retyped(destination, "F32"))
        self.succeeds("reshard", "--model", self.model, "--iters", "2",
                      "--from", self.retyped(source, "F32"), "--to", destination)
        # The upper half of an f32 has the bytes of a bf16.
        values = {"w": ("BF16", [4, 3], random.Random(3).randbytes(24))}
        folder, out = self.folder / "in", self.folder / "out"
        safetensors.write_folder(folder, values, 1)
        whole = {"tensor": "w", "shape": [4, 3], "start": [0, 0], "extent": [4, 3]}
        for name, dtype in [("from", "BF16"), ("to", "F32")]:
            tensor = {"name": "w", "dtype": dtype, "shape": [4, 3], "pieces": [whole]}
            (self.folder / f"{name}.json").write_text(json.dumps(
                {"format": "banyan.layout", "version": 1,
                 "ranks": [{"ranks": [0], "tensors": [tensor]}]}))
        self.succeeds("reshard", "--in", folder, "--out", out, "--from", self.folder / "from.json",
                      "--to", self.folder / "to.json")
        dtype, _, data = safetensors.read(out / "rank-00000/model.safetensors")["w"]
        bf16 = values["w"][2]
        self.assertEqual((dtype, data), ("F32", b"".join(
            b"\0\0" + bf16[i:i + 2] for i in range(0, len(bf16), 2))))

    def test_a_saved_folder_keeps_padding_as_padding(self):
        model = small_model.dense(vocabulary=250)
        path = small_model.write(model, self.folder / "odd.json")
        tensors = {name: (tensor["dtype"], tensor["shape"],
                          bytes(math.prod(tensor["shape"]) * safetensors.BYTES[tensor["dtype"]]))
                   for name, tensor in model.items()}
        safetensors.write_folder(self.folder / "in", tensors, 2)
        built = self.save("tp=2,packing=vllm", model=path)
        self.succeeds("reshard", "--in", self.folder / "in", "--out", self.folder / "saved",
                      "--from", "tp=1", "--to", built)
        index = self.folder / "saved/banyan.index.json"

        def paddings():
            again = self.folder / "again.json"
            self.succeeds("layout", "save", "--model", self.folder / "saved", "-o", again)
            self.succeeds("layout", "check", again)
            return {tensor["name"]: tensor.get("padding")
                    for group in json.loads(again.read_text())["ranks"]
                    for tensor in group["tensors"] if "padding" in tensor}

        expected = {name: [{"start": [122, 0], "extent": [6, 64]}]
                    for name in ("model.embed_tokens.weight", "lm_head.weight")}
        self.assertEqual(paddings(), expected)
        listed = json.loads(index.read_text())
        for file in listed["files"]:
            # As an earlier release wrote it.
            del file["padding"], file["left_alone"]
        index.write_text(json.dumps(listed))
        self.assertEqual(paddings(), expected)
        listed["files"][1]["padding"] = [{"local": "lm_head.weight", "start": [122, 0],
                                          "extent": [7, 64]}]
        index.write_text(json.dumps(listed))
        done = banyan("layout", "save", "--model", self.folder / "saved", "-o", "-")
        self.assertIn("padding [122:129, 0:64] does not lie in tensor lm_head.weight", done.stderr)

    def one_rank(self, name, rows, *names):
        """A file of one rank that holds the first rows of tensors of 130 × 2."""
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"format": "banyan.layout", "version": 1, "ranks": [
            {"ranks": [0], "tensors": [
                {"name": tensor, "dtype": "BF16", "shape": [rows, 2],
                 "pieces": [{"tensor": tensor, "shape": [130, 2], "start": [0, 0],
                             "extent": [rows, 2]}]} for tensor in names]}]}))
        return path

    def test_all_of_the_source_must_arrive_unless_one_says_otherwise(self):
        source = self.one_rank("source", 130, "vocabulary", "norm")
        for rows, names, parts in [
                (128, ["vocabulary", "norm"],
                 ['[128:130, 0:2] of "vocabulary" in the source, which no destination takes']),
                (130, ["vocabulary"], ['[0:130, 0:2] of "norm" in the source',
                                       'No destination takes 1 tensor of the source: "norm"'])]:
            destination = self.one_rank("destination", rows, *names)
            for command in (["reshard"], ["simulate", "-t", "h200x4"]):
                command += ["--from", source, "--to", destination]
                done = banyan(*command)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(parts[0], done.stderr)
                if command[0] == "reshard":
                    for part in parts:
                        self.assertIn(part, done.stderr)
                self.succeeds(*command, "--partial-source")

    def test_a_misspelt_tensor_is_told_with_the_nearest_name(self):
        source = self.one_rank("source", 130, "model.norm.weight", "lm_head.weight")
        destination = self.one_rank("destination", 130, "model.nrom.weight", "lm_head.wieght")
        done = banyan("reshard", "--from", source, "--to", destination)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('No source has 2 tensors of the destination: "lm_head.wieght" (the source '
                      'has "lm_head.weight"), "model.nrom.weight" (the source has '
                      '"model.norm.weight")', done.stderr)

    def test_a_value_map_is_kept_and_shown(self):
        rules = self.folder / "my.rules"
        rules.write_text("packing mine\nmodel.norm.weight\n    in mine A map negative_exp dtype F32\n"
                         "include builtin\n")
        path = self.folder / "mapped.json"
        self.succeeds("layout", "save", "--model", self.model, "--spec", "tp=2,packing=mine",
                      "--rules", rules, "-o", path)
        layout = json.loads(path.read_text())
        tensor = next(t for t in layout["ranks"][0]["tensors"] if t["name"] == "A")
        self.assertEqual((tensor["dtype"], tensor["pieces"][0]["map"]), ("F32", "negative_exp"))
        if jsonschema:
            jsonschema.validate(layout, json.loads((ROOT / "docs/layout.schema.json").read_text()))
        self.assertIn("\n  A F32 [64]\n    [0:64] model.norm.weight of [64], as its negative_exp\n",
                      self.succeeds("layout", "show", path))
        self.succeeds("reshard", "--model", self.model, "--from", "tp=1", "--to", path)
        self.succeeds("layout", "check", path, "--as", "source")
        own = {k: v for k, v in tensor["pieces"][0].items() if k not in ("map", "replicas")}
        other = {"ranks": [7], "tensors": [tensor | {"pieces": [own]}]}
        path.write_text(json.dumps(layout | {"ranks": layout["ranks"] + [other]}))
        done = banyan("layout", "check", path, "--as", "source")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('the source has tensor "model.norm.weight" under the map negative_exp at rank '
                      "0 and under none at rank 7", done.stderr)
        tensor["pieces"][0]["map"] = "exp"
        path.write_text(json.dumps(layout))
        self.assertIn('has unknown map "exp": there is negative_exp',
                      banyan("layout", "check", path).stderr)

    def test_show_lists_the_tensors_of_ranks(self):
        path = self.save("tp=2,dp=2,packing=vllm")
        self.assertRegex(self.succeeds("layout", "show", path, "--brief"),
                         r"^ranks 0, 2: \d+ tensors, \d+ pieces, .*\nranks 1, 3: .*\n$")
        text = self.succeeds("layout", "show", path, "--rank", "3")
        self.assertIn("\n  model.layers.0.self_attn.qkv_proj.weight BF16 [128, 64]\n"
                      "    [64:128, 0:64] model.layers.0.self_attn.q_proj.weight of [128, 64]\n",
                      text)
        self.assertNotIn("ranks 0", text)

    def test_check_names_rank_tensor_and_box(self):
        path = self.save("tp=2")
        self.assertIn("sound as a destination: 2 ranks", self.succeeds("layout", "check", path))
        layout = json.loads(path.read_text())
        embedding = layout["ranks"][1]["tensors"][0]
        embedding["shape"][0] += 1
        path.write_text(json.dumps(layout))
        done = banyan("layout", "check", path)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"rank 1: local tensor \"{embedding['name']}\" of a destination: [128:129, "
                      "0:64] belongs to no piece", done.stderr)
        self.succeeds("layout", "check", path, "--as", "source")
        done = banyan("reshard", "--model", self.model, "--from", "tp=1", "--to", path)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("[128:129, 0:64] belongs to no piece", done.stderr)
        embedding["padding"] = [{"start": [128, 0], "extent": [1, 64]}]
        path.write_text(json.dumps(layout))
        self.succeeds("reshard", "--model", self.model, "--from", "tp=1", "--to", path)

    def test_mistakes_are_reported(self):
        broken = self.folder / "broken.json"
        broken.write_text('{"format": "banyan.layout", "version": 1, "ranks": [{}]}')
        plan = self.folder / "plan.json"
        plan.write_text('{"gpus": []}')
        for arguments, part, code in [
                (["check", broken], 'broken.json: ranks[0] has no "ranks"', 1),
                (["show", plan], "seems to be a plan, where a layout file is expected", 1),
                (["check", self.folder / "none.json"], "there is no file", 1),
                (["save", "--model", self.model], "--out FILE.json is missing", 2),
                (["save", "--model", self.model, "-o", self.folder / "x.json"],
                 "a --spec", 1),
                (["save", "--model", self.model, "--spec", "tp=3", "-o", self.folder / "x.json"],
                 "", 1),
                (["learn", "--model", self.folder], "--engine is missing: there is vllm", 2),
                (["learn", "--engine", "vllm"], "--model FOLDER is missing", 2),
                (["learn", "--engine", "vlm", "--model", self.folder], "vllm", 2),
                (["sort"], 'there is no command "sort"', 2),
                (["check"], "which layout file: FILE.json", 2)]:
            done = banyan("layout", *arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
            self.assertIn(part, done.stderr)
        self.assertFalse((self.folder / "x.json").exists())


if __name__ == "__main__":
    if not BANYAN.exists():
        print("skipped: the command line is not built")
        sys.exit(77)
    result = unittest.main(argv=[sys.argv[0], "-v"], exit=False).result
    sys.exit(not result.wasSuccessful() or (77 if result.skipped else 0))
