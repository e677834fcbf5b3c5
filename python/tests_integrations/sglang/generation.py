"""Engines of SGLang that generate on the host, and trainers with models of transformers.

Each is a process of its own, forked from the test. An engine starts its schedulers itself. It
computes with PyTorch's operators, and ``stand_in`` has the names of SGLang's kernels.
"""

# ruff: noqa: E402
from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "stand_in"), str(HERE.parent / "vllm")]
os.environ |= {
    "PYTHONPATH": f"{HERE / 'stand_in'}:{os.environ.get('PYTHONPATH', '')}",
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",  # other programs use the host's memory, too
    "SGLANG_NCCL_SO_PATH": "/none",  # without NCCL, SGLang has groups of Gloo alone
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCH_COMPILE_DISABLE": "1",  # the compiler takes longer than the test
}

import environment  # noqa: F401  # before PyTorch

# isort: split
import sglang
import sglang.srt.managers.scheduler  # as an engine's processes do
import torch
import torch.distributed as dist
from processes import Process, Remote
from sglang.srt.utils import MultiprocessingSerializer
from shards import fill, load_sharded

from banyan.integrations.sglang import LOAD_FORMAT, Trainer

PROMPTS = [[1, 5, 9, 17, 33], [7, 7, 8], [101, 45, 99, 3, 2, 64, 12]]
TOKENS = 12
#: Seconds until a server must have started.
START = 290
# SGLang spawns its processes. Forked ones inherit what this process has imported, which takes long.
multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[method-assign]
#: Tokens of each prompt, and their log probabilities.
Generated = list[tuple[list[int], list[float]]]


#: Arguments of engines and servers.
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "skip_tokenizer_init": True,
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "disable_overlap_schedule": True,
    "context_length": 64,
    "max_total_tokens": 1024,
    "mem_fraction_static": 0.5,
    "sleep_on_idle": True,  # it would poll otherwise, on a core of its own
    "log_level": "error",
}


def sampling(tokens: int) -> dict[str, Any]:
    """Return the arguments that generate greedy tokens."""
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


class Engine:
    """An engine with a folder's weights."""

    def __init__(self, folder: Path, tp: int) -> None:
        self.engine = sglang.Engine(
            model_path=str(folder), tp_size=tp, custom_weight_loader=[LOAD_FORMAT], **OPTIONS
        )

    def _generate(self, tokens: int, **options: Any) -> Any:
        return self.engine.generate(input_ids=PROMPTS, sampling_params=sampling(tokens), **options)

    def generate(self) -> Generated:
        """Return the greedy tokens of each prompt."""
        found = self._generate(TOKENS, return_logprob=True)
        chances = [one["meta_info"]["output_token_logprobs"] for one in found]
        return [
            (one["output_ids"], [chance[0] for chance in each])
            for one, each in zip(found, chances, strict=True)
        ]

    def first_token(self) -> tuple[int, ...]:
        """Return the first token of each prompt."""
        return tuple(one["output_ids"][0] for one in self._generate(1))

    def update(self, named_tensors: Any, load_format: str | None) -> Any:
        """Update the weights in a session, and return the answer."""
        self.engine.begin_weight_update()
        answer = self.engine.update_weights_from_tensor(named_tensors, load_format=load_format)
        self.engine.end_weight_update()
        return answer


class Server(Engine):
    """A server of its own on the loopback, whose command is that of the page."""

    def __init__(self, folder: Path, tp: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url, self.tp = f"http://127.0.0.1:{port}", tp
        words = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder)]
        words += ["--port", str(port), "--tp", str(tp), "--skip-server-warmup"]
        words += ["--custom-weight-loader", LOAD_FORMAT]
        for name, value in OPTIONS.items():
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        process = subprocess.Popen(words)
        deadline = time.monotonic() + START
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except OSError:
                assert process.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.5)

    def _post(self, path: str, **body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)

    def _generate(self, tokens: int, **options: Any) -> Any:
        return self._post(
            "generate", input_ids=PROMPTS, sampling_params=sampling(tokens), **options
        )

    def update(self, named_tensors: Any, load_format: str | None) -> Any:
        """Update the weights in a session, and return the answer."""
        data = MultiprocessingSerializer.serialize(named_tensors, output_str=True)
        self._post("begin_weight_update")
        answer = self._post(
            "update_weights_from_tensor",
            serialized_named_tensors=[data] * self.tp,
            load_format=load_format,
        )
        self._post("end_weight_update")
        return answer


class Rank:
    """A trainer rank, whose model FSDP2 shards."""

    def __init__(self, rank: int, count: int, folder: Path, store: Path) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(store), count), rank=rank, world_size=count
        )
        self.rank = rank
        self.model = self.make(folder, count)

    def make(self, folder: Path, count: int) -> Any:
        return load_sharded(folder, count)

    def join(self, paths: list[Path], tp: int) -> None:
        """Make the trainer of these engines."""
        self.engines = [Remote(path) for path in paths]
        self.trainer = Trainer(self.model, [tp] * len(paths), timeout=60)

    def fill(self, version: int) -> None:
        fill(self.model, version)

    def update(self) -> int:
        """Update all engines."""

        def call(engine: int, named_tensors: Any, load_format: str) -> Any:
            return self.engines[engine].call("update", named_tensors, load_format)

        return self.trainer.update(call if self.rank == 0 else None)


def fresh(folder: Path, tp: int) -> Generated:
    """Return what a new engine generates that loads the folder."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        Process(Path(temporary) / "socket", Engine, folder, tp) as engine,
    ):
        made: Generated = engine.call("generate")
        return made


def all_call(ranks: list[Any], name: str, *args: Any) -> list[Any]:
    """Call a method of all ranks at once, and return what they return."""
    for one in ranks:
        one.start(name, *args)
    return [one.result() for one in ranks]
