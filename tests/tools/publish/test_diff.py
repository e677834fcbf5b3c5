"""banyan diff: what changed between two checkpoints, compared with a count of its own."""

import json
import math
import os
import pathlib
import random
import re
import struct
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import safetensors
import small_model
from collective_case import CollectiveCase

BLOCK, PART = 4096, 64 * 4096
SEED = int(os.environ.get("TEST_SEED", random.randrange(1 << 30)))


def delta_bytes(changed, elems, size):
    """The bytes of src/publish/delta/stream.h for the changed positions of a tensor."""
    total = 0
    for part in range(0, elems, PART):
        inside = [i for i in changed if part <= i < part + PART]
        for block in range(part, min(part + PART, elems) if inside else part, BLOCK):
            some, here = min(BLOCK, elems - block), [i - block for i in inside
                                                     if block <= i < block + BLOCK]
            gaps, before = 0, 0
            for i in here:
                gaps += (i - before) // 255 + 1
                before = i + 1
            values = min(gaps, (some + 7) // 8) + len(here) * size
            total += 2 + (0 if not here else min(values, some * size))
    return total


class Diff(CollectiveCase):
    def setUp(self):
        super().setUp()
        print(f"TEST_SEED={SEED}")
        self.draw = random.Random(SEED)

    def make(self, name, tensors, shards=1):
        path = self.folder / name
        safetensors.write_folder(path, tensors, shards)
        return path

    def random_tensor(self):
        dtype = self.draw.choice(list(safetensors.BYTES))
        shape = [self.draw.randint(1, 40) for _ in range(self.draw.randint(0, 3))]
        if self.draw.random() < 0.1:
            shape = [0, 3]
        if self.draw.random() < 0.1:
            shape = [self.draw.randint(1, 300), 1000]
        return dtype, shape, self.draw.randbytes(math.prod(shape) * safetensors.BYTES[dtype])

    def change(self, tensor):
        """The tensor with some elements changed in one bit, and their positions."""
        dtype, shape, data = tensor
        size, elems, share = safetensors.BYTES[dtype], math.prod(shape), self.draw.choice(
            [0, 0, 0.001, 0.03, 0.2, 1])
        changed, made = [], bytearray(data)
        for i in range(elems):
            if self.draw.random() < share:
                made[i * size + self.draw.randrange(size)] ^= 1 << self.draw.randrange(8)
                changed.append(i)
        return (dtype, shape, bytes(made)), changed

    def report(self, *words, code):
        done = self.banyan("diff", *words, "--json")
        self.assertEqual((done.returncode, done.stderr), (code, ""))
        return json.loads(done.stdout)

    def test_random_tensors_are_counted_bit_by_bit(self):
        for round in range(4):
            old = {f"t.{i}": self.random_tensor() for i in range(12)}
            new, changed = {}, {}
            for name, tensor in old.items():
                new[name], changed[name] = self.change(tensor)
            names = list(new)
            self.draw.shuffle(names)
            a = self.make(f"a{round}", old, 3)
            b = self.make(f"b{round}", {name: new[name] for name in names}, 2)
            report = self.report(a, b, code=int(any(changed.values())))
            self.assertEqual((report["only_before"], report["only_after"], report["different"]),
                             ([], [], []))
            found = {tensor["name"]: tensor for tensor in report["tensors"]}
            self.assertEqual(set(found), set(old))
            for name, (dtype, shape, data) in old.items():
                elems = math.prod(shape)
                self.assertEqual(found[name], {
                    "name": name, "dtype": dtype, "shape": shape, "elements": elems,
                    "changed": len(changed[name]), "bytes": len(data),
                    "delta_bytes": delta_bytes(changed[name], elems, safetensors.BYTES[dtype])})
            for key in ("elements", "changed", "bytes", "delta_bytes"):
                self.assertEqual(report[key], sum(tensor[key] for tensor in found.values()))

    def test_a_tensor_of_many_slices(self):
        elems = (9 << 20) + 77
        data = bytearray(2 * elems)
        a = self.make("a", {"wide": ("BF16", [elems], bytes(data))})
        changed = sorted({0, PART - 1, PART, (4 << 20) - 1, 4 << 20, elems - 1,
                          *(self.draw.randrange(elems) for _ in range(50))})
        for i in changed:
            data[2 * i] ^= 1
        b = self.make("b", {"wide": ("BF16", [elems], bytes(data))})
        report = self.report(a, b, code=1)
        self.assertEqual((report["changed"], report["delta_bytes"]),
                         (len(changed), delta_bytes(changed, elems, 2)))

    def test_signs_of_zeros_and_bits_of_nans_count(self):
        def floats(*words):
            return "F32", [len(words)], struct.pack(f"<{len(words)}I", *words)

        a = self.make("a", {"x": floats(0, 0x7fc00001, 0x7fc00001, 0x3f800000)})
        b = self.make("b", {"x": floats(0x80000000, 0x7fc00002, 0x7fc00001, 0x3f800000)})
        self.assertEqual(self.report(a, b, code=1)["changed"], 2)
        self.assertEqual(self.report(a, a, code=0)["changed"], 0)

    def test_tensors_that_cannot_be_compared_are_named(self):
        model = small_model.dense(layers=1)
        old = {name: (tensor["dtype"], tensor["shape"], bytes(2 * math.prod(tensor["shape"])))
               for name, tensor in model.items()}
        new = dict(old)
        del new["lm_head.weight"]
        new["extra\x1b[2J"] = ("F32", [2, 2], bytes(16))
        new["model.norm.weight"] = ("F32", [64], bytes(256))
        shape = old["model.embed_tokens.weight"][1]
        new["model.embed_tokens.weight"] = ("BF16", shape[::-1], bytes(2 * math.prod(shape)))
        a, b = self.make("a", old), self.make("b", new)
        report = self.report(a, b, code=1)
        self.assertEqual(report["changed"], 0)
        self.assertEqual([one["name"] for one in report["only_before"]], ["lm_head.weight"])
        self.assertEqual([one["name"] for one in report["only_after"]], ["extra\x1b[2J"])
        self.assertEqual(sorted(report["different"], key=lambda one: one["name"]), [
            {"name": "model.embed_tokens.weight", "before": {"dtype": "BF16", "shape": shape},
             "after": {"dtype": "BF16", "shape": shape[::-1]}},
            {"name": "model.norm.weight", "before": {"dtype": "BF16", "shape": [64]},
             "after": {"dtype": "F32", "shape": [64]}}])
        done = self.banyan("diff", a, b)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertNotIn("\x1b", done.stdout)
        for part in ("1 tensor only in the first:\n  lm_head.weight BF16 [256, 64]\n",
                     "1 tensor only in the second:\n  extra\\x1b[2J F32 [2, 2]\n",
                     "2 tensors with another type or shape:\n",
                     "  model.norm.weight BF16 [64], then F32 [64]\n"):
            self.assertIn(part, done.stdout)

    def test_the_tensors_with_most_changes_come_first(self):
        old = {f"t{i}": ("U8", [100], bytes(100)) for i in range(30)}
        new = {f"t{i}": ("U8", [100], b"\1" * (i + 1) + bytes(99 - i)) for i in range(30)}
        a, b = self.make("a", old), self.make("b", new)
        text = self.banyan("diff", a, b).stdout
        self.assertIn("465 of 3,000 elements changed (15.5 %), in 30 of 30 tensors\n", text)
        listed = re.findall(r"(?m)^ +(\d+) +(\S+) % +\d+ B  (t\d+) U8 \[100\]$", text)
        self.assertEqual(listed, [(f"{i + 1}", f"{i + 1}", f"t{i}") for i in range(29, 9, -1)])
        self.assertIn("and 10 more tensors with changes (--all)\n", text)
        self.assertEqual(len(re.findall(r"  t\d+ U8", self.banyan("diff", a, b, "--all").stdout)), 30)

    def test_files_and_folders_of_ranks_are_read(self):
        model = small_model.dense(layers=2)
        old = {name: (tensor["dtype"], tensor["shape"],
                      self.draw.randbytes(2 * math.prod(tensor["shape"])))
               for name, tensor in model.items()}
        changed = {name: self.change(tensor) for name, tensor in old.items()}
        a = self.make("a", old, 2)
        b = self.make("b", {name: tensor for name, (tensor, _) in changed.items()})
        safetensors.write(self.folder / "b.safetensors",
                          {name: tensor for name, (tensor, _) in changed.items()})
        for name in ("a", "b"):
            self.succeed("reshard", "--in", self.folder / name, "--out", self.folder / f"saved-{name}",
                         "--to", "tp=2,packing=vllm")
        wanted = self.report(a, b, code=int(any(positions for _, positions in changed.values())))
        for other in ("b.safetensors", "saved-b"):
            report = self.report(a, self.folder / other, code=1)
            for key in ("changed", "elements", "bytes", "delta_bytes"):
                self.assertEqual(report[key], wanted[key], (other, key))
        report = self.report(self.folder / "saved-a", b, code=1)
        self.assertEqual({one["name"]: one["changed"] for one in report["tensors"]},
                         {name: len(positions) for name, (_, positions) in changed.items()})
        self.report(self.folder / "saved-a", a, code=0)

    def test_the_picture_has_a_row_for_each_kind_and_a_cell_for_each_layer(self):
        model = small_model.dense(layers=5)
        old = {name: (tensor["dtype"], tensor["shape"], bytes(2 * math.prod(tensor["shape"])))
               for name, tensor in model.items()}
        old["<&>.3"] = ("U8", [1], b"\0")
        new = dict(old)
        name = "model.layers.3.mlp.up_proj.weight"
        new[name] = ("BF16", old[name][1], b"\1\0" * math.prod(old[name][1]))
        a, b, svg = self.make("a", old), self.make("b", new), self.folder / "out.svg"
        self.assertEqual(self.banyan("diff", a, b, "--svg", svg).returncode, 1)
        root = xml.etree.ElementTree.parse(svg).getroot()
        space = "{http://www.w3.org/2000/svg}"
        titles = [title.text for title in root.iter(f"{space}title")]
        self.assertEqual(len(titles), len(old))
        self.assertIn(f"{name}: 6,144 of 6,144 elements (100 %)", titles)
        texts = [text.text for text in root.iter(f"{space}text")]
        for part in ("model.layers.*.mlp.up_proj.weight", "20 %", "<&>.*", "lm_head.weight"):
            self.assertIn(part, texts)
        colours = {group.find(f"{space}title").text: group.find(f"{space}rect").get("fill")
                   for group in root.iter(f"{space}g")}
        self.assertEqual(len(set(colours.values())), 2)

    def test_wrong_arguments_end_with_2(self):
        a = self.make("a", {"x": ("U8", [1], b"\0")})
        broken = self.folder / "broken.safetensors"
        broken.write_bytes((a / "model-00001-of-00001.safetensors").read_bytes()[:-1])
        for words, part in [([a], "wants 2 checkpoints, 1 given"), ([a, a, a], "3 given"),
                            ([a, self.folder / "none"], "there is no "), ([a, broken], "broken.safetensors"),
                            ([a, self.folder], "has no model.safetensors.index.json"),
                            ([a, a, "--svg", self.folder / "no/x.svg"], "cannot write")]:
            self.assert_refused(self.banyan("diff", *words), "banyan diff", part, code=2)
        os.mkfifo(self.folder / "pipe")
        self.assert_refused(self.banyan("diff", self.folder / "pipe", a, timeout=20), "banyan diff",
                            "is a named pipe, not a file", code=2)


if __name__ == "__main__":
    unittest.main()
