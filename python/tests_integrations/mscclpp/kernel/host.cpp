/* Runs a plan with MSCCL++'s own reader of plans and its own kernel, whose threads are fibers.
 *
 * usage: host PLAN.json DATA INPUT_BYTES OUTPUT_BYTES RUNS SEED PACKET THREADS
 * DATA has the input of each rank, run by run, then the expected output of each rank likewise, with
 * a byte before it that tells whether the output is defined. Exit code 0: all were right; 1: an
 * output was wrong; 2: the executor refuses the plan; 3: nothing can go on. */
#include <ucontext.h>

#include <any>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <unordered_map>
#include <variant>

#include <nlohmann/json.hpp>

#define private public
#include "execution_kernel.hpp"
#include "execution_plan.hpp"

using namespace mscclpp;

#define STACK_BYTES (64 * 1024)
#define MULTICAST_BYTES (UINT64_C(1) << 32)
#define MULTICAST_BASE (UINT64_C(1) << 46)

Index3 threadIdx, blockIdx, blockDim;
namespace mscclpp
{
alignas(16) int4 sharedMem[sizeof(DeviceExecutionPlan) / sizeof(int4)];
}

/* What threads of a block share, while another block runs. */
struct Shared {
    int4 memory[sizeof(DeviceExecutionPlan) / sizeof(int4)];
    decltype(memoryChannels_) memory_channels;
    decltype(portChannels_) port_channels;
    decltype(nvlsChannels_) switches;
    decltype(memoryChannelBufferPtrs_) pointers;
    decltype(portChannelBufferIds_) ids;
    decltype(memoryChannelBufferTypes_) memory_types;
    decltype(portChannelBufferTypes_) port_types;
    uint32_t flag, chunk, offset, first;
    DeviceSemaphore *semaphores;
};

struct Block {
    int rank, number, threads;
    unsigned arrived = 0;
    Shared shared;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    std::shared_ptr<Block> block;
    unsigned thread;
    bool waits, ended;
    std::string failure;
};

struct Connection {
    std::vector<Trigger> under_way;
};

struct Rank {
    std::unique_ptr<ExecutionPlan> plan;
    std::vector<char> memory[3];
    std::vector<DeviceExecutionPlan> device_plans;
    std::vector<DeviceSemaphore> semaphores;
    std::map<std::pair<ChannelType, int>, uint64_t> inbound, expected;
    std::map<std::pair<ChannelType, int>, std::pair<int, int>> peer;
    std::vector<char *> memory_by_id;
    std::deque<Trigger> fifo;
    std::map<int, Connection> connections;
    DeviceSyncer syncers[MAX_DEVICE_SYNCERS];
    std::vector<std::unique_ptr<Fiber>> fibers;
    int run = 0;
    std::vector<std::pair<BufferType, std::vector<int>>> switches;
};

static std::vector<Rank> ranks;
static Fiber *current;
static ucontext_t scheduler;
static std::mt19937 random_numbers;
static size_t input_bytes, output_bytes;
static int run_count, packet_bytes, thread_count;
static std::vector<char> inputs, outputs;

static void shared_save(Shared *to)
{
    memcpy(to->memory, sharedMem, sizeof to->memory);
    to->memory_channels = memoryChannels_;
    to->port_channels = portChannels_;
    to->switches = nvlsChannels_;
    to->pointers = memoryChannelBufferPtrs_;
    to->ids = portChannelBufferIds_;
    to->memory_types = memoryChannelBufferTypes_;
    to->port_types = portChannelBufferTypes_;
    to->flag = flag_;
    to->chunk = scratchChunkSize_;
    to->offset = scratchOffset_;
    to->first = localMemoryIdBegin_;
    to->semaphores = deviceSemaphores;
}

static void shared_load(const Shared *from)
{
    memcpy(sharedMem, from->memory, sizeof from->memory);
    memoryChannels_ = from->memory_channels;
    portChannels_ = from->port_channels;
    nvlsChannels_ = from->switches;
    memoryChannelBufferPtrs_ = from->pointers;
    portChannelBufferIds_ = from->ids;
    memoryChannelBufferTypes_ = from->memory_types;
    portChannelBufferTypes_ = from->port_types;
    flag_ = from->flag;
    scratchChunkSize_ = from->chunk;
    scratchOffset_ = from->offset;
    localMemoryIdBegin_ = from->first;
    deviceSemaphores = from->semaphores;
}

void fiber_yield(bool waits)
{
    Fiber *self = current;
    if (!waits && random_numbers() % 4 != 0)
        return;
    self->waits = waits;
    swapcontext(&self->context, &scheduler);
}

void __syncthreads()
{
    Block *block = current->block.get();
    unsigned threads = (unsigned)block->threads, round = block->arrived++ / threads;
    fiber_wait([=] { return block->arrived >= (round + 1) * threads; });
}

void DeviceSyncer::sync(int blocks)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        int number = (int)(this - deviceSyncers);
        unsigned *count = &ranks[(size_t)current->block->rank].syncers[number].arrived[0];
        unsigned round = (*count)++ / (unsigned)blocks;
        fiber_wait([=] { return *count >= (round + 1) * (unsigned)blocks; });
    }
    __syncthreads();
}

void proxy_push(int rank, const Trigger &trigger)
{
    ranks[(size_t)rank].fifo.push_back(trigger);
}

char *memory_of(int rank, uint32_t id)
{
    return ranks[(size_t)rank].memory_by_id.at(id);
}

std::vector<char *> multicast(const void *place)
{
    uint64_t at = (uint64_t)(uintptr_t)place - MULTICAST_BASE;
    size_t which = at / MULTICAST_BYTES;
    const auto &group = ranks[which / 64].switches.at(which % 64);
    std::vector<char *> found;
    for (int rank : group.second) {
        auto &memory = ranks[(size_t)rank].memory[(int)group.first];
        if (at % MULTICAST_BYTES + 4 > memory.size())
            throw std::runtime_error("a multicast access leaves its memory");
        found.push_back(memory.data() + at % MULTICAST_BYTES);
    }
    return found;
}

static void carry(Connection *connection)
{
    size_t i = random_numbers() % connection->under_way.size();
    Trigger one = connection->under_way[i];
    connection->under_way.erase(connection->under_way.begin() + (ptrdiff_t)i);
    memmove(one.to, one.from, one.bytes);
}

static void proxy_step(Rank *rank)
{
    Trigger one = rank->fifo.front();
    rank->fifo.pop_front();
    Connection *connection = &rank->connections[one.channel];
    if (one.puts)
        connection->under_way.push_back(one);
    if (one.signals || one.flushed) {
        while (!connection->under_way.empty())
            carry(connection);
    }
    if (one.signals) {
        auto to = rank->peer.at({ChannelType::PORT, one.channel});
        ranks[(size_t)to.first].inbound[{ChannelType::PORT, to.second}]++;
    }
    if (one.flushed)
        *one.flushed = true;
}

/* ---- setting up, as executor.cc does ---- */

static char *base_of(size_t rank, BufferType type)
{
    return ranks[rank].memory[(int)type].data();
}

static void load_plan(size_t r, const char *path)
{
    Rank *rank = &ranks[r];
    rank->plan = std::make_unique<ExecutionPlan>(path, (int)r);
    auto *impl = rank->plan->impl_.get();
    impl->loadExecutionPlan(input_bytes, output_bytes, 0, 0);
    size_t range = (input_bytes + 511) / 512 * 512;
    size_t scratch = impl->calScratchBufferSize(std::min(range, impl->maxMessageSize),
                                                std::min(range, impl->maxMessageSize));
    if (impl->reuseResources)
        scratch = size_t{1} << 27;
    rank->memory[0].resize(range);
    rank->memory[1].resize((output_bytes + 511) / 512 * 512);
    rank->memory[2].resize(scratch + 16);
    for (const auto &info : impl->semaphoreInfos)
        rank->semaphores.emplace_back(info.initValue);
    for (const auto &info : impl->nvlsInfos.at((int)r))
        rank->switches.emplace_back(info.bufferType, info.ranks);
}

/* The k-th channel from a to b pairs with the k-th from b to a. */
static std::vector<int> peers_of(size_t r, ChannelType type)
{
    std::vector<int> peers;
    for (const auto &info : ranks[r].plan->impl_->getChannelInfos(type))
        peers.insert(peers.end(), info.connectedPeers.begin(), info.connectedPeers.end());
    return peers;
}

static void connect(size_t r, ChannelType type)
{
    std::vector<int> mine = peers_of(r, type);
    for (size_t i = 0; i < mine.size(); i++) {
        int before = (int)std::count(mine.begin(), mine.begin() + (ptrdiff_t)i, mine[i]);
        std::vector<int> theirs = peers_of((size_t)mine[i], type);
        for (size_t k = 0; k < theirs.size(); k++) {
            if (theirs[k] == (int)r && before-- == 0)
                ranks[r].peer[{type, (int)i}] = {mine[i], (int)k};
        }
        ranks[r].inbound[{type, (int)i}] = ranks[r].expected[{type, (int)i}] = 0;
    }
}

static void make_device_plans(size_t r)
{
    Rank *rank = &ranks[r];
    auto *impl = rank->plan->impl_.get();
    std::vector<char *> addresses;
    std::vector<uint32_t> ids;
    for (int type = 0; type < 3; type++)
        rank->memory_by_id.push_back(base_of(r, (BufferType)type));
    for (const auto &info : impl->getRemoteBufferInfos()) {
        for (ChannelType type : info.accessChannelTypes) {
            char *base = base_of((size_t)info.rank, info.bufferType);
            if (type == ChannelType::MEMORY)
                addresses.push_back(base);
            else if (type == ChannelType::PORT) {
                ids.push_back((uint32_t)rank->memory_by_id.size());
                rank->memory_by_id.push_back(base);
            }
        }
    }
    for (int b = 0; b < impl->getThreadblockCount(); b++) {
        rank->device_plans.emplace_back();
        DeviceExecutionPlan *made = &rank->device_plans.back();
        *made = {};
        auto limit = [](size_t count, const char *what) {
            if (count > MAX_CHANNEL)
                throw Error(std::string("too many ") + what, ErrorCode::ExecutorError);
        };
        const auto ops = impl->getOperations(b);
        const size_t at = (size_t)b;
        limit(impl->threadblockMemoryChannels[at].size(), "memory channels");
        limit(impl->threadblockPortChannels[at].size(), "port channels");
        limit(impl->threadblockMemoryChannelBuffers[at].size(), "remote buffers");
        limit(impl->threadblockPortChannelBuffers[at].size(), "remote buffers");
        if (ops.size() > MAX_OPERATION)
            throw Error("too many operations", ErrorCode::ExecutorError);
        made->nOperations = (uint16_t)ops.size();
        std::copy(ops.begin(), ops.end(), made->operations);
        int i = 0;
        for (int channel : impl->threadblockMemoryChannels[at]) {
            std::pair<ChannelType, int> key = {ChannelType::MEMORY, channel};
            uint64_t *remote = nullptr;
            if (rank->peer.count(key)) {
                auto to = rank->peer.at(key);
                remote = &ranks[(size_t)to.first].inbound.at({ChannelType::MEMORY, to.second});
            }
            made->channels.memoryChannels[i++] = {&rank->inbound.at(key), remote,
                                                  &rank->expected.at(key)};
        }
        i = 0;
        for (int channel : impl->threadblockPortChannels[at]) {
            std::pair<ChannelType, int> key = {ChannelType::PORT, channel};
            made->channels.portChannels[i++] = {(int)r, channel, &rank->inbound.at(key),
                                                &rank->expected.at(key)};
        }
        i = 0;
        for (int channel : impl->threadblockNvlsChannels[at])
            made->channels.nvlsChannels[i++].mcPtr =
                (void *)(uintptr_t)(MULTICAST_BASE + (r * 64 + (size_t)channel) * MULTICAST_BYTES);
        i = 0;
        for (const auto &pair : impl->threadblockMemoryChannelBuffers[at]) {
            made->remoteBuffers.memoryChannelBufferPtrs[i] = addresses.at((size_t)pair.first);
            made->remoteBuffers.memoryChannelBufferTypes[i++] = pair.second;
        }
        i = 0;
        for (const auto &pair : impl->threadblockPortChannelBuffers[at]) {
            made->remoteBuffers.portChannelBufferIds[i] = ids.at((size_t)pair.first);
            made->remoteBuffers.portChannelBufferTypes[i++] = pair.second;
        }
    }
}

/* ---- running ---- */

static void launch(int rank_number)
{
    Rank *rank = &ranks[(size_t)rank_number];
    auto *impl = rank->plan->impl_.get();
    uint32_t flag = (uint32_t)rank->run + 1;
    size_t scratch = rank->memory[2].size() - 16;
    uint32_t offset = impl->doubleScratchBuffer && (flag & 1) == 0 ? (uint32_t)(scratch >> 1) : 0;
    size_t reused = impl->reuseResources ? PREDFINED_SCRATCH_SIZE : scratch;
    uint32_t chunk = (uint32_t)impl->calMaxScratchChunkSize(reused);
    auto run = [&](auto *packet, auto reuse) {
        using P = std::remove_pointer_t<decltype(packet)>;
        uintptr_t place = (uintptr_t)rank->memory[2].data();
        executionKernel<int32_t, P, decltype(reuse)::value>(
            rank_number, (int32_t *)rank->memory[0].data(), (int32_t *)rank->memory[1].data(),
            (int32_t *)place, offset, chunk, rank->device_plans.data(), rank->semaphores.data(), 0,
            flag);
    };
    if (packet_bytes == 16 && impl->reuseResources)
        run((LL16Packet *)nullptr, std::true_type{});
    else if (packet_bytes == 16)
        run((LL16Packet *)nullptr, std::false_type{});
    else if (impl->reuseResources)
        run((LL8Packet *)nullptr, std::true_type{});
    else
        run((LL8Packet *)nullptr, std::false_type{});
}

static void fiber_main()
{
    try {
        launch(current->block->rank);
    } catch (const std::exception &error) {
        current->failure = error.what();
    }
    current->ended = true;
    swapcontext(&current->context, &scheduler);
}

static void begin(int r)
{
    Rank *rank = &ranks[(size_t)r];
    size_t place = ((size_t)rank->run * ranks.size() + (size_t)r) * input_bytes;
    memset(rank->memory[1].data(), 0xa5, output_bytes);
    memcpy(rank->memory[0].data(), inputs.data() + place, input_bytes);
    for (size_t b = 0; b < rank->device_plans.size(); b++) {
        auto block = std::make_shared<Block>();
        block->rank = r;
        block->number = (int)b;
        block->threads = thread_count;
        shared_save(&block->shared);
        for (int t = 0; t < thread_count; t++) {
            auto made = std::make_unique<Fiber>();
            made->stack.resize(STACK_BYTES);
            made->block = block;
            made->thread = (unsigned)t;
            made->waits = made->ended = false;
            getcontext(&made->context);
            made->context.uc_stack.ss_sp = made->stack.data();
            made->context.uc_stack.ss_size = STACK_BYTES;
            made->context.uc_link = &scheduler;
            makecontext(&made->context, fiber_main, 0);
            rank->fibers.push_back(std::move(made));
        }
    }
}

static bool end(int r)
{
    Rank *rank = &ranks[(size_t)r];
    size_t place = ((size_t)rank->run * ranks.size() + (size_t)r) * (output_bytes + 1);
    const char *right = outputs.data() + place;
    if (right[0] && memcmp(rank->memory[1].data(), right + 1, output_bytes) != 0) {
        std::cout << "rank " << r << " has a wrong output after run " << rank->run << "\n";
        return false;
    }
    rank->run++;
    return true;
}

static void step(Fiber *fiber)
{
    current = fiber;
    threadIdx.x = fiber->thread;
    blockIdx.x = (unsigned)fiber->block->number;
    blockDim.x = (unsigned)fiber->block->threads;
    shared_load(&fiber->block->shared);
    swapcontext(&scheduler, &fiber->context);
    shared_save(&fiber->block->shared);
}

static int play()
{
    std::vector<double> weights(ranks.size(), 1), proxies(ranks.size(), 0.3);
    size_t idle = 0;
    auto chance = [] { return (double)random_numbers() / 4294967296.0; };
    for (size_t r = 0; r < ranks.size(); r++)
        begin((int)r);
    for (;;) {
        bool running = false;
        for (const auto &rank : ranks)
            running |= rank.run < run_count;
        if (!running)
            return 0;
        if (chance() < 0.002) {
            static const double lag[] = {0.02, 0.3, 1}, busy[] = {0.001, 0.05, 0.5};
            for (size_t r = 0; r < ranks.size(); r++) {
                weights[r] = lag[random_numbers() % 3];
                proxies[r] = busy[random_numbers() % 3];
            }
        }
        std::discrete_distribution<size_t> choose(weights.begin(), weights.end());
        size_t r = choose(random_numbers);
        Rank *rank = &ranks[r];
        bool moved = false, posted = !rank->fifo.empty();
        if (posted && chance() < proxies[r]) {
            proxy_step(rank);
            moved = true;
        }
        for (auto &one : rank->connections) {
            if (!one.second.under_way.empty() && chance() < 0.05)
                carry(&one.second);
        }
        if (!rank->fibers.empty()) {
            size_t i = random_numbers() % rank->fibers.size();
            Fiber *fiber = rank->fibers[i].get();
            step(fiber);
            moved |= fiber->ended || !fiber->waits;
            if (!fiber->failure.empty())
                throw std::runtime_error(fiber->failure);
            if (fiber->ended) {
                rank->fibers[i] = std::move(rank->fibers.back());
                rank->fibers.pop_back();
            }
        } else if (rank->run < run_count) {
            if (!end((int)r))
                return 1;
            if (rank->run < run_count)
                begin((int)r);
            moved = true;
        }
        idle = moved || posted ? 0 : idle + 1;
        if (idle > 400000) {
            std::cout << "nothing can go on\n";
            return 3;
        }
    }
}

static int run_plan(char **argv)
{
    std::ifstream file(argv[1]);
    size_t count = nlohmann::json::parse(file)["gpus"].size();
    input_bytes = std::stoul(argv[3]);
    output_bytes = std::stoul(argv[4]);
    run_count = std::stoi(argv[5]);
    random_numbers.seed((unsigned)std::stoul(argv[6]));
    packet_bytes = std::stoi(argv[7]);
    thread_count = std::stoi(argv[8]);
    std::ifstream data(argv[2], std::ios::binary);
    inputs.resize(count * input_bytes * (size_t)run_count);
    outputs.resize(count * (output_bytes + 1) * (size_t)run_count);
    data.read(inputs.data(), (std::streamsize)inputs.size());
    data.read(outputs.data(), (std::streamsize)outputs.size());
    ranks.resize(count);
    for (size_t r = 0; r < count; r++)
        load_plan(r, argv[1]);
    for (size_t r = 0; r < count; r++) {
        connect(r, ChannelType::MEMORY);
        connect(r, ChannelType::PORT);
    }
    for (size_t r = 0; r < count; r++)
        make_device_plans(r);
    return play();
}

int main(int argc, char **argv)
{
    if (argc != 9)
        return 4;
    try {
        return run_plan(argv);
    } catch (const std::exception &error) {
        std::cout << error.what() << "\n";
        return 2;
    }
}
