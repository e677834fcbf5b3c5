"""Base of the tests of publish and subscribe: random checkpoints, and commands that run in the background."""

import json
import os
import pathlib
import random
import math
import selectors
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import safetensors
import small_model
from collective_case import BANYAN, CollectiveCase

SECRET = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
SEED = int(os.environ.get("TEST_SEED", random.randrange(1 << 30)))
WAIT = 120


class Service:
    """A command in the background that prints JSON objects, one a line."""

    def __init__(self, words, *, inside=(), secret=SECRET):
        environment = {key: value for key, value in os.environ.items() if key != "BANYAN_SECRET"}
        variables = [f"BANYAN_SECRET={secret}"] if secret else []
        self.words = list(map(str, words))
        self.process = subprocess.Popen([*inside, "env", *variables, *self.words],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=environment)
        self.lines = {self.process.stdout: b"", self.process.stderr: b""}
        self.printed = []
        self.selector = selectors.DefaultSelector()
        for stream in self.lines:
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, selectors.EVENT_READ)

    def pump(self, seconds):
        """Read what there is. False once both streams have ended."""
        for key, _ in self.selector.select(seconds):
            data = key.fileobj.read()
            if data == b"":
                self.selector.unregister(key.fileobj)
            self.lines[key.fileobj] += data or b""
        *whole, self.lines[self.process.stdout] = self.lines[self.process.stdout].split(b"\n")
        self.printed += [json.loads(line) for line in whole]
        return bool(self.selector.get_map())

    def next(self, seconds=WAIT):
        """The next object."""
        end = time.monotonic() + seconds
        while not self.printed:
            if time.monotonic() > end or not self.pump(0.1):
                self.pump(0)
                if self.printed:
                    break
                raise AssertionError(f"{self.words}: no line, but {self.errors()!r}")
        return self.printed.pop(0)

    def errors(self):
        return self.lines[self.process.stderr].decode()

    def wait_for_error(self, part, seconds=WAIT):
        end = time.monotonic() + seconds
        while part not in self.errors():
            if time.monotonic() > end or not self.pump(0.1):
                raise AssertionError(f"{self.words}: {part!r} is not in {self.errors()!r}")

    def end(self, seconds=WAIT):
        """Wait for the end; the exit code and what was on stderr."""
        limit = time.monotonic() + seconds
        while self.pump(0.1):
            if time.monotonic() > limit:
                raise AssertionError(f"{self.words} does not end: {self.errors()!r}")
        code = self.process.wait(seconds)
        return code, self.errors()

    def stop(self):
        """End it as a user does."""
        self.process.terminate()
        return self.end()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in self.lines:
            stream.close()


class PublishCase(CollectiveCase):
    def setUp(self):
        super().setUp()
        print(f"TEST_SEED={SEED}")
        self.draw = random.Random(SEED)
        self.source, self.out = self.folder / "in", self.folder / "out"
        self.source.mkdir()

    def start(self, *words, **how):
        service = Service(words, **how)
        self.addCleanup(service.close)
        return service

    def publish(self, *words, listen="127.0.0.1:0", before=(), **how):
        """Start a publisher. Its address is that of its first line."""
        service = self.start(*before, BANYAN, "publish", "--in", self.source, "--json", "--listen",
                             listen, *words, **how)
        service.address = service.next()["address"]
        return service

    def subscribe(self, at, *words, out=None, before=(), **how):
        return self.start(*before, BANYAN, "subscribe", "--at", at, "--out", out or self.out,
                          "--json", *words, **how)

    def model(self, **sizes):
        """A small model with random weights."""
        return {name: (tensor["dtype"], tensor["shape"],
                       self.draw.randbytes(2 * math.prod(tensor["shape"])))
                for name, tensor in small_model.dense(**sizes).items()}

    def change(self, tensors, share=0.03):
        """The tensors with a share of their elements changed."""
        new = {}
        for name, (dtype, shape, data) in tensors.items():
            made, size = bytearray(data), safetensors.BYTES[dtype]
            for _ in range(math.ceil(len(data) // size * share)):
                at = self.draw.randrange(len(data))
                made[at] ^= 1 << self.draw.randrange(8)
            new[name] = (dtype, shape, bytes(made))
        return new

    def replace(self, tensors, path, shards=1, **files):
        """Put a checkpoint in the place of another, in one step or two."""
        made = self.folder / f"made{self.draw.randrange(1 << 60)}"
        safetensors.write_folder(made, tensors, shards)
        for name, data in files.items():
            (made / name.replace("__", ".")).write_bytes(data)
        if path.exists():
            path.rename(self.folder / f"old{self.draw.randrange(1 << 60)}")
        made.rename(path)

    def assert_written(self, line, tensors, version=None):
        """The folder of a line has these tensors, and nothing is left over in --out."""
        path = pathlib.Path(line["path"])
        self.assertEqual(safetensors.read_folder(path), tensors)
        if version is not None:
            self.assertEqual(line["version"], version)
        self.assertEqual(path.name, f"version-{line['version']:08}")
        self.assertEqual([one.name for one in self.out.iterdir() if not one.name.startswith((
            "version-0", "version-1", ".banyan-version.work"))], [])
