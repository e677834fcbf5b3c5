"""Trainers and tensor-parallel workers of SGLang, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

os.environ["SGLANG_NCCL_SO_PATH"] = "/none"  # without NCCL, SGLang has groups of Gloo alone

import torch
import torch.distributed as dist
import transformers
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.parallel_state import (
    init_distributed_environment,
    initialize_model_parallel,
)
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.model_loader import get_model
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils import MultiprocessingSerializer

from banyan.integrations.sglang import LOAD_FORMAT

torch.set_num_threads(1)
CONTEXT = multiprocessing.get_context("fork")
AFTER_FAILURE = 40


class Worker:
    """A tensor-parallel worker: SGLang's model, loaded by SGLang, and its WeightUpdater."""

    def __init__(self, folder: str, rank: int, tp: int, port: int) -> None:
        args = ServerArgs(
            model_path=folder,
            device="cpu",
            tp_size=tp,
            skip_tokenizer_init=True,
            attention_backend="torch_native",
            disable_cuda_graph=True,
            custom_weight_loader=[LOAD_FORMAT],
        )
        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=rank))
        address = f"tcp://127.0.0.1:{port}"
        init_distributed_environment(
            world_size=tp,
            rank=rank,
            local_rank=rank,
            backend="gloo",
            distributed_init_method=address,
        )
        initialize_model_parallel(backend="gloo")
        self.config = ModelConfig.from_server_args(args)
        self.model = self.load()
        self.updater = WeightUpdater(
            tp_rank=rank,
            device="cpu",
            gpu_id=0,
            model_config=self.config,
            custom_weight_loaders=[LOAD_FORMAT],
            get_model=lambda: self.model,
            update_model_fields=lambda *_, **__: None,
            recapture_cuda_graph=lambda: None,
            get_model_runner=lambda: None,
        )

    def load(self) -> Any:
        """Load the model from the folder as SGLang does."""
        return get_model(
            model_config=self.config,
            load_config=LoadConfig(load_format="safetensors"),
            device_config=DeviceConfig("cpu"),
        )

    def update(self, pipe: Any, load_format: str | None = LOAD_FORMAT) -> None:
        """Do what SGLang's scheduler does for a request, in a session, and answer."""
        named_tensors = MultiprocessingSerializer.deserialize(pipe.recv())
        try:
            self.updater.begin_weight_update()
            answer = self.updater.update_weights_from_tensor(named_tensors, load_format=load_format)
            self.updater.end_weight_update(run_post_load=False)
        except BaseException as error:
            pipe.send((False, str(error)))
            raise
        pipe.send(answer)

    def poison(self) -> None:
        for one in self.model.parameters():
            one.data.view(-1).view(torch.uint8).fill_(0xAB)

    def expected(self, checkpoint: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the parameters that SGLang's own loader makes of whole weights."""
        model = self.load()
        model.load_weights(list(checkpoint.items()))
        return {name: one.detach() for name, one in model.named_parameters()}

    def require_equal(self, checkpoint: dict[str, torch.Tensor]) -> None:
        held = dict(self.model.named_parameters())
        for name, wanted in self.expected(checkpoint).items():
            a, b = (one.contiguous().flatten().view(torch.uint8) for one in (held[name], wanted))
            assert torch.equal(a, b), f"{name} differs"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def run(
    trainers: int,
    engines: list[int],
    folder: str,
    train: Callable[..., Any],
    serve: Callable[..., Any],
    *args: Any,
) -> list[Any]:
    """Run ``train(rank, call, …)`` at trainers, ``serve(worker, engine, pipe, …)`` at workers.

    ``call`` passes a request to all workers of an engine, and waits for their answers. Return the
    exceptions as text, by rank, None without one.
    """
    requests = [[CONTEXT.Pipe() for _ in range(tp)] for tp in engines]
    ports = [free_port() for _ in engines]
    results = CONTEXT.Queue()

    def call(engine: int, named_tensors: Any, load_format: str | None) -> Any:
        for ours, _ in requests[engine]:  # one for each worker, as SGLang's Engine does
            ours.send(MultiprocessingSerializer.serialize(named_tensors))
        answers = [ours.recv() for ours, _ in requests[engine]]
        return min(answers, key=lambda one: one[0])

    def play(rank: int, path: str) -> None:
        try:
            if rank < trainers:
                store = dist.FileStore(path, trainers)
                dist.init_process_group(
                    "gloo",
                    store=store,
                    rank=rank,
                    world_size=trainers,
                    timeout=timedelta(seconds=60),
                )
                train(rank, call if rank == 0 else None, *args)
            else:
                engine, place = 0, rank - trainers
                while place >= engines[engine]:
                    place -= engines[engine]
                    engine += 1
                worker = Worker(folder, place, engines[engine], ports[engine])
                serve(worker, engine, requests[engine][place][1], *args)
            results.put((rank, None))
        except BaseException:
            results.put((rank, traceback.format_exc()))
        results.close()
        results.join_thread()
        os._exit(0)

    count = trainers + sum(engines)
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "store")
        processes = [CONTEXT.Process(target=play, args=(rank, path)) for rank in range(count)]
        for one in processes:
            one.start()
        found: dict[int, Any] = {}
        deadline = time.monotonic() + 300
        while len(found) < count and time.monotonic() < deadline:
            for rank, one in enumerate(processes):
                if rank not in found and not one.is_alive() and one.exitcode != 0:
                    found[rank] = f"the process ended with {one.exitcode}"
            try:
                rank, text = results.get(timeout=0.2)
            except Exception:
                continue
            found[rank] = text
            if text is not None:
                deadline = min(deadline, time.monotonic() + AFTER_FAILURE)
        for one in processes:
            one.join(5)
            if one.is_alive():
                one.kill()
    return [found.get(rank, "no answer in time") for rank in range(count)]


def save(config: Any, folder: str) -> dict[str, tuple[int, ...]]:
    """Save a model of random weights. Return the names and shapes of its checkpoint."""
    from safetensors.torch import load_file

    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    read = load_file(os.path.join(folder, "model.safetensors"))
    return {name: tuple(one.shape) for name, one in read.items()}
