/* Communicators. */
#include "banyan_plan.h"

const banyan_memory *memory_handle(nb::handle memory);

struct Communicator : Resource {
    banyan_comm *handle = nullptr;
    DLDevice device = {};
    int ranks = 0;
    nb::list used; /* registered memory, which must live as long as this */
    std::vector<std::shared_ptr<Plan>> plans; /* those that were added, likewise */

    bool is_open() const override { return handle != nullptr; }
    bool is_collective() const override { return true; }
    banyan_status close() override
    {
        banyan_status status = banyan_comm_destroy(handle);
        handle = nullptr;
        return status;
    }
};

static std::shared_ptr<Communicator> create(std::shared_ptr<World> world, nb::object device,
                                            nb::object tuning, int workers, nb::object timeout)
{
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    std::string path = tuning.is_none() ? "" : path_of(tuning);
    options.tuning = tuning.is_none() ? nullptr : path.c_str();
    options.workers = workers;
    options.device = device_of(device);
    options.timeout_ns = timeout_of(timeout);
    auto comm = std::make_shared<Communicator>();
    comm->world = world;
    comm->device = options.device;
    drive(*world, [&] { return banyan_comm_create(world->handle, &options, &comm->handle); });
    comm->ranks = banyan_world_size(world->handle);
    return adopt(comm);
}

/* The tensors of a call, checked against each other before the call. */
struct Operands {
    const Tensor &input, &output;
    size_t count; /* elements of the smaller one */
    void *stream;
};

static void require_operand(const Communicator &comm, const Tensor &tensor, const char *name)
{
    tensor.require_dense(name);
    DLDevice device = comm.device.device_type == 0 ? BANYAN_HOST : comm.device;
    if (tensor.t.device.device_type != device.device_type ||
        tensor.t.device.device_id != device.device_id)
        throw nb::value_error((std::string(name) + " is on " + device_text(tensor.t.device) +
                               ", but the communicator is on " + device_text(device))
                                  .c_str());
}

/* Call `call` with the tensors of `input` and `output`, which is the input if it is None. The
 * output has `numerator` elements for each `denominator` of the input. */
template <typename Call>
static nb::object run(Communicator &comm, nb::handle in, nb::handle out, size_t numerator,
                      size_t denominator, nb::handle stream, Call &&call)
{
    require_open(comm, "the communicator");
    bool in_place = out.is_none() || out.is(in);
    if (in_place)
        out = in;
    Tensor input(in, "input", in_place);
    std::optional<Tensor> other;
    if (!in_place)
        other.emplace(out, "output", true);
    const Tensor &output = in_place ? input : *other;
    require_operand(comm, input, "input");
    require_operand(comm, output, "output");
    if (!banyan_dtype_equal(input.t.dtype, output.t.dtype))
        throw nb::value_error(("the input is of " + dtype_text(input.t.dtype) +
                               ", and the output of " + dtype_text(output.t.dtype))
                                  .c_str());
    size_t inputs = input.elems(), outputs = output.elems();
    if (inputs * numerator != outputs * denominator)
        throw nb::value_error(("the input has " + std::to_string(inputs) +
                               " elements, and the output " + std::to_string(outputs) + "; " +
                               std::to_string(denominator) + " of the input are needed for each " +
                               std::to_string(numerator) + " of the output")
                                  .c_str());
    Operands o{input, output, numerator > denominator ? inputs : outputs, nullptr};
    if (comm.device.device_type == kDLCUDA || !stream.is_none())
        o.stream = stream_of(stream, out, comm.device);
    drive(*comm.world, [&] { return call(o); });
    return nb::borrow(out);
}

/* `factor` is of sums alone. */
static banyan_reduce_op scaled_op_of(nb::handle op, std::optional<double> factor)
{
    banyan_reduce_op reduce = reduce_op_of(op);
    if (factor && reduce != BANYAN_SUM)
        throw nb::value_error("a factor scales sums, not other reductions");
    return reduce;
}

static nb::object all_reduce(Communicator &comm, nb::handle input, nb::handle output,
                             nb::handle op, std::optional<double> factor, nb::handle stream)
{
    banyan_reduce_op reduce = scaled_op_of(op, factor);
    return run(comm, input, output, 1, 1, stream, [&](Operands &o) {
        if (factor)
            return banyan_comm_allreduce_scaled(comm.handle, o.input.address(), o.output.address(),
                                                o.count, o.input.t.dtype, *factor, o.stream);
        return banyan_comm_allreduce(comm.handle, o.input.address(), o.output.address(), o.count,
                                     o.input.t.dtype, reduce, o.stream);
    });
}

static nb::object all_gather(Communicator &comm, nb::handle input, nb::handle output,
                             nb::handle stream)
{
    return run(comm, input, output, (size_t)comm.ranks, 1, stream, [&](Operands &o) {
        return banyan_comm_allgather(comm.handle, o.input.address(), o.output.address(), o.count,
                                     o.input.t.dtype, o.stream);
    });
}

static nb::object reduce_scatter(Communicator &comm, nb::handle input, nb::handle output,
                                 nb::handle op, std::optional<double> factor, nb::handle stream)
{
    banyan_reduce_op reduce = scaled_op_of(op, factor);
    return run(comm, input, output, 1, (size_t)comm.ranks, stream, [&](Operands &o) {
        if (factor)
            return banyan_comm_reducescatter_scaled(comm.handle, o.input.address(),
                                                    o.output.address(), o.count, o.input.t.dtype,
                                                    *factor, o.stream);
        return banyan_comm_reducescatter(comm.handle, o.input.address(), o.output.address(),
                                         o.count, o.input.t.dtype, reduce, o.stream);
    });
}

static nb::object all_to_all(Communicator &comm, nb::handle input, nb::handle output,
                             nb::handle stream)
{
    return run(comm, input, output, 1, 1, stream, [&](Operands &o) {
        if (o.count % (size_t)comm.ranks != 0)
            return banyan_error_set(BANYAN_ERR_INVALID,
                                    "%zu elements do not divide into blocks for %d ranks", o.count,
                                    comm.ranks);
        return banyan_comm_alltoall(comm.handle, o.input.address(), o.output.address(),
                                    o.count / (size_t)comm.ranks, o.input.t.dtype, o.stream);
    });
}

static nb::object broadcast(Communicator &comm, nb::handle input, nb::handle output, int root,
                            nb::handle stream)
{
    return run(comm, input, output, 1, 1, stream, [&](Operands &o) {
        return banyan_comm_broadcast(comm.handle, o.input.address(), o.output.address(), o.count,
                                     o.input.t.dtype, root, o.stream);
    });
}

static nb::object reduce(Communicator &comm, nb::handle input, nb::handle output, nb::handle op,
                         std::optional<double> factor, int root, nb::handle stream)
{
    banyan_reduce_op reduction = scaled_op_of(op, factor);
    return run(comm, input, output, 1, 1, stream, [&](Operands &o) {
        if (factor)
            return banyan_comm_reduce_scaled(comm.handle, o.input.address(), o.output.address(),
                                             o.count, o.input.t.dtype, *factor, root, o.stream);
        return banyan_comm_reduce(comm.handle, o.input.address(), o.output.address(), o.count,
                                  o.input.t.dtype, reduction, root, o.stream);
    });
}

static nb::object send_recv(Communicator &comm, nb::handle input, nb::handle output, int shift,
                            nb::handle stream)
{
    return run(comm, input, output, 1, 1, stream, [&](Operands &o) {
        return banyan_comm_sendrecv(comm.handle, o.input.address(), o.output.address(), o.count,
                                    o.input.t.dtype, shift, o.stream);
    });
}

static std::string choice(Communicator &comm, const std::string &collective, uint64_t nbytes,
                          nb::object dtype, nb::object op, bool in_place, bool registered)
{
    require_open(comm, "the communicator");
    const char *name;
    drive_briefly(*comm.world, [&] {
        return banyan_comm_choice(comm.handle, collective_of(collective), nbytes, dtype_of(dtype),
                                  reduce_op_of(op), in_place, registered, &name);
    });
    return name;
}

/* ---- tuning ---- */

struct Tuning {
    Progress progress;
    nb::object measured;
    Calls calls;
};

static void tune(Communicator &comm, uint64_t min_bytes, uint64_t max_bytes, double seconds,
                 nb::object dtype, std::optional<std::string> collective, nb::object progress,
                 nb::object measured)
{
    require_open(comm, "the communicator");
    Tuning state{{progress, "tuning", false}, measured, {}};
    banyan_tune_options options = BANYAN_TUNE_OPTIONS_INIT;
    options.min_bytes = min_bytes;
    options.max_bytes = max_bytes;
    options.seconds = seconds;
    options.kind = collective ? collective_of(*collective) : BANYAN_CUSTOM;
    if (!dtype.is_none())
        options.dtype = dtype_of(dtype);
    options.context = &state;
    if (state.progress.is_wanted())
        options.progress = [](void *context, const char *what, double share) {
            ((Tuning *)context)->progress.report(what, share);
        };
    if (!measured.is_none())
        options.measured = [](void *context, const banyan_tune_time *time) {
            auto *t = (Tuning *)context;
            t->calls.python([&] {
                nb::dict row;
                row["collective"] = banyan_collective_kind_name(time->kind);
                row["registered"] = time->registered;
                row["bytes"] = time->message_bytes;
                row["algorithm"] = time->algorithm;
                row["instances"] = time->instances;
                row["seconds"] = time->ns / 1e9;
                t->measured(row);
            });
        };
    drive(*comm.world, [&] { return banyan_comm_tune(comm.handle, &options); });
    state.progress.end();
    state.calls.end();
}

#define TENSORS "input: banyan.TensorLike, output: banyan.TensorLike | None = None"
#define FACTOR "factor: float | None = None"
#define STREAM "stream: banyan.StreamLike = None"

void bind_collective(nb::module_ &m)
{
    auto comm = nb::class_<Communicator>(
        m, "Communicator",
        "Collectives between the ranks of a world.\n\n"
        "Every call is served by a plan, which a tuning table chooses by size. All methods are "
        "collective unless they say otherwise. Tensors are of any library, dense, and on the "
        "communicator's device. On the host a call returns when this rank's part is done. On a "
        "GPU it queues the work in ``stream``, by default the current stream of the tensor's "
        "library, and returns.");
    def_new(comm, create,
            "world: World, *, device: banyan.DeviceLike = None, tuning: banyan.PathLike | None = "
            "None, workers: int = 1, timeout: float | None = None",
            "Create a communicator of all ranks of the world. Collective.\n\n"
            "``tuning``: a file of ``save_tuning`` or ``banyan tune``; None: BANYAN_TUNING, else "
            "the built-in table. ``workers``: threads that run thread blocks on the host. "
            "``timeout``: seconds that a wait of a call may last; None: the world's.",
            "world"_a, nb::kw_only(), "device"_a = nb::none(), "tuning"_a = nb::none(),
            "workers"_a = 1, "timeout"_a = nb::none());
    comm
        .def("all_reduce", all_reduce, "input"_a, "output"_a = nb::none(), nb::kw_only(),
             "op"_a = "sum", "factor"_a = nb::none(), "stream"_a = nb::none(),
             nb::sig("def all_reduce(self, " TENSORS ", *, op: banyan.ReduceOp = 'sum', " FACTOR
                     ", " STREAM ") -> typing.Any"),
             "Reduce the inputs of all ranks, element by element. ``output`` None: in place. "
             "``op`` is \"sum\", \"min\", \"max\", \"prod\" or \"avg\". ``factor`` multiplies this "
             "rank's input before a sum; of integers it is a value of their type. Return the "
             "output.")
        .def("all_gather", all_gather, "input"_a, "output"_a, nb::kw_only(),
             "stream"_a = nb::none(),
             nb::sig("def all_gather(self, input: banyan.TensorLike, output: banyan.TensorLike, "
                     "*, " STREAM ") -> typing.Any"),
             "Concatenate the inputs of all ranks in ``output``, in rank order. Return the output.")
        .def("reduce_scatter", reduce_scatter, "input"_a, "output"_a, nb::kw_only(),
             "op"_a = "sum", "factor"_a = nb::none(), "stream"_a = nb::none(),
             nb::sig("def reduce_scatter(self, input: banyan.TensorLike, output: "
                     "banyan.TensorLike, *, op: banyan.ReduceOp = 'sum', " FACTOR ", " STREAM
                     ") -> typing.Any"),
             "Reduce the inputs of all ranks; rank r gets block r. ``op`` and ``factor`` are those "
             "of all_reduce. Return the output.")
        .def("all_to_all", all_to_all, "input"_a, "output"_a, nb::kw_only(),
             "stream"_a = nb::none(),
             nb::sig("def all_to_all(self, input: banyan.TensorLike, output: banyan.TensorLike, "
                     "*, " STREAM ") -> typing.Any"),
             "Block r of rank s's input becomes block s of rank r's output. Return the output.")
        .def("broadcast", broadcast, "input"_a, "output"_a = nb::none(), nb::kw_only(),
             "root"_a = 0, "stream"_a = nb::none(),
             nb::sig("def broadcast(self, " TENSORS ", *, root: int = 0, " STREAM
                     ") -> typing.Any"),
             "Copy the root's input to the output of every rank. ``output`` None: in place. Return "
             "the output.")
        .def("reduce", reduce, "input"_a, "output"_a = nb::none(), nb::kw_only(), "op"_a = "sum",
             "factor"_a = nb::none(), "root"_a = 0, "stream"_a = nb::none(),
             nb::sig("def reduce(self, " TENSORS ", *, op: banyan.ReduceOp = 'sum', " FACTOR
                     ", root: int = 0, " STREAM ") -> typing.Any"),
             "As all_reduce, with the result at the root alone. Return the output.")
        .def("send_recv", send_recv, "input"_a, "output"_a, nb::kw_only(), "shift"_a = 1,
             "stream"_a = nb::none(),
             nb::sig("def send_recv(self, input: banyan.TensorLike, output: banyan.TensorLike, *, "
                     "shift: int = 1, " STREAM ") -> typing.Any"),
             "The input of rank r becomes the output of rank r + shift, modulo the ranks. Return "
             "the output.")
        .def("register",
             [](Communicator &c, nb::object memory) {
                 require_open(c, "the communicator");
                 const banyan_memory *handle = memory_handle(memory);
                 drive(*c.world, [&] { return banyan_comm_register(c.handle, handle); });
                 c.used.append(memory);
             },
             "memory"_a, nb::sig("def register(self, memory: Memory) -> None"),
             "Register a symmetric buffer: calls access tensors in it in place, at the same offset "
             "on all ranks. Collective.")
        .def("unregister",
             [](Communicator &c, nb::object memory) {
                 require_open(c, "the communicator");
                 const banyan_memory *handle = memory_handle(memory);
                 drive(*c.world, [&] { return banyan_comm_unregister(c.handle, handle); });
                 nb::list left;
                 for (nb::handle used : c.used)
                     if (!used.is(memory))
                         left.append(used);
                 c.used = left;
             },
             "memory"_a, nb::sig("def unregister(self, memory: Memory) -> None"),
             "End the registration of a buffer. Collective.")
        .def("add_plan",
             [](Communicator &c, std::shared_ptr<Plan> plan) {
                 require_open(c, "the communicator");
                 drive(*c.world, [&] { return banyan_comm_add_plan(c.handle, plan->handle); });
                 c.plans.push_back(plan);
             },
             "plan"_a,
             "Add a plan. It serves the calls of its collective whose message is in its bounds, "
             "before the tuning table and the plans added earlier. Collective.")
        .def("choice", choice, "collective"_a, "nbytes"_a, nb::kw_only(), "dtype"_a = "float32",
             "op"_a = "sum", "in_place"_a = false, "registered"_a = false,
             nb::sig("def choice(self, collective: str, nbytes: int, *, dtype: banyan.DTypeLike = "
                     "'float32', op: banyan.ReduceOp = 'sum', in_place: bool = False, registered: "
                     "bool = False) -> str"),
             "Return the algorithm or plan that would serve a call with ``nbytes`` of input. "
             "Local.")
        .def("tune", tune, nb::kw_only(), "min_bytes"_a = 8, "max_bytes"_a = 64 << 20,
             "seconds"_a = 60.0, "dtype"_a = nb::none(), "collective"_a = nb::none(),
             "progress"_a.none() = true, "measured"_a = nb::none(),
             nb::sig("def tune(self, *, min_bytes: int = 8, max_bytes: int = 67108864, seconds: "
                     "float = 60.0, dtype: banyan.DTypeLike | None = None, collective: str | None "
                     "= None, " PROGRESS_OF("str, float") ", measured: "
                     "collections.abc.Callable[[dict[str, typing.Any]], object] | None = None) -> "
                     "None"),
             "Measure the algorithms and use the fastest from now on. Rank 0 draws a bar on a "
             "terminal and in notebooks, or calls ``progress`` with a text and the fraction of the "
             "time, and calls ``measured`` with each time. Collective.")
        .def("save_tuning",
             [](Communicator &c, nb::object path) {
                 require_open(c, "the communicator");
                 std::string file = path_of(path);
                 drive(*c.world, [&] { return banyan_comm_save_tuning(c.handle, file.c_str()); });
             },
             "path"_a, nb::sig("def save_tuning(self, path: banyan.PathLike) -> None"),
             "Write the tuning table to a JSON file, on rank 0. Collective.")
        .def("check",
             [](Communicator &c) {
                 require_open(c, "the communicator");
                 drive_briefly(*c.world, [&] { return banyan_comm_status(c.handle); });
             },
             "Raise the error of calls that have ended on a GPU, if any. Local, does not wait.")
        .def("reset",
             [](Communicator &c) {
                 require_open(c, "the communicator");
                 drive(*c.world, [&] { return banyan_comm_reset(c.handle); });
             },
             "Make the communicator usable again after calls on GPUs timed out. Collective.")
        .def_prop_ro("world", [](Communicator &c) { return c.world; }, "World of the ranks.")
        .def_prop_ro("is_open", [](Communicator &c) { return c.is_open(); },
                     "True until the communicator is closed.")
        .def("close", [](Communicator &c) { close_resource(c); },
             "Destroy the communicator. Collective while the world is healthy.")
        .def("__enter__", [](nb::object self) { return self; },
             nb::sig("def __enter__(self) -> Communicator"))
        .def("__exit__",
             [](Communicator &c, nb::handle type, nb::handle, nb::handle) {
                 /* After an exception the other ranks may be elsewhere: the world closes it. */
                 if (type.is_none())
                     close_resource(c);
             },
             "type"_a.none(), "value"_a.none(), "trace"_a.none(),
             nb::sig("def __exit__(self, type: type[BaseException] | None, value: BaseException | "
                     "None, trace: types.TracebackType | None) -> None"));
}
