"""A file of one kind that is given where another is expected is named for what it seems to be."""

import json
import os
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import safetensors
import small_case
import small_model
from collective_case import CollectiveCase

NAMES = {"plan": "a plan", "topology": "a topology", "model": "a model's list of tensors",
         "case": "a case of banyan reshard verify", "tuning": "a table of banyan tune",
         "mixed": "a table of autotuned mixed collectives", "trace": "a trace",
         "weights": "the index in a checkpoint's folder"}


class WrongFiles(CollectiveCase):
    def setUp(self):
        super().setUp()
        self.paths = {kind: self.folder / f"{kind}.json" for kind in NAMES}
        # It has integers that no other document can have.
        self.succeed("algo", "emit", "allreduce_ring", "-n", 2, "-o", self.paths["plan"])
        self.assertIn("18446744073709551615", self.paths["plan"].read_text())
        self.paths["topology"].write_text(self.succeed("topo", "show", "h200x4", "--json"))
        self.succeed("tune", "-n", 2, "-s", "64:64", "-c", "broadcast", "-o", self.paths["tuning"])
        self.succeed("mixed", "--local-tp", 2, "--rows", "1:1", "--hidden", 64, "--max-bytes", "1K",
                     "--save-autotune", self.paths["mixed"])
        self.succeed("run", self.paths["plan"], "-s", "64:64", "--trace", self.paths["trace"])
        self.paths["model"].write_text(json.dumps(small_model.dense()))
        self.paths["case"].write_text(json.dumps(small_case.case()))
        self.paths["weights"].write_text('{"metadata": {}, "weight_map": {"a": "b.safetensors"}}')
        self.added = self.folder / "added.json"

    def readers(self, path):
        """Commands that read each kind of file."""
        specs = ["--from", "tp=1", "--to", "tp=2"]
        shutil.copy(path, self.added)
        return [("plan", path, ["check", path]), ("plan", path, ["run", path]),
                ("plan", path, ["plan", "show", path]),
                ("topology", path, ["topo", "show", path]),
                ("topology", path, ["simulate", self.paths["plan"], "-t", path]),
                ("model", path, ["reshard", "--model", path, *specs]),
                ("model", path, ["plan-scale", "--model", path, *specs]),
                ("case", path, ["simulate", "--reshard", path, "-t", "h200x4"]),
                ("mixed", path, ["mixed", "--local-tp", 2, "--autotune", path]),
                ("tuning", self.added, ["tune", "-n", 2, "-o", self.added])]

    def assert_told(self, words, part):
        done = self.banyan(*words)
        self.assertIn(done.returncode, [1, 2])
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, f"^banyan {words[0]}.*: .*\n$")
        self.assertIn(part, done.stderr)

    def test_every_reader_names_the_kind_of_a_wrong_file(self):
        for kind, path in self.paths.items():
            for expected, named, words in self.readers(path):
                if expected != kind:
                    with self.subTest(kind=kind, words=words):
                        self.assert_told(words, f"{named} seems to be {NAMES[kind]}, "
                                                f"where {NAMES[expected]} is expected")

    def test_every_reader_reads_its_own(self):
        for expected, path, words in [
                ("plan", self.paths["plan"], ["check"]), ("topology", self.paths["topology"], ["topo", "show"]),
                ("model", self.paths["model"], ["plan-scale", "--from", "tp=1", "--to", "tp=2", "--model"]),
                ("case", self.paths["case"], ["reshard", "verify"])]:
            self.succeed(*words, path)

    def test_a_pipe_that_nobody_reads_ends_the_command(self):
        fifo = self.folder / "unread"
        os.mkfifo(fifo)
        for words in (["plan", "view", self.paths["plan"], "-o", fifo],
                      ["layout", "save", "--model", self.paths["model"], "--spec", "tp=2", "-o", fifo]):
            done = self.banyan(*words, timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("unread", done.stderr)
            self.assertIn("No such device or address", done.stderr)

    def test_a_pipe_in_place_of_a_file_is_named_at_once(self):
        def pipe(path):
            os.mkfifo(path)
            return path

        specs = ["--from", "tp=1", "--to", "tp=2"]
        fifo = pipe(self.folder / "fifo")
        shard = self.folder / "shard"
        shard.mkdir()
        (shard / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "b.safetensors"}}')
        pipe(shard / "b.safetensors")
        whole = {"one": "model.safetensors", "many": "model.safetensors.index.json",
                 "saved": "banyan.index.json"}
        for folder, name in whole.items():
            (self.folder / folder).mkdir()
            pipe(self.folder / folder / name)
        config = self.folder / "config"
        config.mkdir()
        safetensors.write(config / "model.safetensors", {"model.norm.weight": ("F32", [1], b"1234")})
        pipe(config / "config.json")
        out = ["--out", self.folder / "out"]
        words_of = [
            ["check", fifo], ["run", fifo], ["plan", "show", fifo], ["plan", "view", fifo, "-o", "-"],
            ["plan", "view", self.paths["plan"], "--trace", fifo, "-o", "-"],
            ["topo", "show", fifo], ["simulate", self.paths["plan"], "-t", fifo],
            ["simulate", fifo, "-t", "h200x4"], ["simulate", "--reshard", fifo, "-t", "h200x4"],
            ["reshard", "verify", fifo], ["plan-scale", "--model", fifo, *specs],
            ["reshard", "--model", fifo, *specs],
            ["reshard", "--model", self.paths["model"], "--rules", fifo, *specs],
            ["mixed", "--local-tp", 2, "--autotune", fifo], ["tune", "-n", 2, "-o", fifo],
            ["reshard", "--model", config, *specs],
            *(["reshard", "--in", self.folder / name, *out, *specs]
              for name in ["fifo", "shard", *whole, "config"])]
        for words in words_of:
            with self.subTest(words=words):
                done = self.banyan(*words, timeout=20)
                self.assertIn(done.returncode, [1, 2])
                self.assertIn(" is a named pipe, not a file\n", done.stdout + done.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_unknown_content_is_refused_by_its_reader(self):
        path = self.write({"a": [1]})
        for words, part in [(["check", path], 'has no "gpus"'), (["topo", "show", path], 'key "a"'),
                            (["reshard", "--model", path, "--from", "tp=1", "--to", "tp=2"],
                             'tensor "a" is not described by an object')]:
            self.assert_told(words, part)


if __name__ == "__main__":
    done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
    sys.exit(not done.result.wasSuccessful())
