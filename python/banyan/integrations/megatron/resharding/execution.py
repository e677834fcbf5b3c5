"""Execution of a reshard plan over a copy service."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.fp8_utils import dequantize_fp8_tensor, is_mxfp8tensor

from .transforms import ReshardTransform
from .utils import ReshardPlan, refit_tensors

Submit = Callable[[torch.Tensor, int, "int | None"], None]


def _submit(service: Any, name: str) -> Submit:
    """Return ``submit_send`` or ``submit_recv`` with a task id, as the service takes it.

    Services of 0.16.1 take ids in calls of their own, or not at all.
    """
    call = getattr(service, name)
    parameters = inspect.signature(call).parameters.values()
    if any(one.name == "task_id" or one.kind is one.VAR_KEYWORD for one in parameters):
        return lambda tensor, peer, task_id: call(tensor, peer, task_id=task_id)
    with_id = getattr(service, name + "_with_id", None)

    def submit(tensor: torch.Tensor, peer: int, task_id: int | None) -> None:
        if with_id is None or task_id is None:
            call(tensor, peer)
        else:
            with_id(task_id, tensor, peer)

    return submit


def _synchronize() -> None:
    """Wait for all work on the GPU, if there is one."""
    try:
        torch.cuda.synchronize()
    except (AssertionError, RuntimeError):  # as PyTorch without a GPU raises
        if torch.cuda.is_available():
            raise


def _send_all(
    plan: ReshardPlan,
    module: torch.nn.Module | None,
    service: Any,
    transform: ReshardTransform | None,
) -> None:
    submit = _submit(service, "submit_send")
    takes_strides = getattr(service, "takes_strides", False) is True
    parameters = refit_tensors(module)
    plain: dict[str, torch.Tensor] = {}  # each quantized parameter is dequantized once
    for op in plan.send_ops:
        parameter = parameters.get(op.param_name)
        if parameter is None:
            continue
        if transform is not None and transform.should_transform(op.param_name):
            for tensor in transform.prepare_send(op.param_name, op.my_slice, parameter):
                submit(tensor.contiguous(), op.peer_rank, op.task_id)
            continue
        if op.param_name not in plain:
            quantized = is_mxfp8tensor(parameter)
            plain[op.param_name] = dequantize_fp8_tensor(parameter) if quantized else parameter.data
        part = plain[op.param_name][op.my_slice]
        submit(part if takes_strides else part.contiguous(), op.peer_rank, op.task_id)


class _Accumulator:
    """A whole BF16 parameter, gathered from its slices and quantized once."""

    def __init__(self, name: str, parameter: Any) -> None:
        self.name, self.parameter, self.elements = name, parameter, 0
        self.whole = torch.empty(parameter.shape, dtype=torch.bfloat16, device=parameter.device)

    def quantize(self) -> None:
        if self.elements != self.whole.numel():
            raise ValueError(
                f"parameter {self.name}: the plan receives {self.elements} of its "
                f"{self.whole.numel()} elements, and a quantized parameter needs all"
            )
        self.parameter.quantize_(self.whole)


def _recv_all(
    plan: ReshardPlan,
    module: torch.nn.Module | None,
    service: Any,
    transform: ReshardTransform | None,
) -> tuple[deque[Callable[[], object]], list[_Accumulator]]:
    """Queue the receives. Return the copies that follow them, and the parameters to quantize."""
    submit = _submit(service, "submit_recv")
    takes_strides = getattr(service, "takes_strides", False) is True
    parameters = refit_tensors(module)
    copies: deque[Callable[[], object]] = deque()
    gathered: dict[str, _Accumulator] = {}
    for op in plan.recv_ops:
        if transform is not None and transform.should_transform(op.param_name):
            buffers = transform.prepare_recv(op.param_name, op.my_slice)
            for buffer in buffers:
                submit(buffer, op.peer_rank, op.task_id)
            copies.append(partial(transform.finalize_recv, op.param_name, op.my_slice, buffers))
            continue
        parameter = parameters.get(op.param_name)
        if parameter is None:
            continue
        if is_mxfp8tensor(parameter):
            if op.param_name not in gathered:
                gathered[op.param_name] = _Accumulator(op.param_name, parameter)
            part = gathered[op.param_name].whole[op.my_slice]
            gathered[op.param_name].elements += part.numel()
        else:
            part = parameter.data[op.my_slice]
        buffer = part
        if not (takes_strides or part.is_contiguous()):
            buffer = torch.empty(part.shape, dtype=part.dtype, device=part.device)
            copies.append(partial(part.copy_, buffer))
        submit(buffer, op.peer_rank, op.task_id)
    return copies, list(gathered.values())


def execute_reshard_plan(
    plan: ReshardPlan,
    src_module: torch.nn.Module | None,
    dst_module: torch.nn.Module | None,
    service: Any,
    group: dist.ProcessGroup | None = None,
    transform: ReshardTransform | None = None,
) -> None:
    """Move the parameters and persistent buffers of ``src_module`` to ``dst_module``.

    Collective over the ranks of the plan. A rank without a module passes None. ``plan`` is this
    rank's, of Megatron-Core's planner. ``service``: any CopyService of Megatron-Core, with the
    calls of 0.16.1 or of newer releases. ``group``: the ranks that meet after the run, if the
    service requires it; by default the default group. ``transform`` sends and receives the
    parameters for which its ``should_transform`` returns True.

    A service whose ``takes_strides`` is True (BanyanCopyService) gets slices of the parameters
    themselves. For others, slices that are not contiguous travel in buffers. An MXFP8 parameter of
    Transformer Engine is sent in BF16; as a destination it gathers all its slices in one BF16
    buffer and is quantized once. Operations whose parameter the module lacks are left out.
    """
    _send_all(plan, src_module, service, transform)
    copies, gathered = _recv_all(plan, dst_module, service, transform)
    service.run()
    _synchronize()
    if getattr(service, "requires_process_group_barrier", True):
        dist.barrier(group=group)
    with torch.no_grad():
        while copies:  # each buffer is free after its copy
            copies.popleft()()
        for one in gathered:
            one.quantize()
    for module in dst_module.modules() if dst_module is not None else ():
        refresh = getattr(module, "refresh_cache", None)
        if callable(refresh):
            refresh()
    _synchronize()
    if gathered and torch.cuda.is_available():
        gathered.clear()
        torch.cuda.empty_cache()
