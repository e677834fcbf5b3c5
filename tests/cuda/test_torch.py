"""Tensors of PyTorch, however its allocator takes memory: copied between GPUs in the order of PyTorch's
stream, in place where peers can map them, staged where not."""

import ctypes
import importlib.util
import os
import pathlib
import subprocess
import sys

BUILD = pathlib.Path(os.environ.get("BANYAN_BUILD", "build")).resolve()
SKIPPED = 77
CUDA, POISON, ROUNDS = 2, 77, 3
# Ways in which PyTorch allocates memory, and whether peers can map it.
ALLOCATORS = [
    ("", True),
    ("expandable_segments:True", True),
    ("backend:cudaMallocAsync", False),
]


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    """DLPack's DLTensor."""
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("transport", ctypes.c_char_p), ("slot_bytes", ctypes.c_size_t),
                ("optimal_rounds", ctypes.c_bool), ("device", Device)]


class Banyan:
    """Calls that end the rank with Banyan's sentence when they fail."""

    def __init__(self):
        self.library = ctypes.CDLL(str(BUILD / "lib/libbanyan.so"))
        self.library.banyan_last_error.restype = ctypes.c_char_p

    def __getattr__(self, name):
        function = getattr(self.library, "banyan_" + name)

        def call(*arguments):
            if function(*arguments) != 0:
                sys.exit(f"banyan_{name}: {self.library.banyan_last_error().decode()}")
        return call

    def ask(self, name, world):
        return getattr(self.library, "banyan_" + name)(world)


def describe(tensor, device):
    import torch
    codes = {torch.uint8: (1, 8), torch.float32: (2, 32), torch.bfloat16: (4, 16)}
    code, bits = codes[tensor.dtype]
    lengths = ctypes.c_int64 * max(tensor.dim(), 1)
    return Tensor(tensor.data_ptr(), Device(CUDA, device), tensor.dim(), DType(code, bits, 1),
                  lengths(*tensor.shape), lengths(*tensor.stride()), 0)


def make(rank):
    """Pairs of what is sent and what receives the same from the rank before, and the memory around it."""
    import torch

    def poisoned(shape, dtype):
        return torch.full(shape, POISON, dtype=dtype, device="cuda")
    pairs = []
    for number, (shape, dtype) in enumerate([((1 << 20,), torch.uint8), ((1024, 4096), torch.bfloat16),
                                             ((33, 77, 5), torch.float32), ((3,), torch.float32),
                                             ((150 << 20,), torch.uint8)]):
        source = poisoned(shape, dtype)
        around = poisoned([length + 6 for length in shape[::-1]], dtype)
        view = around[tuple(slice(2, 2 + length) for length in shape[::-1])]
        pairs.append((number, source, around, view.permute(*range(len(shape) - 1, -1, -1))))
    return pairs


def values(like, rank, round_, number):
    """Whole numbers that every type holds, equal at sender and receiver."""
    import torch
    index = torch.arange(like.numel(), device="cuda", dtype=torch.int64)
    return ((index * 31 + rank * 57 + round_ * 13 + number * 7) % 251).to(like.dtype).reshape(like.shape)


def copy_rounds(banyan, world, service, rank, size, device):
    """Schedules over memory that the allocator has given anew each time."""
    import torch
    before = (rank + size - 1) % size
    stream = torch.cuda.current_stream()
    for epoch in range(2):
        pairs = make(rank)
        for number, source, _, view in pairs:
            banyan.copy_service_submit_send(service, ctypes.byref(describe(source, device)), (rank + 1) % size,
                                            ctypes.c_uint64(number))
            banyan.copy_service_submit_recv(service, ctypes.byref(describe(view, device)), before,
                                            ctypes.c_uint64(number))
        schedule = ctypes.c_void_p()
        banyan.copy_service_prepare(service, ctypes.byref(schedule))
        for round_ in range(ROUNDS):
            sent = [values(source, rank, epoch * 10 + round_, number) for number, source, _, _ in pairs]
            torch.cuda._sleep(4_000_000)
            for (_, source, around, _), new in zip(pairs, sent):
                around.fill_(POISON)
                source.copy_(new)
            banyan.copy_schedule_run(schedule, ctypes.c_void_p(stream.cuda_stream))
            for number, _, around, view in pairs:
                expected = torch.full_like(around, POISON)
                inside = values(view, before, epoch * 10 + round_, number)
                expected[tuple(slice(2, 2 + length) for length in view.shape[::-1])] = inside.permute(
                    *range(view.dim() - 1, -1, -1))
                if not torch.equal(around, expected):
                    sys.exit(f"rank {rank}, round {round_} of {epoch}: tensor {number} is not what was sent")
        banyan.copy_service_check(service)
        banyan.library.banyan_copy_schedule_destroy(schedule)
        torch.cuda.synchronize()
        banyan.world_barrier(world)
        del pairs, sent
        torch.cuda.empty_cache()


def be_a_rank():
    import torch
    banyan = Banyan()
    world = ctypes.c_void_p()
    banyan.world_open(None, ctypes.byref(world))
    rank, size = banyan.ask("world_rank", world), banyan.ask("world_size", world)
    device = banyan.ask("world_local_rank", world) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    options = Options(ctypes.sizeof(Options), None, 0, False, Device(CUDA, device))
    service = ctypes.c_void_p()
    banyan.copy_service_open(world, b"direct", ctypes.byref(options), ctypes.byref(service))
    copy_rounds(banyan, world, service, rank, size, device)
    banyan.library.banyan_copy_service_close(service)
    banyan.world_close(world)


def skip(reason):
    print("skipped:", reason)
    sys.exit(SKIPPED)


def start(allocator):
    environment = dict(os.environ, BANYAN_LOG="info")
    if allocator:
        environment.update(PYTORCH_ALLOC_CONF=allocator, PYTORCH_CUDA_ALLOC_CONF=allocator)
    return subprocess.Popen([BUILD / "bin/banyan", "launch", "-n", "2", "--", sys.executable, __file__, "rank"],
                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main():
    if len(sys.argv) > 1:
        be_a_rank()
        return
    if not importlib.util.find_spec("torch"):
        skip("there is no PyTorch")
    if not (BUILD / "lib/libbanyan_cuda.so").exists():
        skip("there is no libbanyan_cuda.so")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        skip(f"this machine has no CUDA driver ({error})")
    # All at once: what takes long is PyTorch's start.
    jobs = [start(allocator) for allocator, _ in ALLOCATORS]
    said = [job.communicate()[0] for job in jobs]
    for (allocator, mapped), job, text in zip(ALLOCATORS, jobs, said):
        name = allocator or "as it is"
        if job.returncode != 0:
            sys.exit(f"{name}: {text}")
        if ("stages what it receives" in text) == mapped:
            sys.exit(f"{name}: {'not mapped' if mapped else 'not staged'}: {text}")
        print(f"PyTorch's allocator, {name}: right, {'mapped' if mapped else 'staged'}")


main()
