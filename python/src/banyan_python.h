/* Shared by the files of the extension module: errors, calls that drive a world, tensors.
 *
 * The module is thin. It converts arguments, releases the interpreter's lock around calls that may
 * wait, turns a status into an exception, and keeps objects alive while others use them. */
#ifndef BANYAN_PYTHON_H
#define BANYAN_PYTHON_H

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "dlpack_abi.h"

#define BANYAN_NO_PLACES
#include <banyan/banyan.h>

namespace nb = nanobind;
using namespace nb::literals;

/* ---- errors (errors.cpp) ---- */

/* Raise the exception of a status, with the message of banyan_last_error(). */
[[noreturn]] void raise_status(banyan_status status);
/* Raise the exception of this name in banyan._errors, with the same message. */
[[noreturn]] void raise_named(const char *name);

/* None is a null pointer. */
inline const char *text_or_null(const std::optional<std::string> &text)
{
    return text ? text->c_str() : nullptr;
}

inline void check(banyan_status status)
{
    if (status != BANYAN_OK)
        raise_status(status);
}

/* ---- worlds and what is opened on them (world.cpp) ---- */

struct World;

/* An object that is opened on a world. It stays registered with the world, which closes it, last
 * opened first, when the world itself is closed. Some objects need no world. */
struct Resource {
    std::shared_ptr<World> world; /* null: none */
    /* Tensors of other libraries that lie in this object's memory, and calls that use it. It cannot
     * be closed while there are any. */
    int exports = 0;

    Resource() = default;
    Resource(const Resource &) = delete;
    virtual ~Resource();
    virtual bool is_open() const = 0;
    /* Close the object, if it is open. Called by the thread that drives the world, without the
     * interpreter's lock. */
    virtual banyan_status close() = 0;
    /* All ranks close the object together. Python may forget it at different times on different
     * ranks; so it stays with its world until one of both is closed. */
    virtual bool is_collective() const { return false; }
};

struct World {
    banyan_world *handle = nullptr;
    std::mutex driving;
    std::vector<Resource *> open; /* in the order of opening */
    std::vector<std::shared_ptr<Resource>> kept; /* those that are collective */
    const Resource *running = nullptr; /* the request whose work drives the world, if any */
    nb::dict plans; /* what the package keeps until the world is closed */
};

/* Make the object of a world that was opened. It stays open if Python forgets it. (world.cpp) */
std::shared_ptr<World> keep_world(banyan_world *handle);

/* Raise if the world is closed, or if a request's work drives it. */
void require_idle(const World &world);

/* Drives a world from construction to destruction; other threads of Python may run meanwhile.
 * Raises if the world is closed or another thread drives it, but with `waits` not for a request. */
class Drive {
  public:
    explicit Drive(World &world, bool waits = false);
    ~Drive();
    Drive(const Drive &) = delete;
    Drive &operator=(const Drive &) = delete;

  private:
    World &world;
    PyThreadState *thread;
};

/* Wait without the interpreter's lock, in a call that any thread may make at any time. Handlers of
 * signals run meanwhile. */
class Wait {
  public:
    Wait();
    ~Wait();
    Wait(const Wait &) = delete;
    Wait &operator=(const Wait &) = delete;

  private:
    PyThreadState *thread;
};

/* Call `call`, which returns a status, as the thread that drives the world. */
template <typename Call> void drive(World &world, Call &&call)
{
    banyan_status status;
    {
        Drive driving(world);
        status = call();
    }
    /* The wait may have been on a world of the library's own, such as that of mixed collectives. */
    if (status != BANYAN_OK && PyErr_Occurred() && world.handle)
        banyan_world_abort(world.handle, "the program interrupted the wait");
    check(status);
}

/* As drive, for a call that does not wait: no other thread runs meanwhile. */
template <typename Call> void drive_briefly(World &world, Call &&call)
{
    require_idle(world);
    std::unique_lock<std::mutex> lock(world.driving, std::try_to_lock);
    if (!lock)
        throw std::runtime_error("another thread is in a call of this world");
    check(call());
}

/* Call without the interpreter's lock, for calls that need no world. */
template <typename Call> void work(Call &&call)
{
    banyan_status status;
    {
        nb::gil_scoped_release release;
        status = call();
    }
    check(status);
}

/* Keep an object without a world open as long as the result lives. One with a world is closed by a
 * call of that world, which waits for no other. */
inline std::shared_ptr<void> in_use(std::shared_ptr<Resource> resource)
{
    if (!resource || resource->world)
        return nullptr;
    resource->exports++;
    return std::shared_ptr<void>(nullptr, [resource](void *) { resource->exports--; });
}

/* Register a new object with its world. */
template <typename Object> std::shared_ptr<Object> adopt(std::shared_ptr<Object> object)
{
    if (!object->world)
        return object;
    object->world->open.push_back(object.get());
    if (object->is_collective())
        object->world->kept.push_back(object);
    return object;
}

/* Close an object before its world, from Python. Raises BufferError while tensors of other
 * libraries use it. */
void close_resource(Resource &resource);

/* Raise ValueError if the object is closed. */
void require_open(const Resource &resource, const char *name);

/* ---- tensors (tensor.cpp) ---- */

/* A tensor that another library lends for a call, or for as long as this object lives. */
class Tensor {
  public:
    /* `object` offers DLPack or Python's buffer protocol. `name` is for messages. A tensor to write
     * to must not be read-only. With `keep`, the data stays valid as long as this object. */
    Tensor(nb::handle object, const char *name, bool writes, bool keep = false);
    Tensor(Tensor &&other) noexcept;
    Tensor(const Tensor &) = delete;
    Tensor &operator=(const Tensor &) = delete;

    DLTensor t = {};
    void *address() const { return static_cast<char *>(t.data) + t.byte_offset; }
    size_t elems() const;
    /* Raise unless the elements are dense and in row-major order. */
    void require_dense(const char *name) const;
    bool is_read_only() const;

  private:
    /* The loan, which ends with this object. At most one of the members is set. */
    struct Loan {
        DLManagedTensor *managed = nullptr;
        dlpack::ManagedVersioned *versioned = nullptr;
        Py_buffer buffer = {};
        ~Loan();
    } loan;
    nb::object owner;
    int64_t own_shape[BANYAN_MAX_DIMS], own_strides[BANYAN_MAX_DIMS];

    bool from_exchange(nb::handle object, bool keep);
    bool from_dlpack(nb::handle object, const char *name, bool writes);
    bool from_buffer(nb::handle object, const char *name, bool writes);
};

/* Return the CUDA stream of a call: the one that the caller passes, or else the current stream of
 * the library that `like` is of. Null on the host. */
void *stream_of(nb::handle stream, nb::handle like, DLDevice device);

/* Element types are strings like "bfloat16" in Python; types of PyTorch, NumPy and others do. */
DLDataType dtype_of(nb::handle dtype);
std::string dtype_text(DLDataType dtype);
/* Devices are "cpu" or "cuda:0", a number, or any object whose text is such a string. */
DLDevice device_of(nb::handle device);
std::string device_text(DLDevice device);

banyan_reduce_op reduce_op_of(nb::handle op);
uint64_t timeout_of(nb::handle seconds); /* None: 0; infinity: for ever */

/* Return a path as text: of str, bytes or os.PathLike. */
std::string path_of(nb::handle path);

/* Memory of an object, which Python and other libraries see as a tensor: by DLPack and, on the
 * host, the buffer protocol. */
struct Array {
    std::shared_ptr<Resource> owner;
    void *address;
    DLDevice device;
    DLDataType dtype;
    std::vector<int64_t> shape, strides; /* strides empty: dense */
    bool read_only = false;
};

/* Define the constructor of a class whose objects C++ shares: `create` returns a shared pointer.
 * `parameters` is the signature for type checkers, without self. (nb::new_ takes no signature.) */
template <typename Class, typename Return, typename... Args, typename... Extra>
void def_new(Class &cl, Return (*create)(Args...), const char *parameters, const char *doc,
             const Extra &...extra)
{
    /* Signatures live as long as the module. */
    auto *new_sig = new std::string("def __new__(cls, " + std::string(parameters) +
                                    ") -> typing.Self");
    auto *init_sig = new std::string("def __init__(self, " + std::string(parameters) + ") -> None");
    cl.def_static(
        "__new__", [create](nb::handle, Args... args) { return create(std::forward<Args>(args)...); },
        nb::arg("cls"), extra..., nb::sig(new_sig->c_str()), doc,
        nb::call_policy<nb::detail::new_returntype_fixup_policy>());
    cl.def("__init__", [](nb::handle, nb::args, nb::kwargs) {}, nb::sig(init_sig->c_str()), doc);
}

/* Define what closes a resource. */
template <typename Class> void def_close(nb::class_<Class> &cl, const char *doc)
{
    /* Signatures live as long as the module. */
    auto *enter = new std::string("def __enter__(self) -> " +
                                  nb::cast<std::string>(cl.attr("__name__")));
    cl.def_prop_ro("is_open", [](Class &c) { return c.is_open(); }, "True until it is closed.")
        .def("close", [](Class &c) { close_resource(c); }, doc)
        .def("__enter__", [](nb::object self) { return self; },
             nb::sig(enter->c_str()))
        .def("__exit__", [](Class &c, nb::args) { close_resource(c); },
             nb::sig("def __exit__(self, *args: object) -> None"));
}

/* ---- calls of Python by C ---- */

/* An exception of a function of Python ends the calls, and is raised when the C call has ended. */
struct Calls {
    std::optional<nb::python_error> error;

    /* `call` runs with the interpreter's lock. Return false if there was an exception. */
    template <typename Call> bool python(Call &&call)
    {
        if (error)
            return false;
        nb::gil_scoped_acquire lock;
        try {
            call();
        } catch (nb::python_error &raised) {
            error.emplace(raised);
        } catch (std::exception &raised) {
            PyErr_SetString(PyExc_TypeError, raised.what());
            error.emplace();
        }
        return !error;
    }

    /* Raise the exception. */
    void end()
    {
        if (error)
            throw nb::python_error(*error);
    }
};

/* The argument `progress` of a call: True draws a bar where there is a terminal or a notebook,
 * False or None does nothing, and a function is called. */
class Progress {
  public:
    /* `what` stands before the bar; amounts are bytes or steps. */
    Progress(nb::object argument, const char *what, bool bytes);
    Progress(const Progress &) = delete;
    /* Close the bar. With the interpreter's lock. */
    ~Progress();

    /* True if there is anything to call. */
    bool is_wanted() const { return !function.is_none(); }
    /* Called by C, without the interpreter's lock. */
    template <typename Done, typename Total> void report(Done done, Total total)
    {
        calls.python([&] { function(done, total); });
    }
    /* Raise the exception of a call. */
    void end() { calls.end(); }

  private:
    nb::object function;
    bool is_bar = false;
    Calls calls;
};

/* The progress of calls that may take long: a bar is made at the first report of a call. */
class LateProgress {
  public:
    LateProgress(nb::object argument, const char *what, bool bytes)
        : argument(argument), what(what), bytes(bytes)
    {
    }

    /* False if reports would do nothing. */
    bool is_wanted() const { return argument.is_valid() && nb::cast<bool>(nb::bool_(argument)); }
    /* Called by C, without the interpreter's lock. */
    template <typename Done, typename Total> void report(Done done, Total total)
    {
        calls.python([&] {
            if (!call)
                call = std::make_unique<Progress>(argument, what, bytes);
        });
        if (call && call->is_wanted())
            call->report(done, total);
    }

    /* The end of the call: with the interpreter's lock. */
    struct End {
        explicit End(LateProgress &progress) : progress(progress) {}
        ~End() { progress.call.reset(); }
        /* Raise the exception of a report. */
        void raise()
        {
            Calls calls = std::move(progress.calls);
            progress.calls.error.reset();
            calls.end();
            if (progress.call)
                progress.call->end();
        }

      private:
        LateProgress &progress;
    };

  private:
    nb::object argument;
    const char *what;
    bool bytes;
    std::unique_ptr<Progress> call;
    Calls calls;
};

/* The argument in signatures. */
#define PROGRESS_OF(amount)                                                                        \
    "progress: bool | collections.abc.Callable[[" amount "], object] | None = True"
#define PROGRESS PROGRESS_OF("int, int")

/* ---- the parts of the module ---- */

void bind_tensor(nb::module_ &m);
void bind_world(nb::module_ &m);
void bind_connect(nb::module_ &m);
void bind_memory(nb::module_ &m);
void bind_plan(nb::module_ &m);
void bind_execute(nb::module_ &m);
void bind_program(nb::module_ &m);
void bind_collective(nb::module_ &m);
void bind_layout(nb::module_ &m);
void bind_copy(nb::module_ &m);
void bind_transform(nb::module_ &m);
void bind_publish(nb::module_ &m);
void bind_reshard(nb::module_ &m);
void bind_checkpoint(nb::module_ &m);
void bind_mixed(nb::module_ &m);
void bind_forecast(nb::module_ &m);

#endif
