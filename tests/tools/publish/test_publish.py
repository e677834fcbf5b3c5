"""banyan publish and banyan subscribe: folders of checkpoints as versions between processes."""

import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import cluster
from publish_case import BANYAN, PublishCase, safetensors


class Publish(PublishCase):
    def all_types(self):
        tensors = {}
        for dtype, size in safetensors.BYTES.items():
            for i, shape in enumerate(([], [0, 3], [self.draw.randint(1, 9000)],
                                       [self.draw.randint(1, 40), 3, self.draw.randint(1, 40)])):
                tensors[f"{dtype}.{i}"] = (dtype, shape,
                                           self.draw.randbytes(math.prod(shape) * size))
        return tensors

    def test_a_checkpoint_that_is_replaced_becomes_versions(self):
        tensors = self.all_types()
        for name in [name for name, (_, _, data) in tensors.items() if not data]:
            self.assertEqual(tensors[name][1], [0, 3])
        files = {"config__json": b'{"model_type": "small"}', "tokenizer__model": os.urandom(3000)}
        self.replace(tensors, self.source, 3, **files)
        publisher = self.publish("--watch", "--settle", "0.2", "--compress", "off")
        subscriber = self.subscribe(publisher.address, "--versions", "3")
        first = subscriber.next()
        self.assertTrue(first["whole"])
        self.assert_written(first, tensors)
        versions = [publisher.next()]
        self.assertEqual(versions[0]["changed"], versions[0]["elements"])
        for _ in range(2):
            before, tensors = tensors, {
                name: self.change({name: tensor}, 0.01)[name] if tensor[2] else tensor
                for name, tensor in tensors.items()}
            old = self.folder / "before"
            shutil.rmtree(old, ignore_errors=True)
            shutil.copytree(self.source, old)
            self.replace(tensors, self.source, 2, **files)
            line = subscriber.next()
            self.assertFalse(line["whole"])
            self.assertGreater(line["version"], versions[-1]["version"])
            self.assert_written(line, tensors)
            versions.append(publisher.next())
            self.assertEqual(versions[-1]["version"], line["version"])
            diff = json.loads(self.banyan("diff", old, self.source, "--json").stdout)
            self.assertEqual((versions[-1]["changed"], line["bytes"]),
                             (diff["changed"], diff["delta_bytes"]))
            self.assertEqual(self.banyan("diff", self.source, line["path"]).returncode, 0)
            for name, data in files.items():
                self.assertEqual((pathlib.Path(line["path"]) / name.replace("__", ".")).read_bytes(),
                                 data)
        self.assertEqual(subscriber.end(), (0, ""))
        self.assertEqual(publisher.stop(), (0, ""))
        self.assertEqual(len(list(self.out.iterdir())), 3)

    def test_folders_of_steps_have_the_versions_of_their_names(self):
        tensors = {step: self.model(layers=1) for step in (7, 100, 250, 300)}
        self.replace(tensors[7], self.source / "step_7")
        self.replace(tensors[100], self.source / "step_000100")
        for name in ("tmp-checkpoint-900", ".step_000901", "step_902.tmp", "best"):
            self.replace(tensors[7], self.source / name)
        publisher = self.publish("--watch", "--settle", "0.2", "--kept", 1, "--patience", 60)
        subscriber = self.subscribe(publisher.address)
        self.assert_written(subscriber.next(), tensors[100], 100)
        self.replace(tensors[300], self.source / "checkpoint-300")
        self.assert_written(subscriber.next(), tensors[300], 300)
        self.replace(tensors[250], self.source / "step_000250")  # too late
        (self.source / "step_000400").mkdir()  # empty
        time.sleep(1)
        self.assertEqual([publisher.next()["version"], publisher.next()["version"]], [100, 300])
        self.assertEqual(subscriber.stop(), (0, ""))
        self.assertEqual(publisher.stop(), (0, ""))
        self.assertEqual((subscriber.printed, publisher.printed), ([], []))
        self.assertEqual(sorted(path.name for path in self.out.iterdir()),
                         ["version-00000100", "version-00000300"])

    def test_tensors_are_published_in_another_type(self):
        def floats(bits):
            """Float32 tensors whose bf16 is `bits`."""
            return b"".join(struct.pack("<I", value << 16 | self.draw.randrange(0x8000))
                            for value in bits)
        bits = [self.draw.randrange(0x3c00, 0x4100) for _ in range(9000)]
        halves = [float(self.draw.randrange(-256, 256)) for _ in range(300)]
        kept = {"index": ("I64", [40], self.draw.randbytes(320)),
                "norm": ("BF16", [50], self.draw.randbytes(100))}
        bf16 = {"half": ("BF16", [3, 100], b"".join(struct.pack("<f", value)[2:] for value in halves)),
                **kept}
        half = struct.pack(f"<{len(halves)}e", *halves)
        publisher = None
        for step in (1, 2, 3):
            if step == 3:
                for i in self.draw.sample(range(len(bits)), 50):
                    bits[i] ^= 1
            self.replace({"w": ("F32", [90, 100], floats(bits)), "half": ("F16", [3, 100], half),
                          **kept}, self.source / f"step_{step}")
            if not publisher:
                publisher = self.publish("--watch", "--settle", "0.2", "--cast", "bf16",
                                         "--compress", "always")
                subscriber = self.subscribe(publisher.address)
            line = subscriber.next()
            self.assert_written(line, {"w": ("BF16", [90, 100], struct.pack("<9000H", *bits)),
                                       **bf16}, step)
            self.assertEqual(publisher.next()["changed"], {1: 9390, 2: 0, 3: 50}[step])
            self.assertEqual(line["bytes"] == 0, step == 2)
            if step == 1:  # exponents of few values
                self.assertLess(line["bytes"], 2 * 9300 * 3 // 4)
        self.assertEqual(subscriber.stop(), (0, ""))
        self.assertEqual(publisher.stop(), (0, ""))

    def test_versions_are_published_again(self):
        tensors = self.model(layers=1)
        self.replace(tensors, self.source / "step_1")
        publisher = self.publish("--watch", "--settle", "0.2")
        for to in ([], ["--to", "tp=2,packing=vllm"]):
            between = self.folder / f"between{len(to)}"
            subscriber = self.subscribe(publisher.address, *to, out=between)
            subscriber.next()
            self.source = between
            relay = self.publish("--watch", "--settle", "0.2")
            last = self.subscribe(relay.address)
            self.assert_written(last.next(), tensors, relay.next()["version"])
            self.source = self.folder / "in"
            tensors = self.change(tensors)
            step = publisher.next()["version"] + 1
            self.replace(tensors, self.source / f"step_{step}")
            self.assertEqual(subscriber.next()["version"], step)
            line = last.next()
            self.assertFalse(line["whole"])
            self.assert_written(line, tensors, step)
            for service in (relay, last, subscriber):
                self.assertEqual(service.stop(), (0, ""))

    def test_a_link_that_is_moved_to_the_next_step(self):
        tensors = {step: self.model(layers=1) for step in (5, 6)}
        for step in tensors:
            self.replace(tensors[step], self.folder / f"iter_000000{step}")
        self.source.rmdir()
        self.source.symlink_to("iter_0000005")
        publisher = self.publish("--watch", "--settle", "0.2")
        subscriber = self.subscribe(publisher.address)
        self.assert_written(subscriber.next(), tensors[5], 5)
        (self.folder / "link").symlink_to("iter_0000006")
        (self.folder / "link").rename(self.source)
        self.assert_written(subscriber.next(), tensors[6], 6)
        (self.folder / "link").symlink_to("iter_0000005")
        (self.folder / "link").rename(self.source)
        publisher.wait_for_error("its step is not above version 6")

    def test_layouts_are_those_of_reshard(self):
        tensors = self.model(layers=2)
        self.replace(tensors, self.source / "step_1")
        publisher = self.publish("--watch", "--settle", "0.2", "--name", "policy",
                                 before=(BANYAN, "launch", "-n", "3"))
        self.assertEqual(publisher.next()["elements"] > 0, True)
        subscribers = {to: self.subscribe(publisher.address, "--to", to, "--name", "policy", "--verify",
                                          out=self.folder / f"out {to}")
                       for to in ("tp=4,packing=vllm", "pp=2,tp=2,packing=megatron", "fsdp=3", "tp=1")}
        whole = self.subscribe(publisher.address, "--name", "policy")
        for step in (1, 2):
            if step == 2:
                tensors = self.change(tensors)
                self.replace(tensors, self.source / "step_2", 2)
            self.assert_written(whole.next(), tensors, step)
            for to, subscriber in subscribers.items():
                line = subscriber.next()
                self.assertEqual((line["version"], line["whole"]), (step, step == 1))
                wanted = self.folder / f"wanted {to} {step}"
                self.succeed("reshard", "--in", self.source / f"step_{step}", "--out", wanted, "--to", to)
                for path in wanted.rglob("*.safetensors"):
                    other = pathlib.Path(line["path"]) / path.relative_to(wanted)
                    self.assertEqual(safetensors.read(other), safetensors.read(path))
                self.assertEqual(self.banyan("diff", wanted, line["path"]).returncode, 0)
        for subscriber in (*subscribers.values(), whole):
            self.assertEqual(subscriber.stop()[0], 0)
        self.assertEqual(publisher.stop()[0], 0)

    def test_more_ranks_than_tensors(self):
        tensors = {"a": ("F32", [3], self.draw.randbytes(12)), "b": ("U8", [], b"x")}
        self.replace(tensors, self.source)
        publisher = self.publish(before=(BANYAN, "launch", "-n", "4"))
        subscriber = self.subscribe(publisher.address, "--once", "--to", "fsdp=3", "--rules",
                                    self.write_rules("a\n    replicate\nb\n    replicate\n"))
        self.assertEqual(subscriber.next()["whole"], True)
        self.assertEqual(subscriber.end(), (0, ""))
        # A launcher starts the ranks of a subscriber, too.
        subscriber = self.subscribe(publisher.address, "--once", out=self.folder / "other",
                                    before=(BANYAN, "launch", "-n", "1"))
        self.assertEqual(safetensors.read_folder(pathlib.Path(subscriber.next()["path"])), tensors)
        self.assertEqual(subscriber.end()[0], 0)

    def write_rules(self, text):
        path = self.folder / "my.rules"
        path.write_text(text)
        return path

    # ---- checkpoints that are not complete ----

    def test_a_checkpoint_that_is_being_written_is_not_published(self):
        tensors = {step: self.model(layers=1) for step in (1, 2)}
        self.replace(tensors[1], self.source / "step_1")
        publisher = self.publish("--watch", "--settle", "0.5")
        self.assertEqual(publisher.next()["version"], 1)
        made, target = self.folder / "made", self.source / "step_2"
        safetensors.write_folder(made, tensors[2], 2)
        target.mkdir()
        index = "model.safetensors.index.json"
        first, second = sorted(path.name for path in made.glob("*.safetensors"))
        # One after another: a shard, the index, half of the second shard, and the rest of it.
        shutil.copy(made / first, target)
        time.sleep(0.8)
        shutil.copy(made / index, target)
        publisher.wait_for_error(f"step_2 is not published: there is no file {target}/{second}")
        data = (made / second).read_bytes()
        with open(target / second, "wb", buffering=0) as file:
            for part in range(0, len(data) // 2, len(data) // 8):
                file.write(data[part:part + len(data) // 8])
                time.sleep(0.1)
            publisher.wait_for_error(second + ": ")
            self.assertEqual(publisher.printed, [])
            file.write(data[file.tell():])
        line = publisher.next()
        self.assertEqual(line["version"], 2)
        subscriber = self.subscribe(publisher.address, "--once")
        self.assert_written(subscriber.next(), tensors[2], 2)
        self.assertEqual(len(publisher.errors().splitlines()), 2)

    def test_files_that_are_replaced_one_by_one_wait_for_the_index(self):
        old = self.model(layers=1)
        new = self.change(old)
        self.source.rmdir()
        safetensors.write_folder(self.source, old, 2)
        made = self.folder / "made"
        safetensors.write_folder(made, new, 2)
        publisher = self.publish("--watch", "--settle", "0.2")
        first = publisher.next()
        for path in sorted(made.glob("*.safetensors")):
            path.rename(self.source / path.name)
            time.sleep(0.6)
        publisher.pump(0.1)
        self.assertEqual(publisher.printed, [])
        (made / "model.safetensors.index.json").rename(self.source / "model.safetensors.index.json")
        line = publisher.next()
        self.assertGreater(line["version"], first["version"])
        subscriber = self.subscribe(publisher.address, "--once")
        self.assert_written(subscriber.next(), new, line["version"])

    def test_without_watch_a_damaged_checkpoint_is_an_error(self):
        self.source.rmdir()
        safetensors.write_folder(self.source, self.model(layers=1), 1)
        path = next(self.source.glob("*.safetensors"))
        path.write_bytes(path.read_bytes()[:-1])
        done = self.start(BANYAN, "publish", "--in", self.source).end()
        self.assertEqual(done[0], 1)
        self.assertRegex(done[1], "^banyan publish: .*in is not published: .*model-00001.*\n$")
        shutil.rmtree(self.source)
        self.source.mkdir()
        self.assertEqual(self.start(BANYAN, "publish", "--in", self.source).end(),
                         (1, f"banyan publish: rank 0: {self.source} has no checkpoint\n"))

    def test_a_tensor_that_changes_its_shape_ends_the_publisher(self):
        tensors = self.model(layers=1)
        self.replace(tensors, self.source / "step_1")
        publisher = self.publish("--watch", "--settle", "0.2")
        subscriber = self.subscribe(publisher.address)
        self.assert_written(subscriber.next(), tensors, 1)
        other = dict(tensors)
        other["model.norm.weight"] = ("BF16", [32], bytes(64))
        other["extra"] = ("F32", [1], bytes(4))
        del other["lm_head.weight"]
        self.replace(other, self.source / "step_2")
        code, text = publisher.end()
        self.assertEqual(code, 1)
        for part in ("step_2 is not published: 3 tensors of it are not as in the version before",
                     "model.norm.weight is BF16 [32], and was BF16 [64]", "extra is new: F32 [1]",
                     "lm_head.weight is missing"):
            self.assertIn(part, text)
        # Another publisher with the new model ends the subscriber, with the name.
        port = publisher.address.rpartition(":")[2]
        self.publish("--watch", "--settle", "0.2", listen=f"127.0.0.1:{port}")
        code, text = subscriber.end()
        self.assertEqual(code, 1)
        self.assertRegex(text, "lm_head.weight|model.norm.weight")
        self.assertEqual([path.name for path in self.out.iterdir()], ["version-00000001"])

    # ---- deaths ----

    def test_a_publisher_that_was_killed_is_followed_when_it_is_back(self):
        tensors = self.model(layers=1)
        self.replace(tensors, self.source / "step_1")
        publisher = self.publish("--watch", "--settle", "0.2")
        port = publisher.address.rpartition(":")[2]
        subscriber = self.subscribe(publisher.address, "--to", "tp=2,packing=vllm")
        self.assertEqual(subscriber.next()["version"], 1)
        for step in (2, 3):
            publisher.process.kill()
            publisher.close()
            self.replace(self.change(tensors), self.source / f"step_{step}")
            publisher = self.publish("--watch", "--settle", "0.2", listen=f"127.0.0.1:{port}")
            line = subscriber.next()
            self.assertEqual((line["version"], line["whole"]), (step, True))
        self.replace(self.change(tensors), self.source / "step_9")
        line = subscriber.next()
        self.assertEqual((line["version"], line["whole"]), (9, False))
        self.assertEqual(self.banyan("diff", self.source / "step_9", line["path"]).returncode, 0)
        self.assertEqual(subscriber.stop()[0], 0)

    def test_a_subscriber_that_was_killed_leaves_whole_versions_alone(self):
        tensors = {step: self.model(layers=2) for step in range(1, 8)}
        self.replace(tensors[1], self.source / "step_1")
        publisher = self.publish("--watch", "--settle", "0.1")
        for step in range(1, 8):
            if step > 1:
                self.replace(tensors[step], self.source / f"step_{step}")
            subscriber = self.subscribe(publisher.address, "--keep", "2")
            time.sleep(self.draw.random() * 1.5)
            subscriber.process.kill()
            subscriber.close()
            for path in self.out.glob("version-*"):
                self.assertEqual(safetensors.read_folder(path), tensors[int(path.name[8:])])
        subscriber = self.subscribe(publisher.address, "--once", "--keep", "2")
        self.assert_written(subscriber.next(), tensors[7], 7)
        self.assertEqual(subscriber.end()[0], 0)
        self.assertEqual([path.name for path in self.out.iterdir() if path.name[0] == "."], [])
        self.assertLessEqual(len(list(self.out.iterdir())), 2)
        # A version that is there already is written again, and replaces the folder.
        marker = self.out / "version-00000007/mine"
        marker.write_text("")
        subscriber = self.subscribe(publisher.address, "--once")
        self.assert_written(subscriber.next(), tensors[7], 7)
        self.assertEqual((subscriber.end()[0], marker.exists()), (0, False))

    def test_old_versions_are_removed(self):
        tensors = self.model(layers=1)
        self.replace(tensors, self.source / "step_1")
        publisher = self.publish("--watch", "--settle", "0.1")
        self.out.mkdir()
        for name in ("version-mine", "other", "version-00000001.txt"):
            (self.out / name).mkdir()
        kept = {path.name for path in self.out.iterdir()}
        subscriber = self.subscribe(publisher.address, "--keep", "2", "--versions", "4")
        for step in range(1, 5):
            if step > 1:
                self.replace(self.change(tensors), self.source / f"step_{step}")
            self.assertEqual(subscriber.next()["version"], step)
        self.assertEqual(subscriber.end(), (0, ""))
        self.assertEqual({path.name for path in self.out.iterdir()} - kept,
                         {"version-00000003", "version-00000004"})

    # ---- refusals ----

    def assert_ends(self, service, code, part):
        ended, text = service.end()
        self.assertEqual(ended, code, text)
        self.assertIn(part, text)
        self.assertRegex(text.splitlines()[-1], "^banyan (publish|subscribe): ")

    def test_what_ends_with_a_message(self):
        self.replace(self.model(layers=1), self.source)
        publisher = self.publish("--name", "policy")
        at = publisher.address
        self.assert_ends(self.subscribe(at, secret="f" * 32, *["--name", "policy"]), 1, "secret")
        self.assert_ends(self.subscribe(at, secret=None), 1, "BANYAN_SECRET is not set")
        self.assert_ends(self.start(BANYAN, "publish", "--in", self.source, secret=None), 1,
                         "BANYAN_SECRET is not set")
        self.assert_ends(self.subscribe(at, "--name", "value"), 1, "policy")
        self.assert_ends(self.start(BANYAN, "publish", "--in", self.source, "--listen", at), 1,
                         at.rpartition(":")[2])
        self.assert_ends(self.subscribe(at, "--name", "policy", "--to", "tp=3,packing=vllm"), 1,
                         "do not divide over 3 ranks")
        self.assert_ends(self.subscribe(at, "--to", "tp=3,no=4"), 2, "no")
        self.assert_ends(self.subscribe(at, out=self.folder / "no/out"), 1, "cannot make")
        self.assert_ends(self.start(BANYAN, "publish", "--in", self.folder / "none"), 2, "there is no")
        self.assert_ends(self.start(BANYAN, "subscribe", "--at", at), 2, "--out DIR is missing")
        self.assert_ends(self.start(BANYAN, "publish"), 2, "--in DIR is missing")
        self.assert_ends(self.start(BANYAN, "publish", "--in", self.source, "--kept", 0), 2, "--kept")
        nobody = self.subscribe("127.0.0.1:1", "--timeout", "12")
        nobody.wait_for_error("nothing is published at 127.0.0.1:1 yet; waiting")
        self.assert_ends(nobody, 1, "no version came from 127.0.0.1:1 in 12 s")
        first = self.subscribe(at, "--name", "policy")
        self.assertTrue(first.next()["whole"])
        self.assert_ends(self.subscribe(at, "--name", "policy"), 1, "another process is writing ")
        self.assertEqual(publisher.stop()[0], 0)

    def need_network(self):
        if not (BANYAN.parents[1] / "lib/libbanyan_ucx.so").exists():
            self.skipTest("this build has no module ucx, which carries tensors between machines")

    def test_a_disk_that_is_full_ends_the_subscriber(self):
        self.need_network()  # a process with its own mounts is a machine of its own
        if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
            self.skipTest("a file system cannot be mounted here")
        self.replace(self.model(layers=2), self.source)
        publisher = self.publish()
        self.out.mkdir()
        mounting = 'mount -t tmpfs -o size=100k tmpfs "$1" && shift && exec "$@"'
        subscriber = self.subscribe(publisher.address,
                                    before=("unshare", "-rm", "sh", "-c", mounting, "sh", self.out))
        self.assert_ends(subscriber, 1, "the disk is full")

    def test_versions_between_machines(self):
        self.need_network()
        try:
            with cluster.machines() as (head, second):
                tensors = self.model(layers=1)
                self.replace(tensors, self.source / "step_1")
                publisher = self.publish("--watch", "--settle", "0.2", listen=":0", inside=head.inside)
                self.assertTrue(publisher.address.startswith("10.77.3.1:"))
                subscriber = self.subscribe(publisher.address, "--versions", "2", inside=second.inside)
                self.assert_written(subscriber.next(), tensors, 1)
                tensors = self.change(tensors)
                self.replace(tensors, self.source / "step_2")
                line = subscriber.next()
                self.assertFalse(line["whole"])
                self.assert_written(line, tensors, 2)
                self.assertEqual(subscriber.end()[0], 0)
                publisher.close()
        except cluster.Skipped as reason:
            self.skipTest(str(reason))


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False).result
    sys.exit(not result.wasSuccessful() or (77 if result.skipped else 0))
