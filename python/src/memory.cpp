/* Symmetric memory. */
#include "banyan_python.h"

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

void bind_memory(nb::module_ &m)
{
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
