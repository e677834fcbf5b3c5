/* A host in place of MSCCL++'s device headers, so that its executor's kernel compiles without CUDA.
 *
 * A GPU thread is a fiber. It lets others run at every access that the kernel makes by a function
 * of these headers: copies, packets, accesses to peers, signals, waits and barriers. */
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#define MSCCLPP_DEVICE_COMPILE
#define MSCCLPP_DEVICE_CUDA
#define MSCCLPP_DEVICE_INLINE inline
#define __CUDA_ARCH__ 900
#define __device__
#define __global__
#define __shared__
#define __launch_bounds__(...)

using std::min;
typedef void *cudaStream_t;

struct Index3 {
    unsigned x;
};
extern Index3 threadIdx, blockIdx, blockDim;

struct int4 {
    int x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};

/* Let another fiber run. `waits`: this one cannot go on. */
void fiber_yield(bool waits);
template <typename Condition> inline void fiber_wait(Condition condition)
{
    while (!condition())
        fiber_yield(true);
    fiber_yield(false);
}
void __syncthreads();
inline void __syncshm()
{
    __syncthreads();
}

struct Proxy; /* of host.cpp */
struct Trigger {
    char *to, *from;
    size_t bytes;
    bool puts, signals;
    bool *flushed;
    int channel;
};
void proxy_push(int rank, const Trigger &trigger);
char *memory_of(int rank, uint32_t id);
/* The bytes behind a place of a multicast address, of each member. */
std::vector<char *> multicast(const void *place);

namespace mscclpp
{
enum class ErrorCode { ExecutorError, InvalidUsage };
struct Error : std::runtime_error {
    Error(const std::string &text, ErrorCode) : std::runtime_error(text) {}
};
enum class DataType { INT32 };
class Communicator;
enum ReduceOp { SUM = 0, MIN = 3 };
typedef uint32_t MemoryId;
extern int4 sharedMem[]; /* of the block that runs */
template <class T> using DeviceHandle = typename T::DeviceHandle;
template <class T> using PacketPayload = typename T::Payload;
template <typename T, int N> struct alignas(sizeof(T) * N) VectorType {
    T data[N];
};
using f32x4 = VectorType<uint32_t, 4>;
using f32x2 = VectorType<uint32_t, 2>;
using u32x1 = VectorType<uint32_t, 1>;

template <typename T, ReduceOp> inline int4 calVector(int4 a, int4 b)
{
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
template <typename T, ReduceOp> inline uint2 calVector(uint2 a, uint2 b)
{
    return {a.x + b.x, a.y + b.y};
}
template <typename T, ReduceOp> inline uint32_t calVector(uint32_t a, uint32_t b)
{
    return a + b;
}

template <typename T> inline T read(const void *source, uint64_t index)
{
    fiber_yield(false);
    return static_cast<const T *>(source)[index];
}
template <typename T> inline void write(void *to, uint64_t index, const T &value)
{
    static_cast<T *>(to)[index] = value;
    fiber_yield(false);
}

inline void copy(void *to, const void *from, uint64_t bytes, uint32_t thread, uint32_t threads)
{
    for (uint64_t at = thread * sizeof(int4); at < bytes; at += threads * sizeof(int4)) {
        char held[sizeof(int4)];
        size_t part = std::min<uint64_t>(sizeof held, bytes - at);
        memcpy(held, static_cast<const char *>(from) + at, part);
        fiber_yield(false);
        memcpy(static_cast<char *>(to) + at, held, part);
        fiber_yield(false);
    }
}

/* N words of data, each with the flag behind it. */
template <typename Data, int N> struct alignas(8 * N) Packet {
    using Payload = Data;
    uint32_t words[2 * N];
    Packet() = default;
    Packet(Payload data, uint32_t flag) { set(data, flag); }
    void set(Payload data, uint32_t flag)
    {
        uint32_t raw[N];
        memcpy(raw, &data, sizeof raw);
        for (int i = 0; i < N; i++) {
            words[2 * i] = raw[i];
            words[2 * i + 1] = flag;
        }
    }
    void write(Payload data, uint32_t flag)
    {
        set(data, flag);
        fiber_yield(false);
    }
    Payload read(uint32_t flag) const
    {
        fiber_wait([&] {
            for (int i = 0; i < N; i++) {
                if (words[2 * i + 1] != flag)
                    return false;
            }
            return true;
        });
        /* Read again: the packet may have been overwritten, as by a volatile load. */
        Payload data;
        uint32_t raw[N];
        for (int i = 0; i < N; i++)
            raw[i] = words[2 * i];
        memcpy(&data, raw, sizeof data);
        return data;
    }
};
using LL16Packet = Packet<uint2, 2>;
using LL8Packet = Packet<uint32_t, 1>;

template <typename P>
inline void copyToPackets(void *to, const void *from, uint64_t bytes, uint32_t thread,
                          uint32_t threads, uint32_t flag)
{
    if (reinterpret_cast<uintptr_t>(to) % sizeof(P) != 0)
        throw std::runtime_error("a packet is not aligned");
    using Payload = typename P::Payload;
    for (uint64_t i = thread; i < bytes / sizeof(Payload); i += threads) {
        Payload data = static_cast<const Payload *>(from)[i];
        fiber_yield(false);
        static_cast<P *>(to)[i].write(data, flag);
    }
}

struct DeviceSyncer {
    unsigned arrived[64];
    void sync(int blocks);
};

struct DeviceSemaphore {
    int value;
    DeviceSemaphore(int initial = 0) : value(initial) {}
    void acquire()
    {
        int old = value--;
        fiber_yield(false);
        if (old <= 0)
            fiber_wait([&] { return value >= old; });
    }
    void release()
    {
        value++;
        fiber_yield(false);
    }
};

struct BaseMemoryChannel {
    struct DeviceHandle {
        uint64_t *inbound, *remote, *expected;
        void signal()
        {
            ++*remote;
            fiber_yield(false);
        }
        void wait()
        {
            uint64_t wanted = ++*expected;
            fiber_wait([&] { return *inbound >= wanted; });
        }
        void relaxedSignal() { signal(); }
        void relaxedWait() { wait(); }
    };
};

struct BasePortChannel {
    struct DeviceHandle {
        int rank, channel;
        uint64_t *inbound, *expected;
        void push(MemoryId to, uint64_t to_at, MemoryId from, uint64_t from_at, uint64_t bytes,
                  bool puts, bool signals, bool *flushed)
        {
            Trigger made = {puts ? memory_of(rank, to) + to_at : nullptr,
                            puts ? memory_of(rank, from) + from_at : nullptr,
                            bytes,
                            puts,
                            signals,
                            flushed,
                            channel};
            proxy_push(rank, made);
            fiber_yield(false);
            if (flushed)
                fiber_wait([&] { return *flushed; });
        }
        void put(MemoryId to, uint64_t to_at, MemoryId from, uint64_t from_at, uint64_t bytes)
        {
            push(to, to_at, from, from_at, bytes, true, false, nullptr);
        }
        void putWithSignal(MemoryId to, uint64_t to_at, MemoryId from, uint64_t from_at,
                           uint64_t bytes)
        {
            push(to, to_at, from, from_at, bytes, true, true, nullptr);
        }
        void putWithSignalAndFlush(MemoryId to, uint64_t to_at, MemoryId from, uint64_t from_at,
                                   uint64_t bytes)
        {
            bool flushed = false;
            push(to, to_at, from, from_at, bytes, true, true, &flushed);
        }
        void signal() { push(0, 0, 0, 0, 0, false, true, nullptr); }
        void flush()
        {
            bool flushed = false;
            push(0, 0, 0, 0, 0, false, false, &flushed);
        }
        void wait()
        {
            uint64_t wanted = ++*expected;
            fiber_wait([&] { return *inbound >= wanted; });
        }
    };
};

struct SwitchChannelDeviceHandle {
    void *mcPtr;
    template <typename T> static T multimemLoadReduce(const T *place)
    {
        T sum = {};
        for (char *at : multicast(place)) {
            T one;
            memcpy(&one, at, sizeof one);
            for (size_t i = 0; i < sizeof sum.data / sizeof sum.data[0]; i++)
                sum.data[i] += one.data[i];
            fiber_yield(false);
        }
        return sum;
    }
    template <typename T> static void multimemStore(const T &value, T *place)
    {
        for (char *at : multicast(place)) {
            memcpy(at, &value, sizeof value);
            fiber_yield(false);
        }
    }
    template <typename T, typename P> static void multimemStore(const T &value, P *place)
    {
        multimemStore(value, reinterpret_cast<T *>(place));
    }
};
struct SwitchChannel {
    using DeviceHandle = SwitchChannelDeviceHandle;
};
namespace detail
{
template <typename T> inline void hashCombine(std::size_t &seed, const T &value)
{
    seed = seed * 31 + std::hash<T>{}(value);
}
} /* namespace detail */
} /* namespace mscclpp */
