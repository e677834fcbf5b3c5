"""The handler and the call, with FlashInfer's arguments, attributes and errors."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

from ... import Mixed, NotFound
from ...torch import world as world_of
from ._info import BANYAN_MODES, MixedCommMode, MixedCommOp, ParallelInfo

_SCATTERS = (MixedCommOp.REDUCESCATTER, MixedCommOp.REDUCESCATTER_ALLREDUCE)
#: Banyan's names of the operations.
_NAMES = {op: op.name.lower() for op in MixedCommOp}
_WARP_SIZE = 32
#: Smallest compute capability of Banyan's kernels.
_MIN_CAPABILITY = 80


#: Attributes of FlashInfer's handler about the buffers and kernels that it has in place of Mixed.
_INTERNALS = (
    "access_bytes",
    "buffer_info_bytes",
    "init_nvshmem",
    "init_virtual_memory",
    "mc_handle_dict",
    "mixed_comm_module",
    "neg_zero_uint16",
    "ns_buffer",
    "ns_data_bytes",
    "ns_data_bytes_all",
    "ns_data_bytes_base",
    "ns_signal_bytes",
    "ns_signal_bytes_all",
    "ns_signal_bytes_base",
    "ns_workspace",
    "num_buffers",
    "uc_buffer_dict",
    "uc_handle_list",
    "vm_buffer_bytes",
    "vm_buffer_bytes_all",
    "vm_buffer_bytes_base",
    "vm_handle_type",
)


class CommBackend(Protocol):
    """The ranks of a node, as ``checkpoint_restore`` takes them."""

    def Get_rank(self) -> int:
        """Return the rank."""
        ...

    def Get_size(self) -> int:
        """Return the number of ranks."""
        ...

    def barrier(self) -> None:
        """Wait for all ranks."""
        ...


class MixedCommHandler:
    """All-reduce + all-gather and reduce-scatter + all-reduce over a grid of ranks."""

    def __init__(
        self,
        world_rank: int,
        world_size: int,
        local_rank: int,
        local_size: int,
        inter_rank: int,
        inter_size: int,
        local_tp_size: int | None,
        local_dp_size: int | None,
        inter_tp_size: int | None,
        inter_dp_size: int | None,
        dtype: torch.dtype,
        device: torch.device,
        grid_size: int | None = None,
        max_block_size: int | None = None,
        min_block_size: int = 256,
        min_num_steps: int = 4,
        ib_enable_ibgda: bool = True,
        should_init_nvshmem: bool = True,
        use_autotune: bool = True,
    ) -> None:
        """Open the context, and measure its modes. Collective over the default process group.

        Ranks and sizes are those of ParallelInfo. ``dtype``: float16, bfloat16 or float32.
        ``device``: of the tensors, "cpu", too. ``grid_size``: thread blocks, at most one for each
        multiprocessor; None: so many. ``max_block_size``, ``min_block_size``: threads of a block,
        multiples of 32. ``min_num_steps``, ``ib_enable_ibgda`` and ``should_init_nvshmem`` are
        those of banyan/mixed.h. ``use_autotune`` False: do not measure.

        Raises AssertionError for arguments that contradict each other, before anything is opened.
        """
        assert dist.is_initialized(), "torch.distributed is not initialized"
        assert world_size > 1, "a single rank has nobody to communicate with"
        assert dtype in (torch.float16, torch.bfloat16, torch.float32), (
            f"dtype is {dtype}: float16, bfloat16 and float32 are possible"
        )
        self.is_running = False
        self.warp_size = _WARP_SIZE
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.dtype = dtype
        # ParallelInfo resolves sizes that are None.
        sizes = cast(list[int], [local_tp_size, local_dp_size, inter_tp_size, inter_dp_size])
        self.para_info = ParallelInfo(
            world_rank, world_size, local_rank, local_size, inter_rank, inter_size, *sizes
        )
        info = self.para_info
        most = 1
        if self.device.type == "cuda":
            most = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.grid_size = most if grid_size is None else grid_size
        on_gpu = self.device.type == "cuda"
        assert not on_gpu or self.grid_size <= most, f"grid_size is {grid_size}, and at most {most}"
        assert min_block_size % _WARP_SIZE == 0, f"min_block_size is {min_block_size}"
        assert max_block_size is None or (
            max_block_size % _WARP_SIZE == 0 and max_block_size >= min_block_size
        ), f"max_block_size is {max_block_size}, min_block_size {min_block_size}"
        self.min_block_size, self.min_num_steps = min_block_size, min_num_steps
        self.ib_enable_ibgda, self.should_init_nvshmem = ib_enable_ibgda, should_init_nvshmem
        self.use_autotune = use_autotune
        world = world_of()
        assert (world.rank, world.size) == (world_rank, world_size), (
            f"world_rank {world_rank} of {world_size} is rank {world.rank} of {world.size} in "
            "torch.distributed"
        )
        self.mixed = Mixed(
            world,
            local_tp=info.local_tp_size,
            local_dp=info.local_dp_size,
            inter_tp=info.inter_tp_size,
            inter_dp=info.inter_dp_size,
            nodes=0 if world.node_count == inter_size else inter_size,
            dtype=dtype,
            device=self.device if on_gpu else None,
            grid_size=0 if grid_size is None or not on_gpu else grid_size,
            max_block_size=max_block_size or 0,
            min_block_size=min_block_size,
            min_num_steps=min_num_steps,
            ib_enable_ibgda=ib_enable_ibgda,
            should_init_nvshmem=should_init_nvshmem,
            use_autotune=use_autotune,
            progress=None,
        )
        """Context of Banyan, with its other functions."""
        self.is_running = True
        self._vm_mapped = True
        self._read_addresses()
        self.local_comm_group = info.get_local_comm_group() if info.use_inter else None
        self.tp_comm_group = info.get_tp_comm_group() if info.use_mixed else None
        self.dp_comm_group = info.get_dp_comm_group() if info.use_mixed else None
        self.valid_op_list = self.get_valid_op_list()
        self._modes = self._read_modes()
        self.valid_mode_list = self.get_valid_mode_list()
        threads = max_block_size or 1024
        self.max_block_size_dict = {
            (op, mode): {1: threads}
            for op in self.valid_op_list
            for mode in self.valid_mode_list
            if on_gpu and mode.name.startswith("FUSED_")
        }
        self.autotune_base_bytes = 8192
        self.autotune_max_coef = max(16 - info.dp_size.bit_length(), 1)
        self.autotune_map: dict[MixedCommOp, list[MixedCommMode]] = {}
        self._read_choices()

    def _read_addresses(self) -> None:
        """Read where the memory of the node's ranks is mapped. ``checkpoint_restore`` keeps it."""
        info, parts = self.para_info, []
        with contextlib.suppress(NotFound):  # on the host, and without other ranks on the node
            parts = [self.mixed.peer_memory(rank) for rank in range(info.local_size)]
        mine = parts[info.local_rank] if parts else (None, None)
        self.uc_ptr_list = [address for address, _ in parts] or None
        """Addresses of the GPU memory of the node's ranks, by local rank; None: there is none."""
        self.mem_buffer, self.vm_workspace_bytes = ctypes.c_void_p(mine[0]), mine[1]
        """Address and bytes of this rank's memory."""
        tp = self.mixed.multicast_memory(of_tp=True) if info.use_local_tp else 0
        self.mc_ptr_dict = {"full": self.mixed.multicast_memory() or None, "tp": tp or None}
        """Multicast addresses: of the node's ranks, and of those of this tensor-parallel group."""
        self.mc_buffer_dict = {key: ctypes.c_void_p(one) for key, one in self.mc_ptr_dict.items()}
        """The same as pointers of ctypes."""

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, with a reason for what FlashInfer's handler has beside."""
        if name in _INTERNALS:
            raise AttributeError(
                f"MixedCommHandler.{name} describes the kernels of FlashInfer; Banyan has its own"
            )
        raise AttributeError(f"MixedCommHandler has no attribute {name!r}")

    def _read_modes(self) -> dict[tuple[MixedCommOp, MixedCommMode], str]:
        """Return Banyan's name of each valid mode of each operation."""
        found = {}
        for op in self.valid_op_list:
            names = self.mixed.modes(_NAMES[op])
            for mode, ours in BANYAN_MODES.items():
                name = next((one for one in ours if one in names), None)
                # Of a single operation, NCCL_TP_DP would be NCCL_ONE.
                if name and (mode != MixedCommMode.NCCL_TP_DP or self.para_info.use_mixed):
                    found[op, mode] = name
        return found

    def _read_choices(self) -> None:
        """Read what was measured, at FlashInfer's sizes."""
        if not self.use_autotune:
            return
        for op in self.valid_op_list:
            self.autotune_map[op] = [
                self._choice(op, self.autotune_base_bytes << i)
                for i in range(self.autotune_max_coef)
            ]

    def _choice(self, op: MixedCommOp, nbytes: int) -> MixedCommMode:
        """Return the mode that was measured to be the fastest for ``nbytes`` of b rows."""
        name = self.mixed.choice(_NAMES[op], max(nbytes, 1))
        return next(mode for mode, names in BANYAN_MODES.items() if name in names)

    def get_valid_op_list(self) -> list[MixedCommOp]:
        """Return the operations of this grid."""
        names = self.mixed.ops
        return [op for op in MixedCommOp if _NAMES[op] in names]

    def get_valid_mode_list(self) -> list[MixedCommMode]:
        """Return the modes that can run all operations of this grid."""
        modes = [
            mode
            for mode in BANYAN_MODES
            if all((op, mode) in self._modes for op in self.valid_op_list)
        ]
        return [*modes, MixedCommMode.AUTOTUNE] if self.use_autotune else modes

    def run_autotune(self) -> None:
        """Measure every mode of every operation again. Collective."""
        self.mixed.autotune()
        self.use_autotune = True
        self.valid_mode_list = self.get_valid_mode_list()
        self._read_choices()

    def select_autotune_mode(self, op: MixedCommOp, x_in: torch.Tensor) -> MixedCommMode:
        """Return the fastest mode for an input."""
        rows = self.para_info.dp_size if op in _SCATTERS else 1
        return self._choice(op, x_in.numel() * x_in.element_size() // rows)

    def checkpoint_prepare(self) -> None:
        """Release the memory of the GPUs, and keep its addresses, for graphs. Collective.

        Raises NotImplementedError with several nodes, and on the host, which has no such memory.
        """
        self._require_checkpoints()
        if self._vm_mapped:
            torch.cuda.synchronize(self.device)
            self.mixed.suspend()
            self._vm_mapped = False

    def checkpoint_restore(self, comm_backend: CommBackend) -> None:
        """Allocate the memory again, at the same addresses. Collective.

        ``comm_backend`` has the ranks of this node. Raises ValueError if it has other ones, and
        NotImplementedError as ``checkpoint_prepare``.
        """
        self._require_checkpoints()
        if self._vm_mapped:
            return
        if comm_backend.Get_rank() != self.para_info.local_rank:
            raise ValueError("MixedComm checkpoint backend rank does not match local rank")
        if comm_backend.Get_size() != self.para_info.local_size:
            raise ValueError("MixedComm checkpoint backend size does not match local size")
        self.mixed.resume()
        comm_backend.barrier()
        self._vm_mapped = True

    def _require_checkpoints(self) -> None:
        if self.para_info.use_inter:
            raise NotImplementedError(
                "MixedComm checkpointing does not yet support multi-node handlers"
            )
        if self.device.type != "cuda":
            raise NotImplementedError(
                "MixedComm checkpointing releases memory of GPUs, and this handler is on the host"
            )

    def shutdown(self) -> None:
        """Close the context and the process groups, once. Collective."""
        assert self.is_running, "Should not call shutdown() more than once."
        self.is_running = False
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.mixed.close()
        for group in (self.local_comm_group, self.tp_comm_group, self.dp_comm_group):
            if group is not None:
                dist.destroy_process_group(group)


def _check(
    op: MixedCommOp,
    handler: MixedCommHandler,
    x_in: torch.Tensor,
    x_out: torch.Tensor | None,
    mode: MixedCommMode | None,
) -> None:
    """Raise ValueError for tensors, operations and modes that the handler does not take."""
    dp_size = handler.para_info.dp_size
    if op not in handler.valid_op_list:
        raise ValueError(f"Invalid op: {op.name}")
    if mode is not None and mode not in handler.valid_mode_list:
        raise ValueError(f"Invalid mode: {mode.name}")
    if x_in.ndim < 2:
        raise ValueError("x_in.ndim should be at least 2")
    if x_in.dtype != handler.dtype:
        raise ValueError(f"x_in.dtype should be {handler.dtype}")
    if x_in.device != handler.device:
        raise ValueError(f"x_in.device should be {handler.device}")
    rows, is_scatter = x_in.shape[0], op in _SCATTERS
    if is_scatter and rows % dp_size != 0:
        raise ValueError("x_in.shape[0] should be divisible by dp_size")
    if x_out is None:
        return
    if x_out.ndim != x_in.ndim:
        raise ValueError("x_out.ndim should be equal to x_in.ndim")
    if x_out.dtype != x_in.dtype:
        raise ValueError("x_out.dtype should be equal to x_in.dtype")
    if x_out.device != x_in.device:
        raise ValueError("x_out.device should be equal to x_in.device")
    if x_out.shape[1:] != x_in.shape[1:]:
        raise ValueError("x_out.shape[1:] should be equal to x_in.shape[1:]")
    if is_scatter and x_out.shape[0] * dp_size != rows:
        raise ValueError("x_out.shape[0] * dp_size should be equal to x_in.shape[0]")
    if not is_scatter and x_out.shape[0] != rows * dp_size:
        raise ValueError("x_out.shape[0] should be equal to x_in.shape[0] * dp_size")


def run_mixed_comm(
    op: MixedCommOp,
    handler: MixedCommHandler,
    x_in: torch.Tensor,
    x_out: torch.Tensor | None = None,
    mode: MixedCommMode | None = None,
    *,
    skip_check: bool = False,
    stream: Any = None,
) -> torch.Tensor:
    """Run an operation, and return its output. Collective.

    ``x_in``: at least two dimensions, with the handler's type and device; rows are its first
    dimension. ``x_out``: dp_size times the rows of a gather, one dp_size-th of those of a scatter,
    and otherwise as many; None: a new tensor. ``mode`` None: AUTOTUNE if it was measured, else
    NCCL_TP_DP or NCCL_ONE. On a GPU it is queued in ``stream``; None: the current stream.

    Raises ValueError, before anything moves, unless ``skip_check``.
    """
    if not skip_check:
        _check(op, handler, x_in, x_out, mode)
    if mode is None:
        if handler.use_autotune:
            mode = MixedCommMode.AUTOTUNE
        elif MixedCommMode.NCCL_TP_DP in handler.valid_mode_list:
            mode = MixedCommMode.NCCL_TP_DP
        else:
            mode = MixedCommMode.NCCL_ONE
    name = "auto" if mode == MixedCommMode.AUTOTUNE else handler._modes[op, mode]
    source = x_in if x_in.is_contiguous() else x_in.contiguous()
    target = x_out
    if target is None or not target.is_contiguous():
        rows = x_in.shape[0]
        if op in _SCATTERS:
            rows //= handler.para_info.dp_size
        else:
            rows *= handler.para_info.dp_size
        target = x_in.new_empty((rows, *x_in.shape[1:]))
    if source.numel() > 0:
        handler.mixed.run(_NAMES[op], source, target, mode=name, stream=stream)
    if x_out is None:
        return target
    return x_out if x_out is target else x_out.copy_(target)


def _is_capability_supported(capability: int) -> bool:
    """Return True for GPUs of this compute capability (90 is that of an H100)."""
    return capability >= _MIN_CAPABILITY


run_mixed_comm.__dict__["is_compute_capability_supported"] = _is_capability_supported
