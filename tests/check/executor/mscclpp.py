"""An interpreter of MSCCL++'s execution plans, written from that project's executor and none of Banyan's code.

It follows src/core/executor/execution_plan.cc (places and sizes), executor.cc (scratch, channels, halves) and
src/core/include/execution_kernel.hpp (operations) of microsoft/mscclpp at commit 1f5f065. Every thread of every block
is a generator that yields between two steps; a random schedule interleaves them, the proxies, and transfers that a
proxy has begun. Elements are 32-bit integers and are added.
"""

import json
import random
import struct

VECTOR = 16
PREDEFINED_SCRATCH = 1 << 26
MAX_OPERATION, MAX_CHANNEL, MAX_CHANNEL_PER_OPERATION, MAX_SYNCERS = 64, 16, 8, 16
LOCAL_BUFFERS = 2
NO_SIZE = 2**32 - 1
MASK = 2**32 - 1


class Refused(Exception):
    """The executor throws, or reads past one of its arrays."""


class Stuck(Exception):
    """Nothing can go on."""


def add(a, b):
    return bytes(
        struct.pack(
            f"<{len(a) // 4}I",
            *[
                (x + y) & MASK
                for x, y in zip(*(struct.unpack(f"<{len(v) // 4}I", v) for v in (a, b)))
            ],
        )
    )


class Memory:
    """An allocation; a rank's input or output lies in it from `offset` on."""

    def __init__(self, size, offset=0):
        self.bytes = bytearray(size)
        self.offset = offset

    def part(self, offset):
        made = Memory(0, offset)
        made.bytes = self.bytes
        return made

    def read(self, at, size):
        if at < 0 or at + size > len(self.bytes):
            raise Refused(f"reads bytes [{at}, {at + size}) of {len(self.bytes)}")
        return bytes(self.bytes[at : at + size])

    def write(self, at, data):
        if at < 0 or at + len(data) > len(self.bytes):
            raise Refused(f"writes bytes [{at}, {at + len(data)}) of {len(self.bytes)}")
        self.bytes[at : at + len(data)] = data


class Operation:
    """What setupOperation makes of an entry of "ops"."""

    def __init__(self, load, block, entry):
        self.name = entry["name"]
        self.channel_type = entry.get("channel_type", "none")
        self.channels = entry.get("channel_ids", [])
        if len(self.channels) > MAX_CHANNEL_PER_OPERATION:
            raise Refused(f"{len(self.channels)} channels in an operation")
        self.index, self.slices = 0, 1
        if "tbg_info" in entry:
            self.index, self.slices = entry["tbg_info"]["tb_id"], entry["tbg_info"]["tbg_size"]
        self.inputs = [load.operand(self, block, one) for one in entry.get("src_buff", [])]
        self.outputs = [load.operand(self, block, one) for one in entry.get("dst_buff", [])]
        for side in (self.inputs, self.outputs):
            if len(side) > LOCAL_BUFFERS + MAX_CHANNEL_PER_OPERATION:
                raise Refused(f"{len(side)} operands in an operation")
        self.barrier, self.blocks = entry.get("barrier_id"), entry.get("num_threadblocks")
        self.semaphores = entry.get("semaphore_ids", [])
        self.body = []
        if "iter_context" in entry:
            self.unit = entry["iter_context"]["unit_size"]
            size = entry["iter_context"]["num_chunks"] * load.upper_chunk()
            self.iterations = -(-size // self.unit)
            if self.iterations > 0xFFFF:
                raise Refused("more iterations than 16 bits hold")
            self.body = [Operation(load, block, one) for one in entry["ops"]]


class Operand:
    def __init__(self, kind, number, reference, buffer, offset, size):
        self.kind, self.number, self.reference = kind, number, reference
        self.buffer, self.offset, self.size = buffer, offset, size


class Load:
    """ExecutionPlan::Impl for one rank and message: offsets, sizes and channels."""

    def __init__(self, plan, rank, input_size, output_size, input_offset=0, output_offset=0):
        gpu = plan["gpus"][rank]
        self.plan, self.rank, self.gpu = plan, rank, gpu
        self.constant = {"i": input_offset, "o": output_offset, "s": 0}
        self.alignment = plan.get("buffer_alignment", 16)
        self.reuse = plan.get("reuse_resources", False)
        self.double = plan.get("use_double_scratch_buffer", False)
        self.packets = plan["protocol"] == "LL"
        self.input_size, self.output_size = input_size, output_size
        self.input_chunks, self.output_chunks = gpu["input_chunks"], gpu["output_chunks"]
        self.scratch_chunks = gpu["scratch_chunks"]
        if gpu["id"] != rank or not self.input_chunks or not self.output_chunks:
            raise Refused("divides by zero")
        size = output_size if plan["collective"] == "allgather" else input_size
        for bytes_, chunks in ((input_size, self.input_chunks), (output_size, self.output_chunks)):
            if bytes_ % self.alignment or bytes_ // self.alignment % chunks:
                raise Refused("not aligned with buffer alignment or chunks")
        if not plan.get("min_message_size", 0) <= size <= plan.get("max_message_size", 2**64 - 1):
            raise Refused("not within the valid range")
        if input_size // self.input_chunks != output_size // self.output_chunks:
            raise Refused("size per chunk inconsistent")
        self.remote = gpu["remote_buffers"]
        self.switches = [
            (one["buffer_type"], group["ranks"])
            for one in gpu["channels"]
            if one["channel_type"] == "switch"
            for group in one["rank_groups"]
        ]
        self.blocks = []
        for number, block in enumerate(gpu["threadblocks"]):
            if block["id"] != number:
                raise Refused("thread blocks are out of order")
            self.blocks.append(self.load_block(block))
        if not self.blocks:
            raise Refused("launches no block")

    def load_block(self, block):
        made = {"memory": [], "port": [], "switch": [], "memory_buffers": [], "port_buffers": []}
        for one in block["channels"]:
            made[one["channel_type"]] += one["channel_ids"]
        for one in block.get("remote_buffer_refs", []):
            made[one["access_channel_type"] + "_buffers"] += one["remote_buffer_ids"]
        for name, numbers in made.items():
            if len(numbers) > MAX_CHANNEL:
                raise Refused(f"{len(numbers)} {name} in a block")
        made["ops"] = [Operation(self, made, one) for one in block["ops"]]
        if sum(1 + len(op.body) for op in made["ops"]) > MAX_OPERATION:
            raise Refused("too many operations")
        return made

    def operand(self, op, block, entry):
        constant, reference = 0, None
        if "buffer_id" in entry:
            reference = entry["buffer_id"]
            number = block[op.channel_type + "_buffers"][entry["buffer_id"]]
            kind, buffer = "remote", self.remote[number]["type"]
            constant = self.constant[buffer]
        elif "switch_channel_id" in entry:
            number = block["switch"][entry["switch_channel_id"]]
            kind, buffer = "switch", self.switches[number][0]
            constant = self.constant[buffer]
        else:
            kind, number, buffer = "local", None, entry["type"]
        offset = self.offset(entry["index"], buffer) + constant
        size = self.offset(entry["index"] + entry["size"], None) - self.offset(entry["index"], None)
        begin, end = (
            self.share(size, op.index, op.slices),
            self.share(size, op.index + 1, op.slices),
        )
        return Operand(kind, number, reference, buffer, offset + begin, end - begin)

    def share(self, size, index, slices):
        units = size // self.alignment
        least, more = divmod(units, slices)
        return (index * least + min(index, more)) * self.alignment

    def offset(self, index, buffer):
        chunk = -(-self.input_size // self.input_chunks)
        ring = self.ring(PREDEFINED_SCRATCH)
        if buffer == "s" and self.reuse and ring < chunk:
            return index * ring
        return self.share(self.input_size, index, self.input_chunks)

    def upper_chunk(self):
        return -(-(self.input_size // self.alignment) // self.input_chunks) * self.alignment

    def ring(self, scratch):
        if not self.scratch_chunks:
            return 0
        size = -(-(scratch // 2 if self.double else scratch) // self.scratch_chunks)
        return -(-size // self.alignment) * self.alignment

    def scratch_size(self, input_range):
        if self.reuse and self.scratch_chunks:
            return 2 * PREDEFINED_SCRATCH
        chunk = -(
            -min(input_range, self.plan.get("max_message_size", 2**64 - 1)) // self.input_chunks
        )
        size = chunk * self.scratch_chunks * (2 if self.packets else 1) * (2 if self.double else 1)
        return -(-size // self.alignment) * self.alignment


class Connection:
    """One direction of a channel: signals that have arrived; for ports also transfers under way."""

    def __init__(self):
        self.signals = 0
        self.under_way = []


class Machine:
    """All ranks, their runs, and a random schedule.

    `begin(rank, run)` fills a rank's input and returns nothing; `end(rank, run)` looks at its output. Both are called
    when that rank's own part begins and has ended, as a caller on a stream would.
    """

    def __init__(
        self,
        plan,
        input_size,
        output_size,
        begin,
        end,
        runs,
        seed,
        packet=16,
        threads=8,
        extra=0,
        tail=0,
    ):
        self.plan, self.ranks = plan, len(plan["gpus"])
        self.random = random.Random(seed)
        self.packet, self.threads = packet, threads
        self.begin, self.end, self.runs = begin, end, runs
        self.load, self.memory = [], []
        for r in range(self.ranks):
            if plan["inplace"] and input_size < output_size:  # all-gather
                output = Memory(extra + output_size + tail, extra)
                input_ = output.part(extra + r * input_size)
            elif plan["inplace"]:
                input_ = Memory(extra + input_size + tail, extra)
                output = input_.part(extra + r * output_size if output_size < input_size else extra)
            else:
                input_, output = (
                    Memory(extra + size + tail, extra) for size in (input_size, output_size)
                )
            self.load.append(Load(plan, r, input_size, output_size, input_.offset, output.offset))
            scratch = Memory(self.load[r].scratch_size(len(input_.bytes)))
            self.memory.append({"i": input_, "o": output, "s": scratch})
        self.pair_channels()
        self.run = [0] * self.ranks
        self.semaphores = [
            [one["init_value"] for one in gpu.get("semaphores", [])] for gpu in plan["gpus"]
        ]
        self.syncers = [[0] * MAX_SYNCERS for _ in range(self.ranks)]
        self.fifo = [[] for _ in range(self.ranks)]
        self.moved = True

    def pair_channels(self):
        """The k-th channel from a to b pairs with the k-th from b to a."""
        self.ends = {}
        for kind in ("memory", "port"):
            peers = [
                [
                    peer
                    for one in gpu["channels"]
                    if one["channel_type"] == kind
                    for peer in one["connected_to"]
                ]
                for gpu in self.plan["gpus"]
            ]
            for rank in range(self.ranks):
                for number, peer in enumerate(peers[rank]):
                    k = peers[rank][:number].count(peer)
                    back = [i for i, other in enumerate(peers[peer]) if other == rank]
                    self.ends[kind, rank, number] = (peer, back[k] if k < len(back) else None)
        self.inbound = {key: Connection() for key in self.ends}
        self.expected = dict.fromkeys(self.ends, 0)
        self.outbound = {key: Connection() for key in self.ends if key[0] == "port"}

    def give(self, kind, rank, number):
        peer, back = self.ends[kind, rank, number]
        if back is not None:
            self.inbound[kind, peer, back].signals += 1

    def half(self, rank):
        load = self.load[rank]
        return (
            len(self.memory[rank]["s"].bytes) >> 1
            if load.double and (self.run[rank] + 1) % 2 == 0
            else 0
        )

    def local(self, rank, buffer):
        """Memory and offset of what getBuffer returns."""
        memory = self.memory[rank][buffer]
        return memory, memory.offset if buffer != "s" else self.half(rank)

    def remote(self, rank, operand):
        info = self.load[rank].remote[operand.number]
        return self.memory[info["rank"]][info["type"]]

    def ringed(self, rank, buffer, offset):
        load = self.load[rank]
        if not load.reuse or buffer != "s":
            return offset
        return offset % load.ring(load.scratch_size(0) // 2)

    # Threads. A generator yields True after a step, and False while it waits.

    def thread(self, rank, number, tid, sync):
        block = self.load[rank].blocks[number]
        for op in block["ops"]:
            if op.name != "pipeline":
                yield from self.execute(rank, block, op, tid, sync, 0, NO_SIZE)
                continue
            for i in range(op.iterations):
                for inner in op.body:
                    yield from self.execute(rank, block, inner, tid, sync, i * op.unit, op.unit)

    def execute(self, rank, block, op, tid, sync, offset, unit):
        handler = getattr(self, "do_" + op.name, None)
        if handler is None:
            raise Refused(f"invalid operation type: {op.name}")
        yield from handler(rank, block, op, tid, sync, offset, unit)

    @staticmethod
    def wait_until(condition):
        while not condition():
            yield False

    def do_nop(self, rank, block, op, tid, sync, offset, unit):
        yield from sync.wait()

    def do_barrier(self, rank, block, op, tid, sync, offset, unit):
        yield from sync.wait()
        if tid == 0:
            if op.barrier >= MAX_SYNCERS:
                raise Refused("barrier out of range")
            self.syncers[rank][op.barrier] += 1
            target = -(-self.syncers[rank][op.barrier] // op.blocks) * op.blocks
            yield True
            yield from self.wait_until(lambda: self.syncers[rank][op.barrier] >= target)
        yield from sync.wait()

    def do_signal(self, rank, block, op, tid, sync, offset, unit):
        if tid >= len(op.channels):
            return
        number = block[op.channel_type][op.channels[tid]]
        if op.channel_type == "memory":
            self.give("memory", rank, number)
        else:
            self.fifo[rank].append(("signal", number))
        yield True

    do_rlxsignal = do_signal

    def do_wait(self, rank, block, op, tid, sync, offset, unit):
        if tid >= len(op.channels):
            return
        key = (op.channel_type, rank, block[op.channel_type][op.channels[tid]])
        self.expected[key] += 1
        expected = self.expected[key]
        yield from self.wait_until(lambda: self.inbound[key].signals >= expected)
        yield True

    do_rlxwait = do_wait

    def do_flush(self, rank, block, op, tid, sync, offset, unit):
        if tid < len(op.outputs):  # not channels
            yield from self.post(rank, ("flush", block["port"][op.channels[tid]]))

    def post(self, rank, trigger):
        done = [False]
        self.fifo[rank].append((*trigger, done))
        yield True
        yield from self.wait_until(lambda: done[0])

    def do_sem_acquire(self, rank, block, op, tid, sync, offset, unit):
        if tid >= len(op.semaphores):
            return
        which, values = op.semaphores[tid], self.semaphores[rank]
        old = values[which]
        values[which] -= 1
        yield True
        if old <= 0:
            yield from self.wait_until(lambda: values[which] >= old)

    def do_sem_release(self, rank, block, op, tid, sync, offset, unit):
        if tid < len(op.semaphores):
            self.semaphores[rank][op.semaphores[tid]] += 1
            yield True

    def steps(self, size, tid, step=VECTOR):
        """The places of a thread's vectors, and of the rest."""
        whole = size // step * step
        for at in range(tid * step, whole, self.threads * step):
            yield at, step
        if size % step and tid == 0:
            yield whole, size % step

    @staticmethod
    def sized(size, offset, unit):
        return min((size - offset) % 2**32, unit)  # of unsigned numbers

    def copy(self, to, to_at, source, source_at, size, tid):
        for at, step in self.steps(size, tid):
            data = source.read(source_at + at, step)
            yield True
            to.write(to_at + at, data)
            yield True

    def do_copy(self, rank, block, op, tid, sync, offset, unit):
        source, to = op.inputs[0], op.outputs[0]
        from_memory, from_base = self.local(rank, source.buffer)
        to_memory, to_base = self.local(rank, to.buffer)
        yield from self.copy(
            to_memory, to_base + to.offset + self.ringed(rank, to.buffer, offset),
            from_memory, from_base + source.offset + self.ringed(rank, source.buffer, offset),
            self.sized(source.size, offset, unit), tid,
        )  # fmt: skip

    def do_get(self, rank, block, op, tid, sync, offset, unit):
        for source, to in zip(op.inputs, op.outputs):
            local, base = self.local(rank, to.buffer)
            yield from self.copy(  # the two offsets are exchanged
                local, base + source.offset + self.ringed(rank, source.buffer, offset),
                self.remote(rank, source), to.offset + self.ringed(rank, to.buffer, offset),
                self.sized(source.size, offset, unit), tid,
            )  # fmt: skip

    def do_put(self, rank, block, op, tid, sync, offset, unit, trigger="put"):
        if op.channel_type == "memory":
            source, base = self.local(rank, op.inputs[0].buffer)
            for one, to in zip(op.inputs, op.outputs):
                yield from self.copy(
                    self.remote(rank, to), to.offset + self.ringed(rank, to.buffer, offset),
                    source, base + one.offset + self.ringed(rank, one.buffer, offset),
                    self.sized(to.size, offset, unit), tid,
                )  # fmt: skip
        elif tid < len(op.outputs):
            one, to = op.inputs[tid], op.outputs[tid]
            move = (
                self.remote(rank, to), to.offset + self.ringed(rank, to.buffer, offset),
                self.memory[rank][one.buffer], one.offset + self.ringed(rank, one.buffer, offset),
                self.sized(to.size, offset, unit),
            )  # fmt: skip
            number = block["port"][op.channels[tid]]
            if trigger == "pwsf":
                yield from self.post(rank, ("pwsf", number, move))
            else:
                self.fifo[rank].append((trigger, number, move))
                yield True

    def do_pws(self, *args):
        yield from self.do_put(*args, trigger="pws")

    def do_pwsf(self, *args):
        yield from self.do_put(*args, trigger="pwsf")

    def reduce(self, rank, op, tid, offset, unit, remote_inputs, sends):
        first, to = op.inputs[0], op.outputs[0]
        size = self.sized(first.size, offset, unit)
        memory, base = self.local(rank, first.buffer)
        into, into_base = self.local(rank, to.buffer)
        if size % VECTOR or base % VECTOR or into_base % VECTOR:
            raise Refused("not a multiple of 16 bytes")
        for at, step in self.steps(size, tid):
            value = memory.read(
                base + first.offset + self.ringed(rank, first.buffer, offset) + at, step
            )
            yield True
            for i, one in enumerate(op.inputs[1:]):
                if remote_inputs:
                    other, place = self.remote(rank, one), self.ringed(rank, one.buffer, offset)
                else:
                    other, start = self.local(rank, one.buffer)
                    # The type that decides is that of an output, of which a remote one is a number.
                    decides = op.outputs[i + 1].reference if i + 1 < len(op.outputs) else 0
                    place = start + self.ringed(
                        rank, "ios"[decides] if decides < 3 else "i", offset
                    )
                value = add(value, other.read(one.offset + place + at, step))
                yield True
            into.write(into_base + to.offset + self.ringed(rank, to.buffer, offset) + at, value)
            yield True
            for one in op.outputs[1:] if sends else []:
                self.remote(rank, one).write(
                    one.offset + self.ringed(rank, one.buffer, offset) + at, value
                )
                yield True

    def do_re(self, rank, block, op, tid, sync, offset, unit):
        yield from self.reduce(rank, op, tid, offset, unit, False, False)

    def do_res(self, rank, block, op, tid, sync, offset, unit):
        yield from self.reduce(rank, op, tid, offset, unit, False, True)

    def do_rre(self, rank, block, op, tid, sync, offset, unit):
        yield from self.reduce(rank, op, tid, offset, unit, True, False)

    def do_rres(self, rank, block, op, tid, sync, offset, unit):
        yield from self.reduce(rank, op, tid, offset, unit, True, True)

    # Packets: 4 bytes of data and a flag of 4 bytes, once (LL8) or twice (LL16). Loops do not matter to them.

    def write_packet(self, rank, memory, at, data):
        if at % self.packet:
            raise Refused("a packet is not aligned")
        flag = struct.pack("<I", self.run[rank] + 1)
        memory.write(at, b"".join(data[i : i + 4] + flag for i in range(0, len(data), 4)))

    def read_packet(self, rank, memory, at):
        flag = struct.pack("<I", self.run[rank] + 1)
        while True:
            raw = memory.read(at, self.packet)
            if all(raw[i + 4 : i + 8] == flag for i in range(0, self.packet, 8)):
                return b"".join(raw[i : i + 4] for i in range(0, self.packet, 8))
            yield False

    def packets(self, size, tid):
        return range(tid, size // (self.packet // 2), self.threads)

    def do_ppkt(self, rank, block, op, tid, sync, offset, unit):
        half = self.half(rank)
        if op.channel_type == "port":
            if tid < len(op.outputs):
                one, to = op.inputs[tid], op.outputs[tid]
                self.fifo[rank].append(
                    ("put", block["port"][op.channels[tid]],
                     (self.remote(rank, to), 2 * to.offset + half, self.memory[rank][one.buffer],
                      2 * one.offset + (half if one.buffer == "s" else 0), 2 * one.size))
                )  # fmt: skip
                yield True
            return
        source, base = self.local(rank, op.inputs[0].buffer)
        for one, to in zip(op.inputs, op.outputs):
            for i in self.packets(one.size, tid):
                data = source.read(base + one.offset + i * self.packet // 2, self.packet // 2)
                yield True
                self.write_packet(
                    rank, self.remote(rank, to), 2 * to.offset + half + i * self.packet, data
                )
                yield True

    def do_cpkt(self, rank, block, op, tid, sync, offset, unit):
        one, to = op.inputs[0], op.outputs[0]
        source, base = self.local(rank, one.buffer)
        into, into_base = self.local(rank, to.buffer)
        for i in self.packets(one.size, tid):
            data = source.read(base + one.offset + i * self.packet // 2, self.packet // 2)
            yield True
            self.write_packet(rank, into, into_base + 2 * to.offset + i * self.packet, data)
            yield True

    def do_upkt(self, rank, block, op, tid, sync, offset, unit):
        one, to = op.inputs[0], op.outputs[0]
        into, base = self.local(rank, to.buffer)
        for i in self.packets(one.size, tid):
            at = self.half(rank) + 2 * one.offset + i * self.packet
            data = yield from self.read_packet(rank, self.memory[rank]["s"], at)
            into.write(base + to.offset + i * self.packet // 2, data)
            yield True

    def do_rppkt(self, rank, block, op, tid, sync, offset, unit):
        one, half, scratch = op.inputs[0], self.half(rank), self.memory[rank]["s"]
        for i in self.packets(one.size, tid):
            data = yield from self.read_packet(
                rank, scratch, half + 2 * one.offset + i * self.packet
            )
            for to in op.outputs if op.channel_type == "memory" else []:
                self.write_packet(
                    rank, self.remote(rank, to), half + 2 * to.offset + i * self.packet, data
                )
                yield True
        if op.channel_type == "port":
            yield from sync.wait()
            if tid < len(op.outputs):
                to = op.outputs[tid]
                self.fifo[rank].append(
                    ("put", block["port"][op.channels[tid]],
                     (self.remote(rank, to), 2 * to.offset + half, scratch, 2 * one.offset + half, 2 * one.size))
                )  # fmt: skip
                yield True

    def reduce_packets(self, rank, op, tid, copies, sends):
        first, to, half = op.inputs[0], op.outputs[0], self.half(rank)
        source, base = self.local(rank, first.buffer)
        into, into_base = self.local(rank, to.buffer)
        for i in self.packets(first.size, tid):
            data = bytes(self.packet // 2)
            for one in op.inputs[1:]:
                at = half + 2 * one.offset + i * self.packet
                data = add(data, (yield from self.read_packet(rank, self.memory[rank]["s"], at)))
            data = add(
                data, source.read(base + first.offset + i * self.packet // 2, self.packet // 2)
            )
            yield True
            into.write(into_base + to.offset + i * self.packet // 2, data)
            yield True
            if copies:
                memory, start = self.local(rank, op.outputs[1].buffer)
                self.write_packet(
                    rank, memory, start + 2 * op.outputs[1].offset + i * self.packet, data
                )
                yield True
            for one in op.outputs[2 if copies else 1 :] if sends else []:
                self.write_packet(
                    rank, self.remote(rank, one), half + 2 * one.offset + i * self.packet, data
                )
                yield True

    def do_repkt(self, rank, block, op, tid, sync, offset, unit):
        yield from self.reduce_packets(rank, op, tid, False, False)

    def do_respkt(self, rank, block, op, tid, sync, offset, unit):
        yield from self.reduce_packets(rank, op, tid, False, True)

    def do_recpkt(self, rank, block, op, tid, sync, offset, unit):
        yield from self.reduce_packets(rank, op, tid, True, False)

    def do_recspkt(self, rank, block, op, tid, sync, offset, unit):
        yield from self.reduce_packets(rank, op, tid, True, True)

    # Switch channels.

    def group(self, rank, operand):
        buffer, ranks = self.load[rank].switches[operand.number]
        return [self.memory[r][buffer] for r in ranks]

    def do_gstore(self, rank, block, op, tid, sync, offset, unit):
        one, to = op.inputs[0], op.outputs[0]
        source, base = self.local(rank, one.buffer)
        for at, step in self.steps(self.sized(one.size, offset, unit), tid):
            data = source.read(base + one.offset + self.ringed(rank, one.buffer, offset) + at, step)
            yield True
            for memory in self.group(rank, to):
                memory.write(to.offset + self.ringed(rank, to.buffer, offset) + at, data)
                yield True

    def do_gstorepkt(self, rank, block, op, tid, sync, offset, unit):
        one, to = op.inputs[0], op.outputs[0]
        source, base = self.local(rank, one.buffer)
        for i in self.packets(one.size, tid):
            data = yield from self.read_packet(
                rank, source, base + 2 * one.offset + i * self.packet
            )
            for memory in self.group(rank, to):
                self.write_packet(
                    rank, memory, self.half(rank) + 2 * to.offset + i * self.packet, data
                )
                yield True

    def do_glres(self, rank, block, op, tid, sync, offset, unit):
        one, to = op.inputs[0], op.outputs[0]
        for at, step in self.steps(self.sized(one.size, offset, unit), tid):
            value = bytes(step)
            for memory in self.group(rank, one):
                value = add(
                    value,
                    memory.read(one.offset + self.ringed(rank, one.buffer, offset) + at, step),
                )
                yield True
            for memory in self.group(rank, to):
                memory.write(to.offset + self.ringed(rank, to.buffer, offset) + at, value)
                yield True

    # The schedule.

    def proxy(self, rank):
        """Take one trigger. A put is carried out at any later time, at the latest before the connection's next signal."""
        if not self.fifo[rank]:
            return False
        kind, number, *rest = self.fifo[rank].pop(0)
        connection = self.outbound["port", rank, number]
        if kind in ("put", "pws", "pwsf"):
            connection.under_way.append(rest[0])
        if kind != "put":
            while connection.under_way:
                self.carry(connection)
        if kind in ("signal", "pws", "pwsf"):
            self.give("port", rank, number)
        if kind in ("flush", "pwsf"):
            rest[-1][0] = True
        return True

    def carry(self, connection):
        to, to_at, source, at, size = connection.under_way.pop(
            self.random.randrange(len(connection.under_way))
        )
        to.write(to_at, source.read(at, size))

    def start(self, rank):
        self.begin(self, rank, self.run[rank])
        made = []
        for number in range(len(self.load[rank].blocks)):
            sync = Syncthreads(self.threads)
            made += [self.thread(rank, number, tid, sync) for tid in range(self.threads)]
        return made

    def play(self):
        """Execute all runs. A rank begins its next run as soon as its own part of the last one has ended."""
        running = [self.start(r) for r in range(self.ranks)]
        idle = 0
        busy = [0.3] * self.ranks  # proxies
        weights = [1.0] * self.ranks
        while any(run < self.runs for run in self.run):
            if self.random.random() < 0.02:  # some ranks lag for a while
                weights = [self.random.choice((0.02, 0.3, 1.0)) for _ in weights]
                busy = [self.random.choice((0.001, 0.05, 0.5)) for _ in weights]
            rank = self.random.choices(range(self.ranks), weights)[0]
            moved = self.random.random() < busy[rank] and self.proxy(rank)
            under_way = [
                one for key, one in self.outbound.items() if key[1] == rank and one.under_way
            ]
            if under_way and self.random.random() < 0.1:
                self.carry(self.random.choice(under_way))
                moved = True
            if running[rank]:
                i = self.random.randrange(len(running[rank]))
                for _ in range(self.random.choice((1, 3, 40))):
                    try:
                        if not next(running[rank][i]):
                            break
                        moved = True
                    except StopIteration:
                        running[rank][i] = running[rank][-1]
                        running[rank].pop()
                        moved = True
                        break
            elif self.run[rank] < self.runs:
                self.end(self, rank, self.run[rank])
                self.run[rank] += 1
                running[rank] = self.start(rank) if self.run[rank] < self.runs else []
                moved = True
            idle = 0 if moved or any(self.fifo) else idle + 1
            if idle > 400 * self.ranks * (1 + max(map(len, running))):
                raise Stuck("nothing can go on")


class Syncthreads:
    """__syncthreads() of a block."""

    def __init__(self, threads):
        self.threads, self.arrived = threads, 0

    def wait(self):
        self.arrived += 1
        target = -(-self.arrived // self.threads) * self.threads
        yield True
        while self.arrived < target:
            yield False


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)
