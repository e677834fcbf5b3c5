"""Copies between tensors and slots."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

#: Sources, destinations, bytes of each copy, and their number (GPUExecutionPlanner).
CopyPlan = tuple[list[torch.Tensor], list[torch.Tensor], list[int], int]


def on_stream(stream: Any) -> Any:
    """Return the context in which work goes to a stream; None: the host."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


class KernelLauncher:
    """Carries out copy plans, in streams on GPUs, by PyTorch's batched copies."""

    def __init__(self) -> None:
        """Set no streams yet."""
        self.pack_stream: Any = None
        self.unpack_stream: Any = None

    def load_kernels(self) -> None:
        """Check that this PyTorch has batched copies; they need no compilation."""
        if not hasattr(torch, "_foreach_copy_"):
            raise RuntimeError(f"PyTorch {torch.__version__} has no batched copies")

    def set_streams(self, pack_stream: Any, unpack_stream: Any) -> None:
        """Set the streams of launches that are given none."""
        self.pack_stream, self.unpack_stream = pack_stream, unpack_stream

    @staticmethod
    def _launch(plan: CopyPlan | None, stream: Any, event: Any) -> None:
        if plan:
            sources, destinations, _sizes, _count = plan
            with torch.no_grad(), on_stream(stream):
                torch._foreach_copy_(destinations, sources)
        if event is not None:
            event.record(stream)

    def launch_pack(
        self,
        gpu_plan: CopyPlan | None,
        pack_stream: Any,
        torch_pack_stream_wrapper: Any,
        pack_event: Any,
    ) -> None:
        """Copy tensors to a send slot, and record the event behind the copies.

        The work goes to ``torch_pack_stream_wrapper``, else to the stream of ``set_streams``. None
        for both: the host, where the copies are done on return. ``pack_stream`` is the same stream
        in another library.
        """
        self._launch(gpu_plan, torch_pack_stream_wrapper or self.pack_stream, pack_event)

    def launch_unpack(
        self,
        gpu_plan: CopyPlan | None,
        unpack_stream: Any,
        torch_unpack_stream_wrapper: Any,
        unpack_event: Any,
    ) -> None:
        """Copy a receive slot to tensors. Otherwise as ``launch_pack``."""
        self._launch(gpu_plan, torch_unpack_stream_wrapper or self.unpack_stream, unpack_event)
