/* Worlds: opening, closing, the control plane; who drives a world; interrupts. */
#include "banyan_python.h"

#include <algorithm>

/* ---- driving ---- */

/* True while this thread is in a call of the library without the interpreter's lock. */
static thread_local bool in_call;
static unsigned long main_thread;

void require_idle(const World &world)
{
    if (!world.handle)
        throw nb::value_error("the world is closed");
    if (world.running)
        throw std::runtime_error("a run that was started uses this world: wait for its request "
                                 "first");
}

Drive::Drive(World &world, bool waits) : world(world)
{
    if (!waits || !world.handle)
        require_idle(world);
    if (!world.driving.try_lock())
        throw std::runtime_error("another thread is in a call of this world");
    in_call = true;
    thread = PyEval_SaveThread();
}

Drive::~Drive()
{
    PyEval_RestoreThread(thread);
    in_call = false;
    world.driving.unlock();
}

Wait::Wait()
{
    in_call = true;
    thread = PyEval_SaveThread();
}

Wait::~Wait()
{
    PyEval_RestoreThread(thread);
    in_call = false;
}

/* Run the handlers of signals that have come. The exception of a handler, KeyboardInterrupt for
 * Ctrl-C, stays with the thread until raise_status finds it. */
static bool interrupt(void *)
{
    if (!in_call || PyThread_get_thread_ident() != main_thread)
        return false;
    PyGILState_STATE state = PyGILState_Ensure();
    bool raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(state);
    return raised;
}

/* ---- closing ---- */

/* Worlds that are open, in the order of opening. A world that Python forgets stays open. */
static std::vector<std::shared_ptr<World>> &open_worlds()
{
    static auto *worlds = new std::vector<std::shared_ptr<World>>;
    return *worlds;
}

/* Without the interpreter's lock a resource can neither come nor go, except through `Drive`. */
Resource::~Resource()
{
    if (!world)
        return;
    auto &open = world->open;
    open.erase(std::remove(open.begin(), open.end(), this), open.end());
}

void require_open(const Resource &resource, const char *name)
{
    if (!resource.is_open())
        throw nb::value_error((std::string(name) + " is closed").c_str());
}

static void require_no_exports(int exports, const char *what)
{
    if (exports > 0)
        throw nb::buffer_error((std::to_string(exports) +
                                " tensors of other libraries, or runs, still use memory of " +
                                what + "; delete them first")
                                   .c_str());
}

void close_resource(Resource &resource)
{
    if (!resource.is_open())
        return;
    require_no_exports(resource.exports, "this object");
    std::shared_ptr<World> world = resource.world;
    if (!world) {
        check(resource.close());
        return;
    }
    auto drop = [&] {
        auto &kept = world->kept;
        kept.erase(std::remove_if(kept.begin(), kept.end(),
                                  [&](auto &k) { return k.get() == &resource; }),
                   kept.end());
    };
    try {
        drive(*world, [&] { return resource.close(); });
    } catch (...) {
        drop();
        throw;
    }
    drop();
}

static int exports_of(const World &world)
{
    int exports = 0;
    for (const Resource *resource : world.open)
        exports += resource->exports;
    return exports;
}

static void forget(const World &world)
{
    auto &worlds = open_worlds();
    worlds.erase(std::remove_if(worlds.begin(), worlds.end(),
                                [&](auto &w) { return w.get() == &world; }),
                 worlds.end());
}

/* A sub-world is a resource of its parent. */
struct SubWorld : Resource {
    std::shared_ptr<World> sub;
    bool is_open() const override { return sub->handle != nullptr; }
    banyan_status close() override;
    bool is_collective() const override { return true; }
};

/* Close everything on a world and the world. Without the interpreter's lock. */
static banyan_status close_handle(World &world)
{
    banyan_status first = BANYAN_OK;
    for (size_t i = world.open.size(); i-- > 0;)
        if (world.open[i]->is_open()) {
            banyan_status status = world.open[i]->close();
            first = first == BANYAN_OK ? status : first;
        }
    banyan_status status = banyan_world_close(world.handle);
    world.handle = nullptr;
    return first == BANYAN_OK ? status : first;
}

banyan_status SubWorld::close()
{
    return is_open() ? close_handle(*sub) : BANYAN_OK;
}

static void close_world(World &world)
{
    if (!world.handle)
        return;
    require_no_exports(exports_of(world), "this world");
    std::vector<std::shared_ptr<Resource>> kept;
    std::shared_ptr<World> alive;
    for (auto &w : open_worlds())
        if (w.get() == &world)
            alive = w;
    banyan_status status;
    {
        Drive driving(world, true); /* closing waits for a request */
        status = close_handle(world);
    }
    kept.swap(world.kept);
    forget(world);
    world.plans.clear();
    check(status);
}

/* At exit: the processes of a job end at different times, and one may have failed. */
static void close_all(std::optional<std::string> failure)
{
    constexpr uint64_t AT_EXIT_NS = 5000000000;
    auto worlds = open_worlds();
    for (size_t i = worlds.size(); i-- > 0;) {
        World &world = *worlds[i];
        if (!world.handle || !world.driving.try_lock())
            continue;
        world.driving.unlock();
        if (failure)
            banyan_world_abort(world.handle, failure->c_str());
        if (exports_of(world) > 0)
            continue;
        if (banyan_world_timeout_ns(world.handle) > AT_EXIT_NS)
            banyan_world_set_timeout(world.handle, AT_EXIT_NS);
        try {
            close_world(world);
        } catch (nb::python_error &) { /* the process ends anyway; its peers have the cause */
        }
    }
}

/* Return the rank of this process in the first world that is open. */
static std::optional<int> first_rank()
{
    for (const auto &world : open_worlds())
        if (world->handle)
            return banyan_world_rank(world->handle);
    return std::nullopt;
}

/* ---- opening ---- */

struct UniqueId {
    banyan_unique_id id;
};

std::shared_ptr<World> keep_world(banyan_world *handle)
{
    auto world = std::make_shared<World>();
    world->handle = handle;
    open_worlds().push_back(world);
    return world;
}

static std::shared_ptr<World> open_world(std::optional<int> rank, std::optional<int> size,
                                         const UniqueId *unique_id,
                                         std::optional<std::string> node,
                                         std::optional<std::string> secret,
                                         std::optional<std::string> address, int port,
                                         nb::object timeout)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank.value_or(-1);
    options.world_size = size.value_or(-1);
    options.unique_id = unique_id ? &unique_id->id : nullptr;
    options.node = node ? node->c_str() : nullptr;
    options.secret = secret ? secret->c_str() : nullptr;
    options.address = address ? address->c_str() : nullptr;
    options.port = port;
    options.timeout_ns = timeout_of(timeout);
    banyan_world *handle = nullptr;
    banyan_status status;
    {
        Wait waiting;
        status = banyan_world_open(&options, &handle);
    }
    check(status);
    return keep_world(handle);
}

static const char hex_digits[] = "0123456789abcdef";

static std::string hex_of(const banyan_unique_id &id)
{
    std::string text;
    for (unsigned char byte : id.bytes) {
        text += hex_digits[byte >> 4];
        text += hex_digits[byte & 15];
    }
    return text;
}

static bool id_from_hex(std::string_view text, banyan_unique_id *id)
{
    if (text.size() != 2 * sizeof id->bytes)
        return false;
    for (size_t i = 0; i < text.size(); i++) {
        const char *digit = strchr(hex_digits, text[i]);
        if (!text[i] || !digit)
            return false;
        unsigned char &byte = id->bytes[i / 2];
        byte = (unsigned char)(byte << 4 | (digit - hex_digits));
    }
    return true;
}

/* Rank 0 creates the unique id and stores it; the others' get waits for it. */
static std::shared_ptr<World> world_from_store(nb::object store, int rank, int size,
                                               const std::string &prefix,
                                               std::optional<std::string> node, nb::object timeout)
{
    if (size < 1 || rank < 0 || rank >= size)
        throw nb::value_error(("rank " + std::to_string(rank) + " is not in a world of " +
                               std::to_string(size) + " ranks")
                                  .c_str());
    /* The n-th world of a prefix has the n-th key: each rank counts the worlds that it opens. */
    nb::object count =
        store.attr("add")((prefix + "/worlds of rank " + std::to_string(rank)).c_str(), 1);
    std::string key = prefix + "/world " + nb::cast<std::string>(nb::str(count));
    UniqueId id;
    if (rank == 0) {
        work([&] { return banyan_unique_id_create(&id.id); });
        store.attr("set")(key.c_str(), hex_of(id.id).c_str());
    } else {
        nb::object value = store.attr("get")(key.c_str());
        std::string text = nb::isinstance<nb::bytes>(value)
                               ? std::string(nb::cast<nb::bytes>(value).c_str())
                               : nb::cast<std::string>(nb::str(value));
        if (!id_from_hex(text, &id.id))
            throw nb::value_error(("the store's value of \"" + key + "\" is not a unique id").c_str());
    }
    return open_world(rank, size, &id, node, std::nullopt, std::nullopt, 0, timeout);
}

static std::shared_ptr<World> split_world(std::shared_ptr<World> parent, std::vector<int> ranks)
{
    banyan_world *handle;
    drive(*parent, [&] {
        return banyan_world_split(parent->handle, ranks.data(), (int)ranks.size(), &handle);
    });
    auto entry = std::make_shared<SubWorld>();
    entry->world = parent;
    entry->sub = std::make_shared<World>();
    entry->sub->handle = handle;
    adopt(entry);
    return entry->sub;
}

/* ---- control plane ---- */

static nb::bytes broadcast(World &world, nb::object data, int root)
{
    bool is_root = world.handle && banyan_world_rank(world.handle) == root;
    std::string bytes;
    if (is_root) {
        nb::bytes given = nb::cast<nb::bytes>(data);
        bytes.assign((const char *)given.data(), given.size());
    }
    uint64_t size = bytes.size();
    drive(world, [&] {
        banyan_status status = banyan_world_broadcast(world.handle, &size, sizeof size, root);
        if (status != BANYAN_OK || size == 0)
            return status;
        bytes.resize(size);
        return banyan_world_broadcast(world.handle, bytes.data(), size, root);
    });
    return nb::bytes(bytes.data(), bytes.size());
}

static nb::list gather(World &world, nb::bytes mine)
{
    std::vector<size_t> sizes(world.handle ? (size_t)banyan_world_size(world.handle) : 0);
    void *all = nullptr;
    drive(world, [&] {
        return banyan_world_allgatherv(world.handle, mine.data(), mine.size(), &all, sizes.data());
    });
    nb::list parts;
    const char *next = (const char *)all;
    for (size_t bytes : sizes) {
        parts.append(nb::bytes(next, bytes));
        next += bytes;
    }
    free(all);
    return parts;
}

static banyan_world *open_handle(const World &world)
{
    if (!world.handle)
        throw nb::value_error("the world is closed");
    return world.handle;
}

static void require_rank(const World &world, int rank)
{
    int size = banyan_world_size(open_handle(world));
    if (rank < 0 || rank >= size)
        throw nb::value_error(("rank " + std::to_string(rank) + " is not in a world of " +
                               std::to_string(size) + " ranks")
                                  .c_str());
}

/* ---- log ---- */

static nb::object *log_function;

static void log_to_python(banyan_log_level level, const char *message, void *)
{
    if (!Py_IsInitialized())
        return;
    nb::gil_scoped_acquire lock;
    static const char *const names[] = {"error", "warning", "info", "debug"};
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    nb::object result = nb::steal(PyObject_CallFunction(
        log_function->ptr(), "ss", level <= BANYAN_LOG_DEBUG ? names[level] : "debug", message));
    if (!result.is_valid())
        PyErr_WriteUnraisable(log_function->ptr());
    PyErr_Restore(type, value, trace);
}

static void set_log(nb::object function)
{
    {
        nb::gil_scoped_release release; /* the log's lock is held while the function runs */
        banyan_log_set(nullptr, nullptr);
    }
    delete log_function;
    log_function = nullptr;
    if (function.is_none())
        return;
    log_function = new nb::object(function);
    nb::gil_scoped_release release;
    banyan_log_set(log_to_python, nullptr);
}

void bind_world(nb::module_ &m)
{
    main_thread =
        nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr(
            "ident"));
    banyan_interrupt_set(interrupt, nullptr);
    m.def("_close_all", close_all, "failure"_a.none());
    m.def("_set_log", set_log, "function"_a.none());
    m.def("_first_rank", first_rank);
    m.def("version", banyan_version, "Return the version of libbanyan.");

    nb::class_<UniqueId>(m, "UniqueId",
                         "Addresses and the secret of a new job.\n\n"
                         "Create it in one process, which need not be a rank but must live until "
                         "all ranks have joined. Send it to all ranks by any means, and protect it "
                         "like a password.")
        .def("__init__",
             [](UniqueId *self) {
                 new (self) UniqueId;
                 banyan_unique_id id;
                 work([&] { return banyan_unique_id_create(&id); });
                 self->id = id;
             })
        .def("__bytes__",
             [](const UniqueId &u) { return nb::bytes(u.id.bytes, sizeof u.id.bytes); })
        .def_static(
            "from_bytes",
            [](nb::bytes data) {
                UniqueId id;
                if (data.size() != sizeof id.id.bytes)
                    throw nb::value_error(("a unique id has " +
                                           std::to_string(sizeof id.id.bytes) + " bytes, not " +
                                           std::to_string(data.size()))
                                              .c_str());
                memcpy(id.id.bytes, data.data(), data.size());
                return id;
            },
            "data"_a, "Make an id of its bytes, ``bytes(id)``.");

    auto world = nb::class_<World>(
        m, "World", nb::is_weak_referenceable(),
        "The processes of a job, as this rank sees them.\n\n"
        "All ranks open the world together; without arguments, rank and size come from the "
        "environment of ``banyan launch``, torchrun, mpirun or srun. Methods that are marked "
        "collective are called by every rank, in the same order. One thread at a time drives a "
        "world. Close the world with ``with`` or ``close()``; what is still open on it is closed "
        "first.");
    def_new(world, open_world,
            "rank: int | None = None, size: int | None = None, *, unique_id: UniqueId | None = "
            "None, node: str | None = None, secret: str | None = None, address: str | None = "
            "None, port: int = 0, timeout: float | None = None",
            "Join the job. Collective.\n\n"
            "``rank`` and ``size``: None takes them from the environment; without any, the world "
            "has one rank. ``node``: ranks with equal names share memory. ``secret``: 32 "
            "hexadecimal digits. ``address``, ``port``: of rank 0. ``timeout``: seconds that a "
            "wait may last without progress (``math.inf``: for ever; None: BANYAN_TIMEOUT, else "
            "10 minutes).",
            "rank"_a = nb::none(), "size"_a = nb::none(), nb::kw_only(), "unique_id"_a = nb::none(),
            "node"_a = nb::none(), "secret"_a = nb::none(), "address"_a = nb::none(), "port"_a = 0,
            "timeout"_a = nb::none());
    world
        .def_static(
            "from_store", world_from_store, "store"_a, "rank"_a, "size"_a, nb::kw_only(),
            "prefix"_a = "banyan", "node"_a = nb::none(), "timeout"_a = nb::none(),
            nb::sig("def from_store(store: typing.Any, rank: int, size: int, *, prefix: str = "
                    "'banyan', node: str | None = None, timeout: float | None = None) -> World"),
            "Join a job whose ranks share a key-value store. Collective.\n\n"
            "``store`` has ``set``, ``get`` (which waits for the key) and ``add``, as the stores of "
            "``torch.distributed`` do. Through it rank 0 sends the other ranks a unique id, under "
            "a key that begins with ``prefix``. Every reader of the store can join the job. "
            "``node``, ``timeout``: as for ``World``. Raises ValueError if the rank is not in the "
            "world, or the store holds another value under the key.")
        .def_prop_ro("rank", [](const World &w) { return banyan_world_rank(open_handle(w)); },
                     "Number of this process, from 0.")
        .def_prop_ro("size", [](const World &w) { return banyan_world_size(open_handle(w)); },
                     "Number of ranks.")
        .def_prop_ro("node_count",
                     [](const World &w) { return banyan_world_node_count(open_handle(w)); },
                     "Number of nodes.")
        .def("node_of",
             [](const World &w, int rank) {
                 require_rank(w, rank);
                 return banyan_world_node_of(w.handle, rank);
             },
             "rank"_a, "Return the number of the node of a rank.")
        .def_prop_ro("local_rank",
                     [](const World &w) { return banyan_world_local_rank(open_handle(w)); },
                     "Index of this rank among the ranks of its node.")
        .def_prop_ro("local_size",
                     [](const World &w) { return banyan_world_local_size(open_handle(w)); },
                     "Number of ranks of this node.")
        .def_prop_ro("is_open", [](const World &w) { return w.handle != nullptr; },
                     "True until the world is closed.")
        .def_prop_ro("_plans",
                     [](const World &w) {
                         open_handle(w);
                         return w.plans;
                     },
                     nb::sig("def _plans(self) -> dict[typing.Any, typing.Any]"))
        .def_prop_rw(
            "timeout",
            [](const World &w) {
                uint64_t ns = banyan_world_timeout_ns(open_handle(w));
                return ns >= BANYAN_FOREVER_NS ? HUGE_VAL : (double)ns / 1e9;
            },
            [](World &w, nb::object seconds) {
                uint64_t ns = timeout_of(seconds);
                drive_briefly(w, [&] { return banyan_world_set_timeout(w.handle, ns); });
            },
            nb::for_setter("seconds"_a.none()), nb::for_setter(nb::sig("def timeout(self, seconds: float | None, /) -> None")),
            "Seconds that a wait may last without progress, ``math.inf`` for no limit. Set it to "
            "None for the timeout that the world was opened with.")
        .def("check", [](World &w) { check(banyan_world_check(open_handle(w))); },
             "Raise the error that ended the world, if it has ended. Does not wait.")
        .def("abort",
             [](World &w, std::optional<std::string> reason) {
                 check(banyan_world_abort(open_handle(w), reason ? reason->c_str() : nullptr));
             },
             "reason"_a = nb::none(),
             "End the world on all ranks: their waits raise Aborted, with this rank and the "
             "reason. Any thread.")
        .def("barrier", [](World &w) { drive(w, [&] { return banyan_world_barrier(w.handle); }); },
             "Wait until all ranks have called this. Collective.")
        .def("broadcast", broadcast, "data"_a.none(), "root"_a = 0,
             nb::sig("def broadcast(self, data: bytes | None, root: int = 0) -> bytes"),
             "Return the root's bytes on every rank; the other ranks' ``data`` is ignored. "
             "Collective. For small messages.")
        .def("gather", gather, "mine"_a,
             nb::sig("def gather(self, mine: bytes) -> list[bytes]"),
             "Return the bytes of every rank, in rank order. Collective. For small messages.")
        .def("split", split_world, "ranks"_a,
             nb::sig("def split(self, ranks: collections.abc.Sequence[int]) -> World"),
             "Open a world of some ranks; rank ``ranks[i]`` becomes rank i. Collective over these "
             "ranks, with equal lists.")
        .def("close", close_world,
             "Close what is open on the world, and the world. Collective while the world is "
             "healthy. Does nothing if it is closed.")
        .def("__enter__", [](nb::object self) { return self; },
             nb::sig("def __enter__(self) -> World"))
        .def("__exit__",
             [](World &w, nb::object type, nb::object value, nb::object) {
                 if (!w.handle)
                     return;
                 if (!type.is_none()) {
                     /* The other ranks must not wait for a rank that failed. */
                     std::string reason = nb::cast<std::string>(nb::str(type.attr("__name__"))) +
                                          ": " + nb::cast<std::string>(nb::str(value));
                     banyan_world_abort(w.handle, reason.c_str());
                     try {
                         close_world(w);
                     } catch (nb::python_error &) { /* the block's own exception goes on */
                     } catch (nb::builtin_exception &) {
                     }
                     return;
                 }
                 close_world(w);
             },
             "type"_a.none(), "value"_a.none(), "trace"_a.none(),
             nb::sig("def __exit__(self, type: type[BaseException] | None, value: BaseException | "
                     "None, trace: types.TracebackType | None) -> None"),
             "Close the world. After an exception, abort it first, so that no rank waits for this "
             "one.")
        .def("__repr__", [](const World &w) {
            if (!w.handle)
                return std::string("banyan.World(closed)");
            return "banyan.World(rank=" + std::to_string(banyan_world_rank(w.handle)) +
                   ", size=" + std::to_string(banyan_world_size(w.handle)) + ")";
        });
}
