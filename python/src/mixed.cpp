/* Mixed collectives of a tensor-parallel by data-parallel grid. */
#include "banyan_python.h"

#include <banyan/mixed.h>

struct Mixed : Resource {
    banyan_mixed *handle = nullptr;
    DLDevice device = {};
    LateProgress progress;
    /* Suspended contexts outlive their world. */
    bool suspended = false, closing = false;

    explicit Mixed(nb::object progress) : progress(progress, "tuning", false) {}
    bool is_open() const override { return handle != nullptr; }
    bool is_collective() const override { return true; }
    banyan_status close() override
    {
        if (suspended && !closing)
            return BANYAN_OK;
        banyan_status status = banyan_mixed_close(handle);
        handle = nullptr;
        return status;
    }
    ~Mixed() override
    {
        if (handle)
            banyan_mixed_close(handle);
    }
};

static banyan_mixed_op op_of(const std::string &name)
{
    std::string joined = name; /* "all_reduce" is the library's "allreduce" */
    for (const char *verb : {"all_reduce", "all_gather", "reduce_scatter"})
        for (size_t at; (at = joined.find(verb)) != std::string::npos;)
            joined.erase(joined.find('_', at), 1);
    banyan_mixed_op op;
    check(banyan_mixed_op_parse(joined.c_str(), &op));
    return op;
}

static banyan_mixed_mode mode_of(const std::string &name)
{
    banyan_mixed_mode mode;
    check(banyan_mixed_mode_parse(name.c_str(), &mode));
    return mode;
}

static std::shared_ptr<Mixed> open_mixed(std::shared_ptr<World> world, int local_tp, int local_dp,
                                         int inter_tp, int inter_dp, int nodes, nb::object dtype,
                                         nb::object device, int grid_size, int max_block_size,
                                         int min_block_size, int min_num_steps, uint64_t max_bytes,
                                         bool ib_enable_ibgda, bool should_init_nvshmem,
                                         bool use_autotune, nb::object autotune, bool init,
                                         nb::object progress, nb::object timeout)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    std::string table = autotune.is_none() ? "" : path_of(autotune);
    options.local_tp = local_tp;
    options.local_dp = local_dp;
    options.inter_tp = inter_tp;
    options.inter_dp = inter_dp;
    options.nodes = nodes;
    options.dtype = dtype_of(dtype);
    options.device = device_of(device);
    options.grid_size = grid_size;
    options.max_block_size = max_block_size;
    options.min_block_size = min_block_size;
    options.min_num_steps = min_num_steps;
    options.max_bytes = max_bytes;
    options.ib_enable_ibgda = ib_enable_ibgda;
    options.should_init_nvshmem = should_init_nvshmem;
    options.use_autotune = use_autotune;
    options.autotune = autotune.is_none() ? nullptr : table.c_str();
    options.timeout_ns = timeout_of(timeout);
    auto mixed = std::make_shared<Mixed>(progress);
    if (mixed->progress.is_wanted()) {
        options.context = mixed.get();
        options.progress = [](void *context, const char *what, double share) {
            ((Mixed *)context)->progress.report(what, share);
        };
    }
    LateProgress::End end(mixed->progress);
    mixed->world = world;
    mixed->device = options.device;
    drive(*world, [&] {
        return init ? banyan_mixed_open(world->handle, &options, &mixed->handle)
                    : banyan_mixed_open_empty(world->handle, &options, &mixed->handle);
    });
    adopt(mixed);
    end.raise();
    return mixed;
}

/* Call `call` as the thread that drives the context's world. */
template <typename Call> static void drive_mixed(Mixed &mixed, Call &&call)
{
    require_open(mixed, "the mixed context");
    drive(*mixed.world, call);
}

static nb::object run(Mixed &mixed, const std::string &op, nb::handle in, nb::handle out,
                      const std::string &mode, nb::handle stream)
{
    require_open(mixed, "the mixed context");
    banyan_mixed_op o = op_of(op);
    banyan_mixed_mode m = mode_of(mode);
    bool in_place = out.is_none() || out.is(in);
    Tensor input(in, "input", in_place);
    std::optional<Tensor> other;
    if (!in_place)
        other.emplace(out, "output", true);
    const Tensor &output = in_place ? input : *other;
    void *s = stream_of(stream, in_place ? in : out, mixed.device);
    drive(*mixed.world,
          [&] { return banyan_mixed_run(mixed.handle, o, &input.t, &output.t, m, s); });
    return nb::borrow(in_place ? in : out);
}

static double measure(Mixed &mixed, const std::string &op, nb::handle in, nb::handle out,
                      const std::string &mode)
{
    banyan_mixed_op o = op_of(op);
    banyan_mixed_mode m = mode_of(mode);
    Tensor input(in, "input", false), output(out, "output", true);
    uint64_t ns = 0;
    drive_mixed(mixed,
                [&] { return banyan_mixed_measure(mixed.handle, o, &input.t, &output.t, m, &ns); });
    return (double)ns / 1e9;
}

static std::vector<std::string> ops_of(const Mixed &mixed)
{
    require_open(mixed, "the mixed context");
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    size_t count;
    check(banyan_mixed_valid_ops(mixed.handle, ops, BANYAN_MIXED_OPS, &count));
    std::vector<std::string> names;
    for (size_t i = 0; i < count; i++)
        names.push_back(banyan_mixed_op_name(ops[i]));
    return names;
}

static std::vector<std::string> modes_of(const Mixed &mixed, const std::string &op)
{
    require_open(mixed, "the mixed context");
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    check(banyan_mixed_valid_modes(mixed.handle, op_of(op), modes, BANYAN_MIXED_MODES, &count));
    std::vector<std::string> names;
    for (size_t i = 0; i < count; i++)
        names.push_back(banyan_mixed_mode_name(modes[i]));
    return names;
}

struct Timing {
    banyan_mixed_timing timing;
};

static std::vector<Timing> timings_of(const Mixed &mixed)
{
    require_open(mixed, "the mixed context");
    std::vector<Timing> timings;
    Timing t;
    while (banyan_mixed_timing_at(mixed.handle, timings.size(), &t.timing) == BANYAN_OK)
        timings.push_back(t);
    return timings;
}

/* The table for people, as text. */
static std::string table_of(const Mixed &mixed)
{
    require_open(mixed, "the mixed context");
    char *text = nullptr;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        throw std::bad_alloc();
    banyan_status status = banyan_mixed_print_autotune(mixed.handle, file);
    fclose(file);
    std::string result(text, bytes);
    free(text);
    check(status);
    return result;
}

static void close_mixed(Mixed &mixed)
{
    if (!mixed.is_open())
        return;
    mixed.closing = true;
    if (mixed.world->handle)
        close_resource(mixed);
    else
        work([&] { return mixed.close(); });
}

static void resume(std::shared_ptr<Mixed> mixed, std::shared_ptr<World> world)
{
    require_open(*mixed, "the mixed context");
    bool moves = world && world != mixed->world;
    World &on = moves ? *world : *mixed->world;
    drive(on, [&] { return banyan_mixed_resume(mixed->handle, moves ? world->handle : nullptr); });
    mixed->suspended = false;
    if (!moves)
        return;
    auto &open = mixed->world->open;
    for (size_t i = open.size(); i-- > 0;)
        if (open[i] == mixed.get())
            open.erase(open.begin() + (ptrdiff_t)i);
    auto &kept = mixed->world->kept;
    for (size_t i = kept.size(); i-- > 0;)
        if (kept[i] == mixed)
            kept.erase(kept.begin() + (ptrdiff_t)i);
    mixed->world = world;
    adopt(mixed);
}

#define MODE "mode: str = 'auto'"

void bind_mixed(nb::module_ &m)
{
    auto grid = nb::class_<banyan_mixed_grid>(
        m, "MixedGrid",
        "A resolved grid: rank = local tp rank + local dp rank * local_tp in its node, and node = "
        "inter tp rank + inter dp rank * inter_tp.");
#define FIELD(name, doc) .def_ro(#name, &banyan_mixed_grid::name, doc)
    grid FIELD(local_tp, "Tensor-parallel ranks in a node.")
        FIELD(local_dp, "Data-parallel ranks in a node.")
        FIELD(inter_tp, "Tensor-parallel nodes.")
        FIELD(inter_dp, "Data-parallel nodes.")
        FIELD(nodes, "Number of nodes.")
        FIELD(local_size, "Ranks in each node.")
        FIELD(tp, "Size of this rank's tensor-parallel group.")
        FIELD(dp, "Size of this rank's data-parallel group.")
        FIELD(node, "Node of this rank.")
        FIELD(local_rank, "Number of this rank in its node.")
        FIELD(tp_index, "Index of this rank in its tensor-parallel group.")
        FIELD(dp_index, "Index of this rank in its data-parallel group.")
            .def("rank_at",
                 [](const banyan_mixed_grid &g, int tp_index, int dp_index) {
                     int rank = banyan_mixed_rank_at(&g, tp_index, dp_index);
                     if (rank < 0)
                         throw nb::index_error("the grid has no such indices");
                     return rank;
                 },
                 "tp_index"_a, "dp_index"_a, "Return the world rank with these indices.");
#undef FIELD
    nb::class_<Timing>(m, "MixedTiming", "A measurement of the autotuned table.")
        .def_prop_ro("op", [](const Timing &t) { return banyan_mixed_op_name(t.timing.op); },
                     "Operation.")
        .def_prop_ro("mode", [](const Timing &t) { return banyan_mixed_mode_name(t.timing.mode); },
                     "Mode.")
        .def_prop_ro("nbytes", [](const Timing &t) { return t.timing.bytes; }, "Bytes of b rows.")
        .def_prop_ro("seconds", [](const Timing &t) { return (double)t.timing.ns / 1e9; },
                     "Time of a call on the slowest rank.")
        .def_prop_ro("is_best", [](const Timing &t) { return t.timing.is_best; },
                     "The mode \"auto\" chooses it.");

    auto mixed = nb::class_<Mixed>(
        m, "Mixed",
        "Fused collectives of a tensor-parallel by data-parallel grid.\n\n"
        "Operations: \"allreduce\" over tp, [b, ...] to [b, ...]; \"allgather\" over dp, to [b * "
        "dp, ...]; \"reducescatter\" over dp, [b * dp, ...] to [b, ...]; \"allreduce_allgather\" "
        "and \"reducescatter_allreduce\", both in one. Tensors are dense, of two dimensions or "
        "more. All methods are collective unless they say otherwise.");
    def_new(mixed, open_mixed,
            "world: World, *, local_tp: int = 0, local_dp: int = 0, inter_tp: int = 0, inter_dp: "
            "int = 0, nodes: int = 0, dtype: banyan.DTypeLike = 'bfloat16', device: "
            "banyan.DeviceLike = None, grid_size: int = 0, max_block_size: int = 0, "
            "min_block_size: int = 256, min_num_steps: int = 4, max_bytes: int = 0, "
            "ib_enable_ibgda: bool = True, should_init_nvshmem: bool = True, use_autotune: bool = "
            "True, autotune: banyan.PathLike | None = None, init: bool = True, " PROGRESS_OF("str, float")
            ", timeout: float | None = None",
            "Open a context, ready to run. Collective.\n\n"
            "``local_tp`` to ``inter_dp``: sizes of the grid; 0: what remains. ``nodes``: treat "
            "the ranks as so many nodes; 0: the world's. ``autotune``: a table of "
            "``save_autotune``; without it, ``use_autotune`` measures one. ``init`` False: check "
            "the options only; call ``init_virtual_memory``, on several nodes with GPUs "
            "``init_nvshmem``, and ``autotune`` or ``load_autotune`` yourself. ``progress``: True draws a bar of "
            "autotuning on rank 0, on a terminal and in notebooks; a function is called there with a "
            "text and the fraction of the measurements. The other options are those of "
            "banyan/mixed.h.",
            "world"_a, nb::kw_only(), "local_tp"_a = 0, "local_dp"_a = 0, "inter_tp"_a = 0,
            "inter_dp"_a = 0, "nodes"_a = 0, "dtype"_a = "bfloat16", "device"_a = nb::none(),
            "grid_size"_a = 0, "max_block_size"_a = 0, "min_block_size"_a = 256,
            "min_num_steps"_a = 4, "max_bytes"_a = 0, "ib_enable_ibgda"_a = true,
            "should_init_nvshmem"_a = true, "use_autotune"_a = true, "autotune"_a = nb::none(),
            "init"_a = true, "progress"_a.none() = true, "timeout"_a = nb::none());
    mixed
        .def("run", run, "op"_a, "input"_a, "output"_a = nb::none(), nb::kw_only(),
             "mode"_a = "auto", "stream"_a = nb::none(),
             nb::sig("def run(self, op: str, input: banyan.TensorLike, output: banyan.TensorLike | "
                     "None = None, *, " MODE ", stream: banyan.StreamLike = None) -> typing.Any"),
             "Run an operation in a mode. ``output`` None: an all-reduce in place. On a GPU, queue "
             "it in ``stream``. Return the output.")
        .def("measure", measure, "op"_a, "input"_a, "output"_a, nb::kw_only(), "mode"_a = "auto",
             nb::sig("def measure(self, op: str, input: banyan.TensorLike, output: "
                     "banyan.TensorLike, *, " MODE ") -> float"),
             "Return the seconds of one such call on the slowest rank.")
        .def_prop_ro("ops", ops_of, "Operations that the grid allows. Local.")
        .def("modes", modes_of, "op"_a, "Return the modes that can run an operation now. Local.")
        .def_prop_ro("grid",
                     [](const Mixed &m) {
                         require_open(m, "the mixed context");
                         return banyan_mixed_describe(m.handle);
                     },
                     "The resolved grid. Local.")
        .def("peer_memory",
             [](const Mixed &m, int local_rank) {
                 require_open(m, "the mixed context");
                 void *address;
                 size_t bytes;
                 check(banyan_mixed_peer_memory(m.handle, local_rank, &address, &bytes));
                 return std::make_pair((uintptr_t)address, bytes);
             },
             "local_rank"_a,
             "Return the address of the context's GPU memory of a rank of this node, as mapped here, "
             "and its size in bytes. ``resume`` keeps the address. Raises NotFound if the context "
             "has none, as on the host. Local.")
        .def("multicast_memory",
             [](const Mixed &m, bool of_tp) {
                 require_open(m, "the mixed context");
                 return (uintptr_t)banyan_mixed_multicast_memory(m.handle, of_tp);
             },
             "of_tp"_a = false,
             "Return the multicast address of the memory of all ranks of this node, or of this "
             "rank's tensor-parallel group in it; 0: there is no multicast. Local.")
        .def("choice",
             [](const Mixed &m, const std::string &op, uint64_t nbytes) {
                 require_open(m, "the mixed context");
                 banyan_mixed_mode mode;
                 check(banyan_mixed_select_autotune_mode(m.handle, op_of(op), nbytes, &mode));
                 return banyan_mixed_mode_name(mode);
             },
             "op"_a, "nbytes"_a,
             "Return the mode that \"auto\" uses for ``nbytes`` bytes of b rows. Local.")
        .def("init_virtual_memory",
             [](Mixed &m) {
                 drive_mixed(m, [&] { return banyan_mixed_init_virtual_memory(m.handle); });
             },
             "Allocate and map the memory that the modes use inside a node.")
        .def("init_nvshmem",
             [](Mixed &m) { drive_mixed(m, [&] { return banyan_mixed_init_nvshmem(m.handle); }); },
             "Initialize NVSHMEM, for several nodes with GPUs.")
        .def("autotune",
             [](Mixed &m) {
                 LateProgress::End end(m.progress);
                 drive_mixed(m, [&] { return banyan_mixed_run_autotune(m.handle); });
                 end.raise();
             },
             "Measure every mode of every operation, and use the fastest.")
        .def_prop_ro("timings", timings_of, "Measurements of the table, as a new list. Local.")
        .def("table", table_of, "Return the table as text, with times in microseconds. Local.")
        .def("save_autotune",
             [](Mixed &m, nb::object path) {
                 std::string file = path_of(path);
                 drive_mixed(m, [&] { return banyan_mixed_save_autotune(m.handle, file.c_str()); });
             },
             "path"_a, nb::sig("def save_autotune(self, path: banyan.PathLike) -> None"),
             "Write the table to a JSON file, on rank 0.")
        .def("load_autotune",
             [](Mixed &m, nb::object path) {
                 std::string file = path_of(path);
                 drive_mixed(m, [&] { return banyan_mixed_load_autotune(m.handle, file.c_str()); });
             },
             "path"_a, nb::sig("def load_autotune(self, path: banyan.PathLike) -> None"),
             "Read a table from a JSON file on rank 0, for all ranks.")
        .def("check",
             [](Mixed &m) {
                 require_open(m, "the mixed context");
                 drive_briefly(*m.world, [&] { return banyan_mixed_status(m.handle); });
             },
             "Raise the error of runs that have ended on a GPU, if any. Local, does not wait.")
        .def("suspend",
             [](Mixed &m) {
                 drive_mixed(m, [&] { return banyan_mixed_suspend(m.handle); });
                 m.suspended = true;
             },
             "Release the GPU memory until ``resume``. The world may be closed meanwhile.")
        .def("resume", resume, "world"_a = nb::none(),
             nb::sig("def resume(self, world: World | None = None) -> None"),
             "Allocate the memory again at the same addresses, in the same world or a new one of "
             "the same size.")
        .def_prop_ro("world", [](Mixed &m) { return m.world; }, "World of the ranks.")
        .def_prop_ro("is_open", [](Mixed &m) { return m.is_open(); },
                     "True until the context is closed.")
        .def("close", close_mixed, "Close the context. Collective while the world is healthy.")
        .def("__enter__", [](nb::object self) { return self; },
             nb::sig("def __enter__(self) -> Mixed"))
        .def("__exit__",
             [](Mixed &m, nb::handle type, nb::handle, nb::handle) {
                 if (type.is_none())
                     close_mixed(m);
             },
             "type"_a.none(), "value"_a.none(), "trace"_a.none(),
             nb::sig("def __exit__(self, type: type[BaseException] | None, value: BaseException | "
                     "None, trace: types.TracebackType | None) -> None"));
}
