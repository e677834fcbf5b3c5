"""The world, the device and the streams of a copy service."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from banyan import World
from banyan.torch import world as world_of


class GPUResourceManager:
    """Has one stream for each kind of work, or None for each of them on the host."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self.finalize()

    def finalize(self) -> None:
        """Give up the streams. The world stays open, since others may use it."""
        self.world: World | None = None
        self.device = torch.device("cpu")
        self.my_pe = self.n_pes = -1
        self.initialized = False
        self._set_streams(None, None, None, None)

    def _set_streams(self, pack: Any, unpack: Any, send: Any, copy: Any) -> None:
        self._streams = {"pack": pack, "unpack": unpack, "send": send, "copy": copy}
        self.pack_stream = self.torch_pack_stream_wrapper = pack
        self.unpack_stream = self.torch_unpack_stream_wrapper = unpack
        self.send_stream = self.torch_send_stream_wrapper = send
        self.copy_stream = self.torch_copy_stream_wrapper = copy

    def init(self, group: dist.ProcessGroup | None = None) -> None:
        """Open the world of a group, by default the default group. Collective.

        The device is the current GPU, or the host if there is none.
        """
        if self.initialized:
            return
        self.world = world_of(group)
        self.my_pe, self.n_pes = self.world.rank, self.world.size
        if torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())
            cuda: Any = torch.cuda
            self._set_streams(*(cuda.Stream(self.device) for _ in range(4)))
        self.initialized = True

    def get_stream(self, name: str) -> Any:
        """Return the stream "pack", "unpack", "send" or "copy"; None for another name."""
        return self._streams.get(name)

    def get_torch_stream(self, name: str) -> Any:
        """Return the same as ``get_stream``: the streams are PyTorch's."""
        return self._streams.get(name)

    def create_events(self, num_events: int = 2) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the events of packing, unpacking and sending. On the host they are None."""

        def make() -> list[Any]:
            if self.device.type == "cpu":
                return [None] * num_events
            cuda: Any = torch.cuda
            return [cuda.Event() for _ in range(num_events)]

        return make(), make(), make()
