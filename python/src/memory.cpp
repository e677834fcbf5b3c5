/* Symmetric memory, and pools of tensors in it. */
#include "banyan_python.h"

#include <algorithm>
#include <map>

struct Memory : Resource {
    banyan_memory *handle = nullptr;
    nb::object adopted; /* the caller's tensor, if the memory is its */

    bool is_open() const override { return handle != nullptr; }
    banyan_status close() override
    {
        banyan_memory_free(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~Memory() override { banyan_memory_free(handle); }
};

const banyan_memory *memory_handle(nb::handle memory)
{
    Memory &m = nb::cast<Memory &>(memory);
    require_open(m, "the memory");
    return m.handle;
}

static std::shared_ptr<Memory> alloc(std::shared_ptr<World> world, size_t bytes, nb::object device)
{
    auto memory = std::make_shared<Memory>();
    memory->world = world;
    DLDevice on = device_of(device);
    drive(*world, [&] {
        return banyan_memory_alloc_on(world->handle, on, bytes, &memory->handle);
    });
    return adopt(memory);
}

static std::shared_ptr<Memory> adopt_tensor(std::shared_ptr<World> world, nb::object tensor)
{
    Tensor t(tensor, "tensor", true);
    t.require_dense("tensor");
    auto memory = std::make_shared<Memory>();
    memory->world = world;
    memory->adopted = tensor;
    size_t bytes = t.elems() * banyan_dtype_bytes(t.t.dtype);
    drive(*world, [&] {
        return banyan_memory_adopt(world->handle, t.t.device, t.address(), bytes, &memory->handle);
    });
    return adopt(memory);
}

static Array view(std::shared_ptr<Memory> memory, void *address, size_t bytes, nb::object shape,
                  nb::object dtype, size_t offset)
{
    Array array{memory, (char *)address + offset, banyan_memory_device(memory->handle),
                dtype_of(dtype), {}, {}};
    size_t elem = banyan_dtype_bytes(array.dtype), elems = 1;
    if (offset > bytes)
        throw nb::value_error(("offset " + std::to_string(offset) + " is outside " +
                               std::to_string(bytes) + " bytes")
                                  .c_str());
    if (shape.is_none())
        array.shape.push_back((int64_t)((bytes - offset) / elem));
    else if (nb::isinstance<nb::int_>(shape))
        array.shape.push_back(nb::cast<int64_t>(shape));
    else
        array.shape = nb::cast<std::vector<int64_t>>(shape);
    for (int64_t extent : array.shape)
        if (extent < 0 || __builtin_mul_overflow(elems, (size_t)extent, &elems))
            throw nb::value_error("an extent of the shape is out of range");
    if (__builtin_mul_overflow(elems, elem, &elems) || elems > bytes - offset)
        throw nb::value_error(("the shape needs more than the " + std::to_string(bytes - offset) +
                               " bytes from offset " + std::to_string(offset))
                                  .c_str());
    return array;
}

/* ---- pools ---- */

/* Divides a symmetric buffer into blocks. Equal calls on all ranks give equal offsets. Any thread,
 * with or without the interpreter's lock. */
struct Pool {
    static constexpr size_t ALIGNMENT = 512;

    std::shared_ptr<Memory> memory;
    char *base;
    size_t bytes;
    std::mutex mutex;
    std::map<size_t, size_t> used; /* offset and size of each block */
    size_t used_bytes = 0;

    /* Return a block, or null if there is no gap of this size. The first gap is taken. */
    void *alloc(size_t size)
    {
        size = (std::max(size, (size_t)1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        std::lock_guard<std::mutex> lock(mutex);
        size_t at = 0;
        for (auto &block : used) {
            if (block.first - at >= size)
                break;
            at = block.first + block.second;
        }
        if (!base || at > bytes || bytes - at < size)
            return nullptr;
        used[at] = size;
        used_bytes += size;
        return base + at;
    }

    /* Return a block to the pool. Return false if it is none of this pool's. */
    bool free(void *address)
    {
        std::lock_guard<std::mutex> lock(mutex);
        auto block = used.find((size_t)((char *)address - base));
        if (block == used.end())
            return false;
        used_bytes -= block->second;
        used.erase(block);
        return true;
    }

    bool is_open() const { return memory != nullptr; }
    void close()
    {
        if (!memory)
            return;
        if (!used.empty())
            throw nb::buffer_error((std::to_string(used.size()) + " tensors with " +
                                    std::to_string(used_bytes) +
                                    " bytes still lie in the pool; delete them first")
                                       .c_str());
        memory->exports--; /* it can be freed again */
        memory = nullptr;
    }
};

/* A block of a pool that one tensor of another library fills. */
struct Block : Resource {
    std::shared_ptr<Pool> pool;
    void *address = nullptr;

    bool is_open() const override { return address != nullptr; }
    banyan_status close() override { return BANYAN_OK; }
    ~Block() override
    {
        if (address)
            pool->free(address);
    }
};

/* The pools of the process, for PyTorch's allocator, whose functions get no context: it allocates
 * from the pool that the thread uses, and frees by address. */
static std::mutex pools_mutex;
static std::vector<std::weak_ptr<Pool>> pools;
static thread_local std::vector<std::shared_ptr<Pool>> in_use_here;

extern "C" __attribute__((visibility("default"))) void *banyan_pool_alloc(ssize_t bytes, int device,
                                                                          void *stream)
{
    (void)device;
    (void)stream;
    return in_use_here.empty() ? nullptr : in_use_here.back()->alloc((size_t)bytes);
}

extern "C" __attribute__((visibility("default"))) void banyan_pool_free(void *address, ssize_t bytes,
                                                                        int device, void *stream)
{
    (void)bytes;
    (void)device;
    (void)stream;
    std::lock_guard<std::mutex> lock(pools_mutex);
    for (auto &weak : pools)
        if (auto pool = weak.lock())
            if (pool->free(address))
                return;
}

static std::shared_ptr<Pool> create_pool(std::shared_ptr<Memory> memory)
{
    require_open(*memory, "the memory");
    auto pool = std::make_shared<Pool>();
    pool->base = (char *)banyan_memory_local(memory->handle);
    pool->bytes = banyan_memory_bytes(memory->handle);
    pool->memory = memory;
    memory->exports++;
    std::lock_guard<std::mutex> lock(pools_mutex);
    pools.push_back(pool);
    return pool;
}

static Array pool_array(std::shared_ptr<Pool> pool, std::vector<int64_t> shape, nb::object dtype)
{
    if (!pool->is_open())
        throw nb::value_error("the pool is closed");
    auto block = std::make_shared<Block>();
    Array array{block, nullptr, banyan_memory_device(pool->memory->handle), dtype_of(dtype), shape,
                {}};
    size_t bytes = banyan_dtype_bytes(array.dtype);
    for (int64_t extent : shape)
        if (extent < 0 || __builtin_mul_overflow(bytes, (size_t)extent, &bytes))
            throw nb::value_error("an extent of the shape is out of range");
    block->pool = pool;
    block->address = array.address = pool->alloc(bytes);
    if (!array.address) {
        std::string text = "the pool has no gap of " + std::to_string(bytes) + " bytes: " +
                           std::to_string(pool->used_bytes) + " of its " +
                           std::to_string(pool->bytes) + " bytes are used";
        PyErr_SetString(nb::module_::import_("banyan._errors").attr("OutOfMemory").ptr(),
                        text.c_str());
        throw nb::python_error();
    }
    return array;
}

static void bind_pool(nb::module_ &m)
{
    nb::class_<Pool>(m, "_Pool", "Blocks of a symmetric buffer.")
        .def("__enter__",
             [](std::shared_ptr<Pool> pool) {
                 if (!pool->is_open())
                     throw nb::value_error("the pool is closed");
                 in_use_here.push_back(pool);
                 return pool;
             },
             "Let PyTorch's allocator take blocks of this pool in this thread.")
        .def("__exit__", [](Pool &, nb::args) { in_use_here.pop_back(); },
             nb::sig("def __exit__(self, *args: object) -> None"), "End the last __enter__.")
        .def("array", pool_array, "shape"_a, "dtype"_a,
             nb::sig("def array(self, shape: collections.abc.Sequence[int], dtype: "
                     "banyan.DTypeLike) -> Array"),
             "Return a new block as a tensor. It is free again when no library uses it.")
        .def_prop_ro("used_bytes",
                     [](Pool &p) {
                         std::lock_guard<std::mutex> lock(p.mutex);
                         return p.used_bytes;
                     },
                     "Bytes of the blocks that are in use.")
        .def("close", &Pool::close, "Let the buffer be freed. Raises BufferError while blocks are "
                                    "in use.");
    m.def("_create_pool", create_pool, "memory"_a);
}

void bind_memory(nb::module_ &m)
{
    bind_pool(m);
    nb::class_<Memory>(m, "Memory",
                       "A symmetric buffer: every rank of the node maps the parts of all ranks.\n\n"
                       "``banyan.alloc`` and ``banyan.adopt`` make it.")
        .def_prop_ro("nbytes",
                     [](Memory &m) {
                         require_open(m, "the memory");
                         return banyan_memory_bytes(m.handle);
                     },
                     "Size of this rank's part in bytes.")
        .def_prop_ro("device",
                     [](Memory &m) {
                         require_open(m, "the memory");
                         return device_text(banyan_memory_device(m.handle));
                     },
                     "Device of this rank's part, for example \"cpu\".")
        .def_prop_ro("is_open", [](Memory &m) { return m.is_open(); }, "True until it is freed.")
        .def("array",
             [](std::shared_ptr<Memory> m, nb::object shape, nb::object dtype, size_t offset) {
                 require_open(*m, "the memory");
                 return view(m, banyan_memory_local(m->handle), banyan_memory_bytes(m->handle),
                             shape, dtype, offset);
             },
             "shape"_a = nb::none(), "dtype"_a = "uint8", "offset"_a = 0,
             nb::sig("def array(self, shape: int | collections.abc.Sequence[int] | None = None, "
                     "dtype: banyan.DTypeLike = 'uint8', offset: int = 0) -> Array"),
             "Return this rank's part, from byte ``offset`` on, as a tensor. ``shape`` None: one "
             "dimension with all elements.")
        .def("peer",
             [](std::shared_ptr<Memory> m, int rank, nb::object shape, nb::object dtype,
                size_t offset) {
                 require_open(*m, "the memory");
                 void *address;
                 size_t bytes;
                 drive_briefly(*m->world, [&] {
                     return banyan_memory_peer(m->handle, rank, &address, &bytes);
                 });
                 return view(m, address, bytes, shape, dtype, offset);
             },
             "rank"_a, "shape"_a = nb::none(), "dtype"_a = "uint8", "offset"_a = 0,
             nb::sig("def peer(self, rank: int, shape: int | collections.abc.Sequence[int] | None "
                     "= None, dtype: banyan.DTypeLike = 'uint8', offset: int = 0) -> Array"),
             "Return the part of a rank of this node as a tensor. Accesses are not synchronized.")
        .def("close", [](Memory &m) { close_resource(m); },
             "Free this rank's part and the mappings of the others. Local.")
        .def("__enter__", [](nb::object self) { return self; },
             nb::sig("def __enter__(self) -> Memory"))
        .def("__exit__", [](Memory &m, nb::args) { close_resource(m); },
             nb::sig("def __exit__(self, *args: object) -> None"));
    m.def("alloc", alloc, "world"_a, "nbytes"_a, "device"_a = nb::none(),
          nb::sig("def alloc(world: World, nbytes: int, device: banyan.DeviceLike = None) -> "
                  "Memory"),
          "Allocate a symmetric buffer with ``nbytes`` for this rank; ranks may pass different "
          "sizes. The memory is zeroed. ``device`` None: the host. Collective.");
    m.def("adopt", adopt_tensor, "world"_a, "tensor"_a,
          nb::sig("def adopt(world: World, tensor: banyan.TensorLike) -> Memory"),
          "Make a symmetric buffer of GPU tensors that the ranks have already. The tensor must be "
          "dense; it stays allocated until all ranks have freed the buffer. Collective.");
}
