"""banyan reshard --in --out: models on disk, whole or not at all."""

import fcntl
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import safetensors
import small_model

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"
MODELS = pathlib.Path(__file__).resolve().parents[2] / "data/models"


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        draw = random.Random(1)
        self.tensors = {
            name: (tensor["dtype"], tensor["shape"],
                   draw.randbytes(math.prod(tensor["shape"]) * safetensors.BYTES[tensor["dtype"]]))
            for name, tensor in small_model.dense().items()}
        self.source = self.folder / "in"
        safetensors.write_folder(self.source, self.tensors, 3)
        self.out = self.folder / "out"

    def reshard(self, *arguments, source=None, **options):
        return subprocess.run([BANYAN, "reshard", "--in", source or self.source, "--out", self.out,
                               *arguments], capture_output=True, text=True, timeout=120, **options)

    def assert_refused(self, done, part, code=1):
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertRegex(done.stderr, "^banyan reshard: .*\n$")
        self.assertIn(part, done.stderr)
        self.assertEqual(list(self.folder.glob("out*")) + list(self.folder.glob(".*")), [])

    def test_a_joined_model_is_the_one_that_was_read(self):
        for source, destination, more in [
                ("tp=1", "tp=1", []), ("tp=2,pp=2", "tp=4", []), ("tp=4", "pp=2", ["--disjoint"]),
                ("tp=2", "tp=4,packing=vllm", ["--memory", "ordinary", "--checksums"]),
                ("fsdp=3", "tp=2,packing=megatron", ["--backend", "pipeline"])]:
            self.out = self.folder / f"out {source} {destination}"
            done = self.reshard("--from", source, "--to", destination, "--join", *more)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, "read .* moved it in .* wrote ")
            self.assertEqual(safetensors.read_folder(self.out), self.tensors)
            self.assertEqual(list(self.folder.glob(".*")), [])

    def test_a_hugging_face_folder_needs_no_source_layout(self):
        done = self.reshard("--to", "tp=2", "--join")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("tp=1 on 1 rank to tp=2 on 2 ", done.stdout)
        self.assertEqual(safetensors.read_folder(self.out), self.tensors)

    def test_the_json_has_the_bytes_read_and_written(self):
        done = self.reshard("--to", "tp=2", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.assertEqual((report["in"], report["from"], report["to"], report["ranks"],
                          report["joined"]), (str(self.source), "tp=1", "tp=2", 2, False))
        whole = sum(len(data) for _, _, data in self.tensors.values())
        self.assertEqual(report["read_bytes"], whole)
        self.assertGreater(report["written_bytes"], whole)  # what ranks have twice
        self.assertGreater(min(report[f"{stage}_seconds"] for stage in ("read", "move", "write")), 0)
        saved, self.out = self.out, self.folder / "whole"
        report = json.loads(self.reshard("--to", "tp=1", "--join", "--json", source=saved).stdout)
        self.assertEqual((report["from"], report["joined"], report["written_bytes"]),
                         ("as saved", True, whole))

    def test_tensors_that_the_packing_lacks_are_counted(self):
        kept = json.loads((MODELS / "qwen3-next.json").read_text())
        tensors = {name: (of["dtype"], of["shape"],
                          bytes(safetensors.BYTES[of["dtype"]] * math.prod(of["shape"])))
                   for name, of in kept["tensors"].items()}
        folder = self.folder / "drafting"
        safetensors.write_folder(folder, tensors, 1)
        (folder / "config.json").write_text(json.dumps(kept["config"]))
        drafts = sum(name.startswith("mtp.") for name in tensors)
        for options, by in ((["--to", "packing=vllm"], "packing=vllm"),
                            (["--to", "tp=2", "--skip", "mtp.**"], "--skip"),
                            (["--to", "packing=vllm", "--skip", "mtp.fc.weight"],
                             "--skip and packing=vllm")):
            with self.subTest(options=options):
                self.out = self.folder / f"out {by}"
                done = self.reshard(*options, source=folder)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout,
                                 rf"\nleft out {drafts} tensors, by {by}: mtp\.\S+, …\n$")
        self.out = self.folder / "counted"
        report = json.loads(self.reshard("--to", "packing=vllm", "--json", source=folder).stdout)
        self.assertEqual(report["left_out"], drafts)
        self.out = self.folder / "whole"
        self.assertNotIn("left out", self.reshard("--to", "tp=2", source=folder).stdout)

    def test_each_rank_writes_its_tensors(self):
        done = self.reshard("--from", "tp=1", "--to", "tp=2,pp=2", "--disjoint")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        index = json.loads((self.out / "banyan.index.json").read_text())
        self.assertTrue(index)
        folders = sorted(path for path in self.out.iterdir() if path.is_dir())
        self.assertEqual(len(folders), 4)
        first, second = (safetensors.read_folder(folder) for folder in folders[:2])
        name = "model.layers.0.mlp.gate_proj.weight"
        dtype, shape, data = self.tensors[name]
        self.assertEqual(first[name], (dtype, [shape[0] // 2, shape[1]], data[:len(data) // 2]))
        self.assertEqual(second[name], (dtype, [shape[0] // 2, shape[1]], data[len(data) // 2:]))

    def test_a_saved_folder_is_read_with_or_without_a_spec(self):
        for saved_as in ("tp=2,pp=2", "tp=4,packing=vllm", "fsdp=3", "tp=2,dp=2,packing=megatron"):
            self.out = saved = self.folder / f"saved {saved_as}"
            done = self.reshard("--from", "tp=1", "--to", saved_as)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for from_spec in ([], ["--from", "tp=2"], ["--from", saved_as, "--disjoint"]):
                self.out = self.folder / f"out {saved_as} {from_spec}"
                done = self.reshard(*from_spec, "--to", "pp=2,tp=2", "--join", source=saved)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual("as saved on " in done.stdout, not from_spec)
                self.assertEqual(safetensors.read_folder(self.out), self.tensors)

    def small_files(self, folder):
        """name → bytes, of all but weights and indexes."""
        return {str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*") if path.is_file()
                and not path.name.endswith((".safetensors", ".index.json"))}

    def test_small_files_go_every_way(self):
        files = {"config.json": json.dumps({"head_dim": 16, "model_type": "qwen3"}).encode(),
                 "generation_config.json": b"{}", "tokenizer.json": random.Random(2).randbytes(3 << 20),
                 "tokenizer_config.json": b'{"chat_template": "\\u001b"}', "vocab.json": b"{}",
                 "special_tokens_map.json": b"{}", "merges.txt": b"a b\n", "chat_template.jinja": b"{{",
                 "additional_chat_templates/tool.jinja": b"{%"}
        for name, data in files.items():
            (self.source / name).parent.mkdir(exist_ok=True)
            (self.source / name).write_bytes(data)
        (self.source / "pytorch_model.bin").write_bytes(b"weights")
        secret = self.folder / "secret"
        secret.write_text("a key")
        (self.source / "link.json").symlink_to("../secret")
        routes = [("saved", self.source, ["--from", "tp=1", "--to", "tp=2,packing=megatron"]),
                  ("again", self.folder / "saved", ["--to", "tp=4,packing=vllm"]),
                  ("joined", self.folder / "again", ["--to", "tp=1", "--join"]),
                  ("at once", self.source, ["--from", "tp=2", "--to", "tp=1", "--join"])]
        for name, source, words in routes:
            self.out = self.folder / name
            done = self.reshard(*words, source=source)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr, "" if source != self.source else
                             f"banyan: warn: {source}/link.json is left out: it is a link out of "
                             "the folder\n")
            self.assertEqual(self.small_files(self.out), files)
            self.assertFalse((self.out / "pytorch_model.bin").exists())
        for name in ("joined", "at once"):
            self.assertEqual(safetensors.read_folder(self.folder / name), self.tensors)
            header = (self.folder / name / "model.safetensors").read_bytes()
            header = json.loads(header[8:8 + int.from_bytes(header[:8], "little")])
            self.assertEqual(header["__metadata__"], {"format": "pt"})

    def test_heads_that_shapes_do_not_tell_survive_a_saved_folder(self):
        # 16 heads and 8 groups of 64 could be 8 heads and 4 groups of 128.
        model = small_model.dense(layers=2, hidden=256, heads=16, key_value_heads=8, head=64)
        tensors = {name: (tensor["dtype"], tensor["shape"], random.Random(name).randbytes(
            math.prod(tensor["shape"]) * safetensors.BYTES[tensor["dtype"]]))
            for name, tensor in model.items() if "q_norm" not in name and "k_norm" not in name}
        source = self.folder / "llama"
        safetensors.write_folder(source, tensors, 1)
        (source / "config.json").write_text(json.dumps(
            {"hidden_size": 256, "num_attention_heads": 16, "num_key_value_heads": 8,
             "head_dim": 64}))
        results = []
        for name, origin, words in [
                ("direct", source, ["--from", "tp=1", "--to", "tp=8,packing=vllm"]),
                ("megatron", source, ["--from", "tp=1", "--to", "tp=2,packing=megatron"]),
                ("through", self.folder / "megatron", ["--to", "tp=8,packing=vllm"]),
                ("joined", self.folder / "megatron", ["--to", "tp=1", "--join"])]:
            self.out = self.folder / name
            done = self.reshard(*words, source=origin)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            results.append({path.parent.name: safetensors.read(path)
                            for path in self.out.rglob("*.safetensors")})
        self.assertEqual(results[0], results[2])
        self.assertEqual(len(results[0]), 8)
        self.assertEqual(safetensors.read_folder(self.folder / "joined"), tensors)

    def test_facts_of_conditions_survive_a_saved_folder(self):
        rules = self.folder / "my.rules"
        rules.write_text("packing mine\nskip mine model.norm.weight when kind = plain unless deep\n"
                         "model.embed_tokens.weight\n    in mine words when depth\ninclude builtin\n")
        (self.source / "config.json").write_text(json.dumps(
            {"model_type": "small", "kind": "plain", "depth": 3, "width": 7, "head_dim": 16}))
        self.out = saved = self.folder / "saved"
        done = self.reshard("--from", "tp=1", "--to", "tp=2", "--rules", rules)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        index = json.loads((saved / "banyan.index.json").read_text())
        self.assertEqual(index["facts"],
                         {"model_type": "small", "kind": "plain", "depth": 3})
        (saved / "config.json").unlink()
        self.out = self.folder / "packed"
        done = self.reshard("--to", "tp=2,packing=mine", "--rules", rules, source=saved)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        names = safetensors.read(self.out / "rank-00000/model.safetensors")
        self.assertIn("words", names)
        self.assertNotIn("model.norm.weight", names)

    def test_an_incomplete_saved_folder_is_refused(self):
        self.out = saved = self.folder / "saved"
        self.assertEqual(self.reshard("--from", "tp=1", "--to", "tp=2").returncode, 0)
        self.out = self.folder / "out"
        index = saved / "banyan.index.json"
        whole = json.loads(index.read_text())

        def refused_with(change, part):
            broken = json.loads(json.dumps(whole))
            change(broken)
            index.write_text(json.dumps(broken))
            self.assert_refused(self.reshard("--to", "tp=1", source=saved), part)

        refused_with(lambda index: index["files"][1]["pieces"].pop(0), "no file has box ")
        refused_with(lambda index: index["files"].pop(), "no file has box ")
        refused_with(lambda index: index.update(version=2), "version")
        refused_with(lambda index: index["files"][0].update(file="loop"), "there is no file")
        (saved / "loop").symlink_to(".")
        refused_with(lambda index: index["files"][0].update(file="loop"), "loop is a folder, not a file")
        (saved / "rank-00001/model.safetensors").unlink()
        refused_with(lambda index: None, "rank-00001/model.safetensors")

    def test_one_file_is_a_model_too(self):
        safetensors.write(self.folder / "one.safetensors", self.tensors)
        done = self.reshard("--from", "tp=1", "--to", "tp=2", "--join",
                            source=self.folder / "one.safetensors")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(safetensors.read_folder(self.out), self.tensors)

    def test_a_folder_that_is_taken_is_refused_before_any_work(self):
        self.out.mkdir()
        (self.out / "mine").write_text("keep")
        for more in ([], ["--join"]):
            done = self.reshard("--from", "tp=1", "--to", "tp=2", *more)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("out exists already", done.stderr)
        self.assertEqual([path.name for path in self.out.iterdir()], ["mine"])
        self.out = self.folder / "out/mine/out"
        done = self.reshard("--from", "tp=1", "--to", "tp=2")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertNotIn("exists already", done.stderr)
        self.assertIn("out/mine", done.stderr)

    def test_failures_leave_nothing(self):
        specs = ["--from", "tp=1", "--to", "tp=2"]
        broken = self.folder / "broken.safetensors"
        whole = next(self.source.glob("*.safetensors")).read_bytes()
        broken.write_bytes(whole[:len(whole) // 2])
        for more in ([], ["--join"]):
            self.assert_refused(self.reshard(*specs, *more, source=broken), "broken.safetensors")
            self.assert_refused(self.reshard(*specs, *more, source=self.folder / "none"), "none")
            self.assert_refused(self.reshard("--from", "tp=1", "--to", "tp=7", *more),
                                f"--to: {self.source}: tensor ")
        for arguments, part in [(["--iters", "3"], "--iters"),
                                (["--model", "x"], "--model FILE"), (["--svg", "x"], "--svg")]:
            self.assert_refused(self.reshard(*specs, *arguments), part, 2)

    def test_the_parts_of_the_form_need_each_other(self):
        for arguments, part in [(["--in", "x"], "needs --out"), (["--out", "x"], "needs --in"),
                                (["--join"], "--join needs"),
                                (["--in", "x", "--out", "y"], "--to SPEC is missing")]:
            done = subprocess.run([BANYAN, "reshard", *arguments], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(part, done.stderr)

    def test_a_full_disk_gives_a_message_and_leaves_nothing(self):
        # Files end at 64 MiB, which is more than the ranks' shared memory needs.
        most = 64 << 20
        wide = self.folder / "wide.safetensors"
        safetensors.write(wide, {"lm_head.weight": ("BF16", [300000, 128], bytes(300000 * 256))})

        def small_files_only():
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        for more in ([], ["--join"]):
            done = self.reshard("--from", "tp=1", "--to", "tp=1", "--memory", "ordinary", *more,
                                source=wide, preexec_fn=small_files_only)
            self.assert_refused(done, "File too large")

    def test_a_disk_that_two_ranks_fill_is_said_to_be_full_of_both(self):
        if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
            self.skipTest("a file system cannot be mounted here")
        wide = self.folder / "wide.safetensors"
        safetensors.write(wide, {"lm_head.weight": ("BF16", [8192, 64], bytes(8192 * 128))})
        disk = self.folder / "disk"
        disk.mkdir()
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=800k tmpfs "$1" && shift && exec "$@"',
             "sh", disk, BANYAN, "reshard", "--in", wide, "--out", disk / "out", "--from", "tp=1",
             "--to", "tp=2", "--memory", "ordinary"], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        said = re.search(r"the disk is full: .*/out/rank-0000[01]/model.safetensors \(one of 2 files with "
                         r"1048576 bytes of tensors together\) takes (\d+) bytes, (.*)\n", done.stderr)
        self.assertTrue(said, done.stderr)
        free = int(re.search(r"(\d+) are free", said[2])[1])
        if free >= int(said[1]):
            self.assertIn("others write there at the same time", said[2])

    def test_control_characters_of_files_do_not_reach_the_terminal(self):
        for name in ("a\x1b[2Jb", "a\nbanyan: all is well", "a\x9bb"):
            path = self.folder / "named.safetensors"
            safetensors.write(path, {name: ("F32", [1], b"1234")})
            done = self.reshard("--from", "tp=1", "--to", "tp=1", source=path)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, r"^[^\x00-\x1f\x7f-\x9f]*\n$")
            self.assertRegex(done.stderr, r"a\\x(1b|0a|c2\\x9b)")

    def test_the_work_folder_of_a_killed_join_is_taken_over(self):
        command = [BANYAN, "reshard", "--in", self.source, "--out", self.out, "--from", "tp=2",
                   "--to", "tp=2", "--join"]
        work = self.folder / ".banyan-out.work"
        killed = 0
        for delay in (0, 0.02, 0.05, 0.1):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as run:
                while not work.exists() and run.poll() is None:
                    time.sleep(0.001)
                time.sleep(delay)
                killed += work.exists()
                run.kill()
            # The command's keeper removes the folder meanwhile, so one listing has to do.
            hidden = [path.name for path in self.folder.glob(".*")]
            self.assertEqual([name for name in hidden if not name.startswith(".banyan-out.")], [])
            if self.out.exists():
                self.assertEqual(safetensors.read_folder(self.out), self.tensors)
                shutil.rmtree(self.out)
        self.assertGreater(killed, 0)
        done = self.reshard("--from", "tp=2", "--to", "tp=2", "--join")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(safetensors.read_folder(self.out), self.tensors)
        self.assertEqual(list(self.folder.glob(".*")), [])

    def test_a_join_that_another_process_is_at_is_left_alone(self):
        work = self.folder / ".banyan-out.work"
        work.mkdir()
        (work / "saved").mkdir()
        held = os.open(work, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        done = self.reshard("--from", "tp=1", "--to", "tp=1", "--join")
        os.close(held)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr, f"banyan reshard: another process is writing {self.out}: "
                         f"it has {work}\n")
        self.assertTrue((work / "saved").exists())

    def test_a_folder_that_cannot_be_written_is_named(self):
        self.out = self.folder / "nowhere/out"
        for more in ([], ["--join"]):
            self.assert_refused(self.reshard("--from", "tp=1", "--to", "tp=2", *more), "nowhere")


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], "-v"], exit=False).result
    sys.exit(not result.wasSuccessful() or (77 if result.skipped else 0))
