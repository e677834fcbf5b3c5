"""The trainers' side of updates of SGLang's weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ... import Error, UniqueId, World
from .._updates import Updates, id_text, join, leave, published, state_part

#: ``load_format`` of the request, and what ``--custom-weight-loader`` names.
LOAD_FORMAT = "banyan.integrations.sglang.load"
#: How the name of the only tensor of a request begins. A handle in JSON follows.
HANDLE = "banyan:"

State: TypeAlias = nn.Module | Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]]
#: Pass named tensors and a load format to the engine of this number, and return its answer.
Call: TypeAlias = Callable[[int, list[tuple[str, Tensor]], str], Any]


class Handle(NamedTuple):
    """What an engine's workers need to take part in an update."""

    unique_id: str
    size: int  # of the world
    first: int  # rank of the engine's first worker
    workers: int  # of the engine
    version: int | None
    cast: bool
    timeout: float | None

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """Return the handle in the name of an empty tensor.

        SGLang passes the elements of tensors by descriptors of shared memory, which other machines
        and the processes of a server of its own cannot open.
        """
        return [(HANDLE + json.dumps(self), torch.empty(0, dtype=torch.uint8, device="cpu"))]


def read_handle(named_tensors: Sequence[tuple[str, Tensor]]) -> Handle:
    """Return the handle of a request."""
    names = [name for name, _ in named_tensors]
    if len(names) != 1 or not names[0].startswith(HANDLE):
        raise ValueError(
            "one tensor is needed, with the handle of Trainer.update in its name, but "
            f"{len(names)} are given: {[name.split(':')[0] for name in names[:4]]}"
        )
    return Handle(*json.loads(names[0].removeprefix(HANDLE)))


class Trainer:
    """Sends a model's weights to engines of SGLang.

    All trainer ranks make it, and call ``update`` together. ``state``: a module, a mapping of names
    to tensors, or a function that returns such a mapping for each update; names are those of the
    checkpoint that SGLang loads, and DTensors are sent by shards. ``workers``: the number of worker
    processes of each engine, which is tensor-parallel size times pipeline stages. ``group``: of the
    trainers; None: the default group, or this process alone without one. ``cast``: allow rounding
    to a smaller type. ``timeout``: seconds that a wait may last without progress.
    """

    def __init__(
        self,
        state: State,
        workers: Sequence[int],
        *,
        group: dist.ProcessGroup | None = None,
        cast: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Keep the arguments. Local: the first ``update`` joins the engines."""
        if not workers or min(workers) < 1:
            raise ValueError(f"workers: {list(workers)} is not a number of workers for each engine")
        self.workers = list(workers)
        self._state = state
        self._group = group
        self._cast, self._timeout = cast, timeout
        is_alone = group is None and not dist.is_initialized()
        self.rank = 0 if is_alone else dist.get_rank(group)
        self.size = 1 if is_alone else dist.get_world_size(group)
        self._id: str | None = None
        self._created: UniqueId | None = None
        self._world: World | None = None
        self._trainers: World | None = None  # the trainers alone
        self._updates: Updates | None = None

    def _tensors(self) -> Mapping[str, Any] | nn.Module:
        if isinstance(self._state, (nn.Module, Mapping)):
            return self._state
        return self._state()

    def _part(self) -> Any:
        ranks = None
        if dist.is_initialized():  # the ranks of the default group, by which meshes are given
            ranks = [-1] * dist.get_world_size()
            members = dist.get_process_group_ranks(self._group or dist.group.WORLD)
            for rank, member in enumerate(members):
                ranks[member] = rank
        return state_part(self._tensors(), ranks=ranks, rank=self.rank)

    def _new_id(self) -> None:
        """Make the id of a new world at rank 0, and send it to the other trainers."""
        word: list[Any] = [None]
        if self.rank == 0:
            self._created = UniqueId()
            word = [id_text(self._created)]
        if self.size > 1:
            source = dist.get_process_group_ranks(self._group or dist.group.WORLD)[0]
            dist.broadcast_object_list(word, source, group=self._group)
        self._id = word[0]

    def _handles(self, version: int | None) -> list[Handle]:
        assert self._id is not None
        size, first = self.size + sum(self.workers), self.size
        handles = []
        for workers in self.workers:
            handles.append(
                Handle(self._id, size, first, workers, version, self._cast, self._timeout)
            )
            first += workers
        return handles

    def update(self, call: Call | None = None, version: int | None = None) -> int:
        """Send the weights, and return their version. Collective over trainers and engines.

        ``call`` at rank 0 passes the request to an engine: it calls ``update_weights_from_tensor``
        with these named tensors and this load format, between ``begin_weight_update`` and
        ``end_weight_update``. It runs in a thread for each engine. ``version``: newer than that of
        the engines; None: one more.

        After an error the engines keep their old weights if nothing has moved, and are torn
        otherwise. The next update joins the engines anew.
        """
        if (call is None) == (self.rank == 0):
            raise ValueError("call: rank 0 of the trainers passes the requests, and no other rank")
        if self._id is None:
            self._new_id()
        handles = self._handles(version)
        with ThreadPoolExecutor(len(handles), "banyan-sglang") as threads:
            answers = []
            if call is not None:
                answers = [
                    threads.submit(call, number, handle.named_tensors(), LOAD_FORMAT)
                    for number, handle in enumerate(handles)
                ]
            try:
                version = self._run(version)
                self._require_success([answer.result() for answer in answers])
            except BaseException as error:
                self._leave(f"{type(error).__name__}: {error}")
                raise
        return version

    def _require_success(self, answers: Sequence[Any]) -> None:
        """Raise on all trainers if an engine has refused. All engines have finished then."""
        refused = []
        for number, told in enumerate(answers):
            if isinstance(told, dict):  # of a server
                told = told.get("success"), told.get("message")
            if isinstance(told, tuple) and told and told[0] is False:
                refused.append(f"engine {number}: {told[1]}")
        word = "; ".join(refused).encode()
        if self._trainers is not None:
            word = self._trainers.broadcast(word if self.rank == 0 else None)
        if word:
            raise Error(word.decode())

    def _run(self, version: int | None) -> int:
        part = self._part()
        if self._updates is None:
            assert self._id is not None
            size = self.size + sum(self.workers)
            self._world = join(self._id, self.rank, size, timeout=self._timeout)
            if self.size > 1:
                self._trainers = self._world.split(range(self.size))
            published(self._world, part.layout)
            devices = {one.device for one in part.tensors.values() if one.device.type == "cuda"}
            self._updates = Updates(
                self._world,
                part.layout,
                None,
                cast=self._cast,
                device=next(iter(devices), None),
                timeout=self._timeout,
            )
        return self._updates.update(lambda: part.tensors, version=version)

    def _leave(self, reason: str) -> None:
        if self._updates is not None:
            self._updates.close()
        if self._world is not None:
            leave(self._world, reason)
        self._updates = self._world = self._trainers = self._id = self._created = None

    def close(self) -> None:
        """Leave the engines, which keep their weights. Collective over the trainers."""
        if self._trainers is not None:
            with contextlib.suppress(Error):  # all trainers have ended their last update
                self._trainers.close()
        self._leave("the trainers have ended")
