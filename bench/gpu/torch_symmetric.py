"""All-reduce through PyTorch's symmetric memory, beside rows of banyan bench --gpu.

usage: banyan launch -n RANKS -- python3 torch_symmetric.py FILE

gpu_bench --json has written FILE. For every all-reduce in it, the better of one_shot_all_reduce and
two_shot_all_reduce_ is measured as Banyan was: bf16, CUDA graphs, the median of replays, the
slowest rank. Rank 0 prints both and adds "torch_symmetric_us" to FILE's rows. If PyTorch cannot
measure, one line has the reason, and the script succeeds. Multicast is switched off.
"""

import json
import os
import statistics
import sys

GRAPH_US, LAUNCHES_MOST, REPLAYS = 400, 40, 21
ONE_SHOT_MOST = 4 << 20  # bytes; above, every rank would read too much of all others

os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")


class Measurement:
    """A rank of PyTorch's group, which measures."""

    def __init__(self, rank, ranks, device, store):
        """Join the group through a file."""
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric

        self.torch, self.dist, self.symmetric = torch, dist, symmetric
        self.rank, self.ranks = rank, ranks
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl",
            init_method="file://" + store,
            rank=rank,
            world_size=ranks,
            device_id=torch.device("cuda", device),
        )
        self.group = dist.group.WORLD.group_name

    def buffer(self, count):
        """Allocate symmetric memory. Collective."""
        tensor = self.symmetric.empty(count, dtype=self.torch.bfloat16, device="cuda")
        self.symmetric.rendezvous(tensor, group=self.dist.group.WORLD)
        return tensor

    def slowest(self, value):
        """Return the largest value of all ranks."""
        all_ranks = self.torch.tensor([value], device="cuda", dtype=self.torch.float64)
        self.dist.all_reduce(all_ranks, op=self.dist.ReduceOp.MAX)
        return all_ranks.item()

    def replay(self, call, launches, replays):
        """Return the microseconds of a call in a graph of several, at the slowest rank."""
        torch = self.torch
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        us = []
        for _ in range(replays):
            torch.cuda.synchronize()
            self.dist.barrier()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            us.append(begin.elapsed_time(end) * 1e3 / launches)
        return self.slowest(statistics.median(us))

    def time_us(self, call):
        """Return the microseconds of a call, in graphs of a suitable length."""
        call()
        self.torch.cuda.synchronize()
        once = self.replay(call, 4, 3)
        launches = max(4, min(int(GRAPH_US / once), LAUNCHES_MOST))
        return self.replay(call, launches, 7 if once > 2000 else REPLAYS)

    def check(self, name, function, tensor):
        """Require the right sums of small whole numbers, which are exact over few ranks."""
        places = self.torch.arange(tensor.numel(), device="cuda") % 8
        tensor.copy_(places + self.rank)
        found = function()
        self.torch.cuda.synchronize()
        wanted = places * self.ranks + sum(range(self.ranks))
        if not self.torch.equal(found, wanted.to(self.torch.bfloat16)):
            raise RuntimeError(f"{name} of {tensor.numel()} elements came out wrong")
        self.dist.barrier()

    def measure(self, size):
        """Return the better one's microseconds and name.

        The timed sums are of zeros, since repeated sums in place change all other values.
        """
        operations = self.torch.ops.symm_mem
        tensor = self.buffer(size // 2)
        calls = {
            "two_shot_all_reduce_": lambda: operations.two_shot_all_reduce_(
                tensor, "sum", self.group
            )
        }
        if size <= ONE_SHOT_MOST:
            calls["one_shot_all_reduce"] = lambda: operations.one_shot_all_reduce(
                tensor, "sum", self.group
            )
        found = []
        for name, call in calls.items():
            self.check(name, call, tensor)
            tensor.zero_()
            found.append((self.time_us(call), name))
        return min(found)


def write(path, document):
    """Replace the file as a whole."""
    with open(path + ".new", "w") as file:
        json.dump(document, file, indent=1, ensure_ascii=False)
        file.write("\n")
    os.replace(path + ".new", path)


def main():
    """Measure every all-reduce of the file."""
    path = sys.argv[1]
    rank, ranks = int(os.environ["BANYAN_RANK"]), int(os.environ["BANYAN_WORLD_SIZE"])
    device = int(os.environ["BANYAN_LOCAL_RANK"])
    with open(path) as file:
        document = json.load(file)
    rows = [row for row in document.get("rows", []) if row["collective"] == "allreduce"]
    if not rows:
        return
    try:
        import torch

        measurement = Measurement(
            rank,
            ranks,
            device % max(torch.cuda.device_count(), 1),
            os.path.abspath(path) + ".store",
        )
        if rank == 0:
            document["torch"] = torch.__version__
            print(
                f"all-reduce, PyTorch {torch.__version__}, symmetric memory without multicast\n"
                f"{'bytes':>25} {'registered':>10} {'torch':>10} {'x torch':>8}",
                flush=True,
            )
        for row in rows:
            us, name = measurement.measure(row["bytes"])
            row["torch_symmetric_us"], row["torch_symmetric"] = round(us, 3), name
            if rank == 0:
                own = row["registered_us"]
                print(
                    f"{row['bytes']:>25} {own:>10.2f} {us:>10.2f} {us / own:>8.2f}  {name}",
                    flush=True,
                )
                write(path, document)
    except Exception as error:
        if rank == 0:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            print(f"PyTorch's symmetric memory was not measured: {reason[0]}", flush=True)
    finally:
        sys.stdout.flush()
        os._exit(0)  # its libraries may wait for each other at exit


main()
