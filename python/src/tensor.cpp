/* Tensors of other libraries, without copies; element types, devices and streams. */
#include "banyan_python.h"

#include <cmath>

/* ---- element types, devices, options ---- */

static const struct type_name {
    const char *name;
    DLDataType dtype;
    const char *format; /* of the buffer protocol; null: none */
} type_names[] = {
    {"float32", {kDLFloat, 32, 1}, "f"},
    {"float16", {kDLFloat, 16, 1}, "e"},
    {"bfloat16", {kDLBfloat, 16, 1}, nullptr},
    {"float64", {kDLFloat, 64, 1}, "d"},
    {"float8_e4m3fn", {BANYAN_DL_FLOAT8_E4M3FN, 8, 1}, nullptr},
    {"float8_e5m2", {BANYAN_DL_FLOAT8_E5M2, 8, 1}, nullptr},
    {"float8_e8m0fnu", {BANYAN_DL_FLOAT8_E8M0FNU, 8, 1}, nullptr},
    {"int8", {kDLInt, 8, 1}, "b"},
    {"int16", {kDLInt, 16, 1}, "h"},
    {"int32", {kDLInt, 32, 1}, "i"},
    {"int64", {kDLInt, 64, 1}, "l"},
    {"uint8", {kDLUInt, 8, 1}, "B"},
    {"uint16", {kDLUInt, 16, 1}, "H"},
    {"uint32", {kDLUInt, 32, 1}, "I"},
    {"uint64", {kDLUInt, 64, 1}, "L"},
    {"bool", {6 /* kDLBool of DLPack 1 */, 8, 1}, "?"},
    {"complex64", {kDLComplex, 64, 1}, "Zf"},
};

std::string dtype_text(DLDataType dtype)
{
    for (const type_name &t : type_names)
        if (banyan_dtype_equal(t.dtype, dtype))
            return t.name;
    return "code " + std::to_string(dtype.code) + ", " + std::to_string(dtype.bits) + " bits";
}

static const type_name *find_type(std::string_view name)
{
    size_t dot = name.rfind('.'); /* "torch.bfloat16", "jax.numpy.bfloat16" */
    if (dot != std::string_view::npos)
        name.remove_prefix(dot + 1);
    for (const type_name &t : type_names)
        if (name == t.name)
            return &t;
    return nullptr;
}

DLDataType dtype_of(nb::handle dtype)
{
    nb::object name = nb::borrow(dtype);
    if (!nb::isinstance<nb::str>(name)) {
        /* np.float32 is a class; np.dtype has a name; torch.float32 has neither. */
        if (PyType_Check(name.ptr()) && nb::hasattr(name, "__name__"))
            name = name.attr("__name__");
        else if (nb::hasattr(name, "name"))
            name = name.attr("name");
        else
            name = nb::str(name);
    }
    std::string text = nb::cast<std::string>(nb::str(name));
    if (const type_name *found = find_type(text))
        return found->dtype;
    DLDataType parsed;
    check(banyan_dtype_parse(text.c_str(), &parsed)); /* safetensors' names */
    return parsed;
}

DLDevice device_of(nb::handle device)
{
    if (device.is_none())
        return BANYAN_HOST;
    if (nb::isinstance<nb::int_>(device))
        return BANYAN_CUDA(nb::cast<int>(device));
    std::string text = nb::cast<std::string>(nb::str(device));
    if (text == "cpu")
        return BANYAN_HOST;
    if (text == "cuda")
        return BANYAN_CUDA(0);
    if (text.rfind("cuda:", 0) == 0 && text.size() > 5 &&
        text.find_first_not_of("0123456789", 5) == std::string::npos && text.size() < 12)
        return BANYAN_CUDA(std::stoi(text.substr(5)));
    throw nb::value_error(("\"" + text + "\" is not a device: cpu, cuda, cuda:N or a number")
                              .c_str());
}

std::string device_text(DLDevice device)
{
    if (device.device_type == kDLCUDA)
        return "cuda:" + std::to_string(device.device_id);
    return device.device_type == kDLCPU ? "cpu" : "device type " + std::to_string(device.device_type);
}

banyan_reduce_op reduce_op_of(nb::handle op)
{
    banyan_reduce_op parsed;
    if (!nb::isinstance<nb::str>(op))
        throw nb::type_error("a reduction is one of \"sum\", \"min\", \"max\", \"prod\" and \"avg\"");
    check(banyan_reduce_op_parse(nb::cast<const char *>(op), &parsed));
    return parsed;
}

uint64_t timeout_of(nb::handle seconds)
{
    if (seconds.is_none())
        return 0;
    double value = nb::cast<double>(seconds);
    if (std::isinf(value) && value > 0)
        return BANYAN_FOREVER_NS;
    if (!(value > 0))
        throw nb::value_error("a timeout is a positive number of seconds, math.inf for none, or "
                              "None for the default");
    return value > 9e9 ? BANYAN_FOREVER_NS : (uint64_t)(value * 1e9);
}

std::string path_of(nb::handle path)
{
    nb::object text = nb::steal(PyOS_FSPath(path.ptr()));
    if (!text.is_valid())
        throw nb::python_error();
    nb::object bytes = text;
    if (PyUnicode_Check(text.ptr())) {
        bytes = nb::steal(PyUnicode_EncodeFSDefault(text.ptr()));
        if (!bytes.is_valid())
            throw nb::python_error();
    }
    const char *data = PyBytes_AsString(bytes.ptr());
    std::string result(data, (size_t)PyBytes_Size(bytes.ptr()));
    if (result.find('\0') != std::string::npos)
        throw nb::value_error("a path has no NUL");
    return result;
}

/* ---- tensors that come in ---- */

static bool is_host(DLDevice device)
{
    /* Pinned memory of CUDA is the host's. */
    return device.device_type == kDLCPU || device.device_type == kDLCUDAHost;
}

/* Return the type's table for fast exchange, or null. */
static const dlpack::Exchange *exchange_of(PyTypeObject *type)
{
    /* Types of tensors are few and live as long as their modules. */
    static PyTypeObject *last_type;
    static const dlpack::Exchange *last;
    if (type == last_type)
        return last;
    nb::object capsule =
        nb::steal(PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__"));
    const dlpack::Exchange *found = nullptr;
    if (!capsule.is_valid()) {
        PyErr_Clear();
    } else if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
        found = (const dlpack::Exchange *)PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
        while (found && found->header.version.major != 1)
            found = (const dlpack::Exchange *)found->header.previous;
    }
    /* The stable ABI hides that a type is an object. */
    Py_XINCREF((PyObject *)type);
    Py_XDECREF((PyObject *)last_type);
    last_type = type;
    return last = found;
}

bool Tensor::from_exchange(nb::handle object, bool keep)
{
    const dlpack::Exchange *exchange = exchange_of(Py_TYPE(object.ptr()));
    if (!exchange)
        return false;
    if (keep || !exchange->tensor_from_object) {
        if (exchange->managed_from_object(object.ptr(), &loan.versioned) != 0)
            throw nb::python_error();
        t = loan.versioned->tensor;
    } else if (exchange->tensor_from_object(object.ptr(), &t) != 0) {
        throw nb::python_error();
    }
    return true;
}

bool Tensor::from_dlpack(nb::handle object, const char *name, bool writes)
{
    nb::object method = nb::steal(PyObject_GetAttrString(object.ptr(), "__dlpack__"));
    if (!method.is_valid()) {
        PyErr_Clear();
        return false;
    }
    nb::object capsule;
    try {
        capsule = method("max_version"_a = nb::make_tuple(1, 3));
    } catch (nb::python_error &error) {
        if (!error.matches(PyExc_TypeError)) /* before DLPack 1.0 there was no such argument */
            throw;
        capsule = method();
    }
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
        loan.versioned = (dlpack::ManagedVersioned *)PyCapsule_GetPointer(capsule.ptr(),
                                                                     "dltensor_versioned");
        PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
        t = loan.versioned->tensor;
        if (writes && loan.versioned->flags & dlpack::READ_ONLY)
            throw nb::value_error((std::string(name) + ": the tensor is read-only").c_str());
    } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
        loan.managed = (DLManagedTensor *)PyCapsule_GetPointer(capsule.ptr(), "dltensor");
        PyCapsule_SetName(capsule.ptr(), "used_dltensor");
        t = loan.managed->dl_tensor;
    } else {
        throw nb::type_error((std::string(name) + ": __dlpack__ gave no tensor").c_str());
    }
    return true;
}

/* Return the type of a buffer's format, or null. Sizes tell, since 'l' and 'q' differ by platform. */
static const type_name *type_of_format(const char *format, Py_ssize_t item_bytes)
{
    if (!format)
        format = "B";
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    std::string_view code = format;
    if (code == "q")
        code = "l";
    if (code == "Q")
        code = "L";
    if (code == "c")
        code = "B";
    for (const type_name &t : type_names)
        if (t.format && code == t.format && t.dtype.bits / 8 == item_bytes)
            return &t;
    return nullptr;
}

bool Tensor::from_buffer(nb::handle object, const char *name, bool writes)
{
    if (!PyObject_CheckBuffer(object.ptr()))
        return false;
    if (PyObject_GetBuffer(object.ptr(), &loan.buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
        PyErr_Clear(); /* NumPy's arrays of bfloat16, for example */
        return false;
    }
    const Py_buffer &buffer = loan.buffer;
    if (writes && buffer.readonly)
        throw nb::value_error((std::string(name) + ": the buffer is read-only").c_str());
    const type_name *type = type_of_format(buffer.format, buffer.itemsize);
    if (!type)
        throw nb::type_error((std::string(name) + ": elements of the buffer's format \"" +
                              (buffer.format ? buffer.format : "B") + "\" have no type in Banyan")
                                 .c_str());
    if (buffer.ndim > BANYAN_MAX_DIMS)
        throw nb::value_error((std::string(name) + ": " + std::to_string(buffer.ndim) +
                               " dimensions, but at most " + std::to_string(BANYAN_MAX_DIMS))
                                  .c_str());
    for (int d = 0; d < buffer.ndim; d++) {
        own_shape[d] = buffer.shape[d];
        if (!buffer.strides)
            continue;
        if (buffer.strides[d] % buffer.itemsize != 0)
            throw nb::value_error((std::string(name) + ": dimension " + std::to_string(d) +
                                   " has a stride that is not a multiple of the element")
                                      .c_str());
        own_strides[d] = buffer.strides[d] / buffer.itemsize;
    }
    t = {buffer.buf, BANYAN_HOST, buffer.ndim, type->dtype, own_shape,
         buffer.strides ? own_strides : nullptr, 0};
    return true;
}

Tensor::Tensor(nb::handle object, const char *name, bool writes, bool keep)
{
    /* NumPy's arrays are faster by their buffers than by their capsules. */
    if (!from_exchange(object, keep) && !from_buffer(object, name, writes) &&
        !from_dlpack(object, name, writes))
        throw nb::type_error((std::string(name) + ": a tensor is needed (an object with " +
                              "__dlpack__ or a buffer), not " +
                              nb::cast<std::string>(nb::str(nb::handle(
                                  (PyObject *)Py_TYPE(object.ptr())).attr("__name__"))))
                                 .c_str());
    if (is_host(t.device))
        t.device = BANYAN_HOST;
    if (keep)
        owner = nb::borrow(object);
}

Tensor::Tensor(Tensor &&other) noexcept
    : t(other.t), loan(other.loan), owner(std::move(other.owner))
{
    memcpy(own_shape, other.own_shape, sizeof own_shape);
    memcpy(own_strides, other.own_strides, sizeof own_strides);
    if (t.shape == other.own_shape)
        t.shape = own_shape;
    if (t.strides == other.own_strides)
        t.strides = own_strides;
    other.loan.managed = nullptr;
    other.loan.versioned = nullptr;
    other.loan.buffer = {};
}

Tensor::Loan::~Loan()
{
    if (managed && managed->deleter)
        managed->deleter(managed);
    if (versioned && versioned->deleter)
        versioned->deleter(versioned);
    if (buffer.obj)
        PyBuffer_Release(&buffer);
}

size_t Tensor::elems() const
{
    size_t count = 1;
    for (int d = 0; d < t.ndim; d++)
        count *= (size_t)t.shape[d];
    return count;
}

bool Tensor::is_read_only() const
{
    return loan.buffer.readonly || (loan.versioned && loan.versioned->flags & dlpack::READ_ONLY);
}

void Tensor::require_dense(const char *name) const
{
    if (!t.strides)
        return;
    int64_t dense = 1;
    for (int d = t.ndim - 1; d >= 0; d--) {
        if (t.shape[d] == 0)
            return;
        if (t.shape[d] != 1 && t.strides[d] != dense)
            throw nb::value_error((std::string(name) + ": the tensor is not dense (dimension " +
                                   std::to_string(d) + " has stride " +
                                   std::to_string(t.strides[d]) + ", not " + std::to_string(dense) +
                                   "); make it contiguous")
                                      .c_str());
        dense *= t.shape[d];
    }
}

void *stream_of(nb::handle stream, nb::handle like, DLDevice device)
{
    if (device.device_type != kDLCUDA) {
        if (!stream.is_none())
            throw nb::value_error("a stream is given, but the tensors are on the host");
        return nullptr;
    }
    if (!stream.is_none()) {
        if (nb::isinstance<nb::int_>(stream))
            return (void *)nb::cast<uintptr_t>(stream);
        for (const char *name : {"cuda_stream", "ptr", "handle"}) /* PyTorch, CuPy, cuda.core */
            if (nb::hasattr(stream, name))
                return (void *)nb::cast<uintptr_t>(nb::int_(stream.attr(name)));
        throw nb::type_error("stream: a CUDA stream of PyTorch or CuPy, or its address");
    }
    const dlpack::Exchange *exchange = exchange_of(Py_TYPE(like.ptr()));
    void *current = nullptr;
    if (exchange && exchange->current_stream(device.device_type, device.device_id, &current) != 0)
        throw nb::python_error();
    if (!exchange && nb::cast<std::string>(nb::str(nb::handle((PyObject *)Py_TYPE(like.ptr()))
                                                       .attr("__module__")))
                             .rfind("cupy", 0) == 0)
        current = (void *)nb::cast<uintptr_t>(
            nb::module_::import_("cupy").attr("cuda").attr("get_current_stream")().attr("ptr"));
    return current;
}

/* ---- arrays that go out ---- */

static void require_memory(const Array &array)
{
    if (!array.owner->is_open())
        throw nb::value_error("the memory of this array is freed");
}

struct Export {
    std::shared_ptr<Resource> owner;
    std::vector<int64_t> shape, strides;
};

static void end_export(Export *held)
{
    if (Py_IsInitialized()) {
        nb::gil_scoped_acquire lock;
        held->owner->exports--;
        delete held;
    } /* else the process ends, and memory with it */
}

static std::vector<int64_t> strides_of(const Array &array)
{
    if (!array.strides.empty())
        return array.strides;
    std::vector<int64_t> strides(array.shape.size());
    int64_t next = 1;
    for (size_t d = array.shape.size(); d-- > 0; next *= array.shape[d])
        strides[d] = next;
    return strides;
}

static Export *begin_export(Array &array)
{
    require_memory(array);
    array.owner->exports++;
    return new Export{array.owner, array.shape, strides_of(array)};
}

static DLTensor exported_tensor(const Array &array, Export *held)
{
    return {array.address,      array.device,         (int)array.shape.size(), array.dtype,
            held->shape.data(), held->strides.data(), 0};
}

static void end_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        auto *m = (dlpack::ManagedVersioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
        m->deleter(m);
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        auto *m = (DLManagedTensor *)PyCapsule_GetPointer(capsule, "dltensor");
        m->deleter(m);
    }
}

static nb::object array_dlpack(Array &array, nb::handle stream, nb::handle max_version,
                               nb::handle dl_device, nb::handle copy)
{
    (void)stream; /* no work of Banyan's is pending that is not ordered with the caller's stream */
    if (!copy.is_none() && nb::cast<bool>(copy))
        throw nb::buffer_error("copies are not made here: pass copy=False");
    if (!dl_device.is_none() &&
        !nb::make_tuple((int)array.device.device_type, array.device.device_id).equal(dl_device))
        throw nb::buffer_error("the array cannot move to another device");
    bool is_versioned =
        !max_version.is_none() && nb::cast<int>(nb::borrow<nb::tuple>(max_version)[0]) >= 1;
    if (!is_versioned && array.read_only)
        throw nb::buffer_error("the array is read-only, which DLPack says from version 1.0 on");
    Export *held = begin_export(array);
    PyObject *capsule;
    if (is_versioned) {
        auto *m = new dlpack::ManagedVersioned{
            {1, 0},
            held,
            [](dlpack::ManagedVersioned *self) {
                end_export((Export *)self->manager_ctx);
                delete self;
            },
            array.read_only ? dlpack::READ_ONLY : 0,
            exported_tensor(array, held)};
        capsule = PyCapsule_New(m, "dltensor_versioned", end_capsule);
    } else {
        auto *m = new DLManagedTensor{exported_tensor(array, held), held, [](DLManagedTensor *self) {
                                          end_export((Export *)self->manager_ctx);
                                          delete self;
                                      }};
        capsule = PyCapsule_New(m, "dltensor", end_capsule);
    }
    return nb::steal(capsule);
}

static int array_get_buffer(PyObject *object, Py_buffer *view, int flags)
{
    Array *array = nb::inst_ptr<Array>(nb::handle(object));
    const type_name *type = nullptr;
    for (const type_name &t : type_names)
        if (banyan_dtype_equal(t.dtype, array->dtype))
            type = &t;
    if (!array->owner->is_open() || !is_host(array->device) || !type || !type->format ||
        (array->read_only && flags & PyBUF_WRITABLE)) {
        PyErr_SetString(PyExc_BufferError,
                        !array->owner->is_open()  ? "the memory of this array is freed"
                        : !is_host(array->device) ? "the array is not in host memory"
                        : !type || !type->format  ? "Python's buffers do not have this type: use "
                                                    "DLPack"
                                                  : "the array is read-only");
        return -1;
    }
    Export *held = begin_export(*array);
    size_t bytes = banyan_dtype_bytes(array->dtype);
    view->len = (Py_ssize_t)bytes;
    for (size_t d = 0; d < held->shape.size(); d++) {
        view->len *= held->shape[d];
        held->strides[d] *= (int64_t)bytes;
    }
    view->buf = array->address;
    view->obj = object;
    Py_INCREF(object);
    view->itemsize = (Py_ssize_t)bytes;
    view->readonly = array->read_only;
    view->ndim = (int)held->shape.size();
    view->format = flags & PyBUF_FORMAT ? const_cast<char *>(type->format) : nullptr;
    static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "shapes are passed as they are");
    view->shape = (Py_ssize_t *)held->shape.data();
    view->strides = (Py_ssize_t *)held->strides.data();
    view->suboffsets = nullptr;
    view->internal = held;
    return 0;
}

static void array_release_buffer(PyObject *object, Py_buffer *view)
{
    (void)object;
    end_export((Export *)view->internal);
}

static PyType_Slot array_slots[] = {{Py_bf_getbuffer, (void *)array_get_buffer},
                                    {Py_bf_releasebuffer, (void *)array_release_buffer},
                                    {0, nullptr}};

void bind_tensor(nb::module_ &m)
{
    nb::class_<Array>(m, "Array", nb::type_slots(array_slots),
                      "Memory of Banyan as a tensor, without elements of Python.\n\n"
                      "Other libraries take it by DLPack (``torch.from_dlpack(array)``, "
                      "``numpy.from_dlpack(array)``), or on the host by Python's buffer protocol. "
                      "Nothing is copied. The memory cannot be freed as long as they use it.")
        .def("__dlpack__", array_dlpack, nb::kw_only(), "stream"_a = nb::none(),
             "max_version"_a = nb::none(), "dl_device"_a = nb::none(), "copy"_a = nb::none(),
             nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, "
                     "int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | "
                     "None = None) -> typing.Any"),
             "Lend the memory to another library (the DLPack protocol).")
        .def("__dlpack_device__",
             [](const Array &a) {
                 return std::make_pair((int)a.device.device_type, a.device.device_id);
             },
             "Return the device's type and number (the DLPack protocol).")
        .def_prop_ro(
            "shape", [](const Array &a) { return nb::tuple(nb::cast(a.shape)); },
            nb::sig("def shape(self) -> tuple[int, ...]"), "Extents, in elements.")
        .def_prop_ro(
            "dtype", [](const Array &a) { return dtype_text(a.dtype); },
            "Type of the elements, for example \"bfloat16\".")
        .def_prop_ro(
            "device", [](const Array &a) { return device_text(a.device); },
            "\"cpu\", or \"cuda:N\".")
        .def_prop_ro(
            "address",
            [](const Array &a) {
                require_memory(a);
                return (uintptr_t)a.address;
            },
            "Address of the first element.")
        .def("numpy",
             [](nb::object self) {
                 return nb::module_::import_("numpy").attr("from_dlpack")(self);
             },
             nb::sig("def numpy(self) -> typing.Any"),
             "Return a NumPy array of the same memory. NumPy has no bfloat16 and no 8-bit floats.")
        .def("torch",
             [](nb::object self) {
                 return nb::module_::import_("torch").attr("from_dlpack")(self);
             },
             nb::sig("def torch(self) -> typing.Any"),
             "Return a PyTorch tensor of the same memory.")
        .def("__repr__", [](const Array &a) {
            std::string text = "banyan.Array(shape=(";
            for (size_t d = 0; d < a.shape.size(); d++)
                text += std::to_string(a.shape[d]) + (a.shape.size() == 1 || d + 1 < a.shape.size()
                                                          ? ", "
                                                          : "");
            return text + "), dtype=\"" + dtype_text(a.dtype) + "\", device=\"" +
                   device_text(a.device) + "\")";
        });
    m.def("dtype_bytes", [](nb::object dtype) { return banyan_dtype_bytes(dtype_of(dtype)); },
          "dtype"_a, nb::sig("def dtype_bytes(dtype: banyan.DTypeLike) -> int"),
          "Return the bytes of one element.");
}
