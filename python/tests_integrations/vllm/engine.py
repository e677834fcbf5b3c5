"""Engines of vLLM in processes of their own."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from environment import DEVICE
from processes import Process, Remote
from vllm import LLM, SamplingParams
from vllm.v1.executor import multiproc_executor

PROMPTS = [[1, 5, 9, 17, 33], [7, 7, 8], [101, 45, 99, 3, 2, 64, 12]]
TOKENS = 12
#: Tokens of each prompt, and their log probabilities.
Generated = list[tuple[list[int], list[float]]]

# The workers are processes, but the engine's core is in the process of its user.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
if DEVICE == "cpu":  # workers inherit what this process has imported, which takes half a minute
    multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")


class Engine:
    """An engine that computes with a folder's weights, or with random ones (``dummy``)."""

    def __init__(self, folder: Path, tp: int, backend: str | None = None, **options: Any) -> None:
        if DEVICE == "cuda":
            options = {"enable_sleep_mode": True, "gpu_memory_utilization": 0.2, **options}
        transfer = {"weight_transfer_config": {"backend": backend}} if backend else {}
        self.llm = LLM(
            str(folder),
            tensor_parallel_size=tp,
            distributed_executor_backend="mp",
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=64,
            enable_prefix_caching=False,
            disable_log_stats=True,
            **transfer,
            **options,
        )

    def generate(self) -> Generated:
        """Return the greedy tokens of each prompt."""
        sampling = SamplingParams(
            temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=1, detokenize=False
        )
        prompts: Any = [{"prompt_token_ids": one} for one in PROMPTS]
        found = []
        for one in self.llm.generate(prompts, sampling, use_tqdm=False):
            output = one.outputs[0]
            tokens = list(output.token_ids)
            assert output.logprobs is not None
            chances = [output.logprobs[i][token].logprob for i, token in enumerate(tokens)]
            found.append((tokens, chances))
        return found

    def first_token(self) -> tuple[int, ...]:
        """Return the first token of each prompt."""
        sampling = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
        prompts: Any = [{"prompt_token_ids": one} for one in PROMPTS]
        made = self.llm.generate(prompts, sampling, use_tqdm=False)
        return tuple(one.outputs[0].token_ids[0] for one in made)

    def ways(self) -> tuple[set[str], set[str]]:
        """Return the parameters that are received in place, and those received in buffers."""

        def read(worker: Any) -> tuple[set[str], set[str]]:
            memory = worker.weight_transfer_engine._memory
            return memory.tensors().keys() - memory.buffered, memory.buffered

        found: Any = self.llm.collective_rpc(read)
        return set(found[0][0]), set(found[0][1])

    def digests(self) -> list[dict[str, str]]:
        """Return digests of each worker's parameters, as they are in memory."""

        def read(worker: Any) -> dict[str, str]:
            import torch

            return {
                name: hashlib.sha256(one.detach().view(torch.uint8).numpy()).hexdigest()
                for name, one in worker.get_model().named_parameters()
                if one.numel() > 0
            }

        found: Any = self.llm.collective_rpc(read)
        return list(found)

    def torn(self) -> list[bool]:
        """Return whether each worker refuses to compute, once its update has ended."""

        def read(worker: Any) -> bool:
            engine = worker.weight_transfer_engine
            return engine.weights.torn is not None and engine._guard._hook is not None

        found: Any = self.llm.collective_rpc(read)
        return list(found)

    def seconds(self) -> Any:
        """Return how long the last update was received and processed, of the slowest worker."""
        found = self.llm.collective_rpc(lambda worker: worker.weight_transfer_engine.seconds)
        return tuple(map(max, zip(*found, strict=True)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.llm, name)


def fresh(folder: Path, tp: int, **options: Any) -> Generated:
    """Return what a new engine generates that loads the folder."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "socket"
        with Process(path, Engine, folder, tp, **options) as engine:
            made: Generated = engine.call("generate")
            return made


def fresh_state(folder: Path, tp: int) -> tuple[Generated, list[dict[str, str]]]:
    """Return what a new engine generates that loads the folder, and digests of its parameters."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "socket"
        with Process(path, Engine, folder, tp) as engine:
            return engine.call("generate"), engine.call("digests")


def require_state(engine: Any, wanted: tuple[Generated, list[dict[str, str]]]) -> Generated:
    """Compare an engine with a new one: all parameters and tokens. Return what it generates."""
    for held, others in zip(engine.call("digests"), wanted[1], strict=True):
        differ = [name for name in held | others if held.get(name) != others.get(name)]
        assert not differ, f"parameters differ: {differ}"
    made: Generated = engine.call("generate")
    assert made == wanted[0], f"{made}, not {wanted[0]}"
    return made


class FolderTest(unittest.TestCase):
    """A test with a folder of its own. It prints its seconds."""

    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.at = Path(made.name)
        self._began = time.monotonic()

    def tearDown(self) -> None:
        print(f"{self.id().split('.')[-1]}: {time.monotonic() - self._began:.0f} s", flush=True)


class Client:
    """vLLM's client of weight updates, for a trainer in another process than the engine."""

    def __init__(self, path: Path) -> None:
        self.engine = Remote(path)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.engine.call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self.engine.call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.engine.call("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.engine.call("finish_weight_update", weight_version)
