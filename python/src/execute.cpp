/* Executors and loaded plans. */
#include "banyan_plan.h"

#include <algorithm>

const banyan_memory *memory_handle(nb::handle memory);

struct LoadedPlan;

struct Executor : Resource {
    banyan_executor *handle = nullptr;
    DLDevice device = {};
    std::vector<LoadedPlan *> plans; /* those that are open */

    bool is_open() const override { return handle != nullptr; }
    bool is_collective() const override { return true; }
    banyan_status close() override;
};

struct LoadedPlan : Resource {
    banyan_loaded_plan *handle = nullptr;
    std::shared_ptr<Executor> executor;
    std::shared_ptr<Plan> plan;
    nb::object input_memory, output_memory; /* symmetric buffers, which outlive the plan */

    bool is_open() const override { return handle != nullptr; }
    bool is_collective() const override { return true; }
    banyan_status close() override
    {
        banyan_status status = banyan_loaded_plan_close(handle);
        handle = nullptr;
        auto &plans = executor->plans;
        plans.erase(std::remove(plans.begin(), plans.end(), this), plans.end());
        return status;
    }
};

/* Every rank closes the plans in the same order. */
banyan_status Executor::close()
{
    banyan_status first = BANYAN_OK;
    while (!plans.empty()) {
        banyan_status status = plans.back()->close();
        first = first == BANYAN_OK ? status : first;
    }
    banyan_executor_close(handle);
    handle = nullptr;
    return first;
}

static std::shared_ptr<Executor> open_executor(std::shared_ptr<World> world, nb::object device,
                                               int workers, uint64_t shuffle_seed,
                                               nb::object timeout)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    options.workers = workers;
    options.shuffle_seed = shuffle_seed;
    options.device = device_of(device);
    options.timeout_ns = timeout_of(timeout);
    auto executor = std::make_shared<Executor>();
    executor->world = world;
    executor->device = options.device;
    drive(*world, [&] { return banyan_executor_open(world->handle, &options, &executor->handle); });
    return adopt(executor);
}

static std::shared_ptr<LoadedPlan> load(std::shared_ptr<Executor> executor,
                                        std::shared_ptr<Plan> plan, uint64_t max_message_bytes,
                                        nb::object input, nb::object output)
{
    require_open(*executor, "the executor");
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = max_message_bytes;
    options.input = input.is_none() ? nullptr : memory_handle(input);
    options.output = output.is_none() ? nullptr : memory_handle(output);
    auto loaded = std::make_shared<LoadedPlan>();
    loaded->world = executor->world;
    loaded->executor = executor;
    loaded->plan = plan;
    loaded->input_memory = input;
    loaded->output_memory = output;
    drive(*executor->world, [&] {
        return banyan_loaded_plan_open(executor->handle, plan->handle, &options, &loaded->handle);
    });
    executor->plans.push_back(loaded.get());
    return adopt(loaded);
}

/* ---- runs ---- */

/* The tensors of a run, checked against the plan before the call. */
struct RunOperands {
    Tensor input, output;
    uint64_t nbytes;
    DLDataType dtype;
    void *stream = nullptr;
};

static void require_bytes(const Tensor &tensor, const char *name, uint64_t needed, uint64_t nbytes)
{
    uint64_t bytes = tensor.elems() * banyan_dtype_bytes(tensor.t.dtype);
    if (bytes != needed)
        throw nb::value_error((std::string(name) + " has " + std::to_string(bytes) +
                               " bytes, but this rank's has " + std::to_string(needed) +
                               " in a message of " + std::to_string(nbytes) + " bytes")
                                  .c_str());
}

static void require_device(const Tensor &tensor, const char *name, DLDevice device)
{
    device = device.device_type == 0 ? BANYAN_HOST : device;
    if (tensor.t.device.device_type != device.device_type ||
        tensor.t.device.device_id != device.device_id)
        throw nb::value_error((std::string(name) + " is on " + device_text(tensor.t.device) +
                               ", but the executor is on " + device_text(device))
                                  .c_str());
}

/* `keep`: the tensors stay valid as long as the operands. */
static RunOperands operands_of(const LoadedPlan &loaded, nb::handle in, nb::handle out,
                               std::optional<uint64_t> nbytes, nb::handle stream, bool keep)
{
    require_open(loaded, "the loaded plan");
    bool in_place = out.is_none() || out.is(in);
    if (in_place)
        out = in;
    RunOperands o{Tensor(in, "input", in_place, keep), Tensor(out, "output", true, keep), 0, {}};
    o.input.require_dense("input");
    o.output.require_dense("output");
    require_device(o.input, "input", loaded.executor->device);
    require_device(o.output, "output", loaded.executor->device);
    o.dtype = o.input.t.dtype;
    if (!banyan_dtype_equal(o.dtype, o.output.t.dtype))
        throw nb::value_error(("the input is of " + dtype_text(o.dtype) + ", and the output of " +
                               dtype_text(o.output.t.dtype))
                                  .c_str());
    o.nbytes = nbytes.value_or(o.input.elems() * banyan_dtype_bytes(o.dtype));
    uint64_t input_bytes, output_bytes;
    int rank = banyan_world_rank(loaded.world->handle);
    check(banyan_plan_sizes(loaded.plan->handle, rank, o.nbytes, &input_bytes, &output_bytes));
    require_bytes(o.input, "input", input_bytes, o.nbytes);
    require_bytes(o.output, "output", output_bytes, o.nbytes);
    if (loaded.executor->device.device_type == kDLCUDA || !stream.is_none())
        o.stream = stream_of(stream, out, loaded.executor->device);
    return o;
}

static nb::object run(LoadedPlan &loaded, nb::handle input, nb::handle output,
                      std::optional<uint64_t> nbytes, nb::handle stream)
{
    RunOperands o = operands_of(loaded, input, output, nbytes, stream, false);
    drive(*loaded.world, [&] {
        return banyan_loaded_plan_run(loaded.handle, o.input.address(), o.output.address(),
                                      o.nbytes, o.dtype, o.stream);
    });
    return nb::borrow(output.is_none() ? input : output);
}

/* LoadedPlan._run_at, for programs that pass addresses: banyan.integrations.mscclpp. */
static void run_at(LoadedPlan &loaded, uintptr_t input, uintptr_t output, uint64_t nbytes,
                   uint8_t code, uint8_t bits, uintptr_t stream)
{
    require_open(loaded, "the loaded plan");
    drive(*loaded.world, [&] {
        return banyan_loaded_plan_run(
            loaded.handle, reinterpret_cast<void *>(input), reinterpret_cast<void *>(output),
            nbytes, (DLDataType){code, bits, 1}, reinterpret_cast<void *>(stream));
    });
}

/* The type and number of an address's device. */
static std::pair<int, int> locate(uintptr_t address)
{
    DLDevice device;
    check(banyan_memory_locate(reinterpret_cast<void *>(address), &device));
    return {device.device_type, device.device_id};
}

static double time_runs(LoadedPlan &loaded, nb::handle input, nb::handle output, uint32_t runs,
                        std::optional<uint64_t> nbytes)
{
    RunOperands o = operands_of(loaded, input, output, nbytes, nb::none(), false);
    uint64_t ns = 0;
    drive(*loaded.world, [&] {
        return banyan_loaded_plan_time(loaded.handle, o.input.address(), o.output.address(),
                                       o.nbytes, o.dtype, runs, &ns);
    });
    return (double)ns / 1e9;
}

/* A started run. Until it is waited for, nothing else uses its world. */
struct Run : Resource {
    banyan_request *handle = nullptr;
    std::optional<RunOperands> operands;
    std::shared_ptr<LoadedPlan> loaded;

    bool is_open() const override { return handle != nullptr; }
    bool is_collective() const override { return true; }
    banyan_status close() override
    {
        banyan_status status = banyan_request_wait(handle);
        handle = nullptr;
        world->running = nullptr;
        return status;
    }
};

static std::shared_ptr<Run> start(std::shared_ptr<LoadedPlan> loaded, nb::handle input,
                                  nb::handle output, std::optional<uint64_t> nbytes)
{
    auto run = std::make_shared<Run>();
    run->operands.emplace(operands_of(*loaded, input, output, nbytes, nb::none(), true));
    run->world = loaded->world;
    run->loaded = loaded;
    RunOperands &o = *run->operands;
    drive(*run->world, [&] {
        return banyan_loaded_plan_start(loaded->handle, o.input.address(), o.output.address(),
                                        o.nbytes, o.dtype, &run->handle);
    });
    run->world->running = run.get();
    return adopt(run);
}

/* As close_resource, which refuses to use the world of a run. */
static void wait_run(std::shared_ptr<Run> run)
{
    if (!run->is_open())
        return;
    banyan_status status;
    {
        Drive driving(*run->world, true);
        status = run->close();
    }
    run->operands.reset();
    auto &kept = run->world->kept;
    kept.erase(std::remove(kept.begin(), kept.end(), run), kept.end());
    check(status);
}

static bool test_run(const Run &run)
{
    bool done = true;
    if (run.is_open())
        check(banyan_request_test(run.handle, &done));
    return done;
}

/* Plan.run: an executor for one run. */
static nb::object run_once(std::shared_ptr<Plan> plan, std::shared_ptr<World> world,
                           nb::handle input, nb::handle output, std::optional<uint64_t> nbytes,
                           int workers, nb::handle stream)
{
    Tensor like(input, "input", false);
    bool host = like.t.device.device_type != kDLCUDA;
    nb::object device =
        host ? nb::object(nb::none()) : nb::object(nb::int_(like.t.device.device_id));
    uint64_t most = nbytes.value_or(like.elems() * banyan_dtype_bytes(like.t.dtype));
    auto executor = open_executor(world, device, workers, 0, nb::none());
    auto loaded = load(executor, plan, most, nb::none(), nb::none());
    nb::object result = run(*loaded, input, output, nbytes, stream);
    if (!host)
        drive(*world, [&] { return banyan_loaded_plan_wait(loaded->handle); });
    close_resource(*loaded);
    close_resource(*executor);
    return result;
}

/* The methods of objects that are closed, and are context managers. */
template <typename Class> static void def_closing(nb::class_<Class> &cl, const char *name)
{
    auto *enter = new std::string("def __enter__(self) -> " + std::string(name));
    cl.def_prop_ro(
          "world", [](Class &c) { return c.world; }, "World of the ranks.")
        .def_prop_ro(
            "is_open", [](Class &c) { return c.is_open(); }, "True until it is closed.")
        .def(
            "__enter__", [](nb::object self) { return self; }, nb::sig(enter->c_str()))
        .def(
            "__exit__",
            [](Class &c, nb::handle type, nb::handle, nb::handle) {
                /* After an exception the other ranks may be elsewhere: the world closes it. */
                if (type.is_none())
                    close_resource(c);
            },
            "type"_a.none(), "value"_a.none(), "trace"_a.none(),
            nb::sig("def __exit__(self, type: type[BaseException] | None, value: BaseException | "
                    "None, trace: types.TracebackType | None) -> None"));
}

#define RUN_TENSORS "input: banyan.TensorLike, output: banyan.TensorLike | None = None"
#define NBYTES "nbytes: int | None = None"

static void bind_loaded(nb::module_ &m)
{
    nb::class_<Run>(m, "PlanRun",
                    "A run that was started. Until it is waited for, no other call of its world is "
                    "possible.")
        .def("wait", wait_run,
             "Wait until the run has ended, and raise its error. Ctrl-C ends the wait, and the "
             "world. Does nothing after the first time.")
        .def("test", test_run,
             "Return True if the run has ended, and raise its error. Does not wait.")
        .def(
            "__enter__", [](nb::object self) { return self; },
            nb::sig("def __enter__(self) -> PlanRun"))
        .def(
            "__exit__", [](std::shared_ptr<Run> r, nb::args) { wait_run(r); },
            nb::sig("def __exit__(self, *args: object) -> None"));
    auto loaded = nb::class_<LoadedPlan>(
        m, "LoadedPlan",
        "A plan with its scratch, counters and the addresses of peers, ready to run.\n\n"
        "Methods are collective unless they say otherwise. Tensors are of any library, dense, and "
        "on the executor's device. ``nbytes`` is the size of a message (``Plan.sizes``); None: "
        "the bytes of ``input``.");
    def_closing(loaded, "LoadedPlan");
    loaded
        .def("run", run, "input"_a, "output"_a = nb::none(), nb::kw_only(), "nbytes"_a = nb::none(),
             "stream"_a = nb::none(),
             nb::sig("def run(self, " RUN_TENSORS ", *, " NBYTES
                     ", stream: banyan.StreamLike = None) -> typing.Any"),
             "Run the plan. ``output`` None: in place, in the input. Return the output.\n\n"
             "On the host the call returns when this rank's part is done. On a GPU it queues the "
             "run in ``stream``, by default the current stream of the tensor's library.")
        .def("_run_at", run_at, "input"_a, "output"_a, "nbytes"_a, "code"_a, "bits"_a, "stream"_a)
        .def("start", start, "input"_a, "output"_a = nb::none(), nb::kw_only(),
             "nbytes"_a = nb::none(),
             nb::sig("def start(self, " RUN_TENSORS ", *, " NBYTES ") -> PlanRun"),
             "Start a run on a thread of its own, on the host.")
        .def("time", time_runs, "input"_a, "output"_a = nb::none(), nb::kw_only(), "runs"_a = 1,
             "nbytes"_a = nb::none(),
             nb::sig("def time(self, " RUN_TENSORS ", *, runs: int = 1, " NBYTES ") -> float"),
             "Return the seconds that ``runs`` consecutive runs take on this rank.")
        .def(
            "check",
            [](LoadedPlan &l) {
                require_open(l, "the loaded plan");
                drive_briefly(*l.world, [&] { return banyan_loaded_plan_status(l.handle); });
            },
            "Raise the error of runs that have ended on a GPU, if any. Local, does not wait.")
        .def(
            "wait",
            [](LoadedPlan &l) {
                require_open(l, "the loaded plan");
                drive(*l.world, [&] { return banyan_loaded_plan_wait(l.handle); });
            },
            "Wait until the runs that this rank queued have ended, and raise their error. Local.")
        .def(
            "reset",
            [](LoadedPlan &l) {
                require_open(l, "the loaded plan");
                drive(*l.world, [&] { return banyan_loaded_plan_reset(l.handle); });
            },
            "Return the plan to its state after the load, after a run on GPUs timed out.")
        .def_prop_ro(
            "plan", [](LoadedPlan &l) { return l.plan; }, "The plan.")
        .def(
            "close", [](LoadedPlan &l) { close_resource(l); }, "Unload the plan.");
}

void bind_execute(nb::module_ &m)
{
    bind_loaded(m);
    auto executor = nb::class_<Executor>(
        m, "Executor",
        "Runs plans between the ranks of a world on one node.\n\n"
        "Load a plan once, and run it many times. Methods are collective unless they say "
        "otherwise.");
    def_new(executor, open_executor,
            "world: World, *, device: banyan.DeviceLike = None, workers: int = 1, shuffle_seed: "
            "int = 0, timeout: float | None = None",
            "Open an executor. Collective.\n\n"
            "``workers``: threads that run thread blocks on the host. ``shuffle_seed``: for tests, "
            "run thread blocks in a random order that the memory model allows. ``timeout``: "
            "seconds that a wait of a run may last; None: the world's.",
            "world"_a, nb::kw_only(), "device"_a = nb::none(), "workers"_a = 1,
            "shuffle_seed"_a = 0, "timeout"_a = nb::none());
    def_closing(executor, "Executor");
    executor
        .def("load", load, "plan"_a, "max_message_bytes"_a, nb::kw_only(), "input"_a = nb::none(),
             "output"_a = nb::none(),
             nb::sig("def load(self, plan: Plan, max_message_bytes: int, *, input: Memory | None = "
                     "None, output: Memory | None = None) -> LoadedPlan"),
             "Load a plan for messages of at most ``max_message_bytes`` (``Plan.sizes``).\n\n"
             "``input``, ``output``: symmetric buffers that contain the input or output of every "
             "run, at the same offset on every rank. Peers access them in place.")
        .def(
            "begin_trace",
            [](Executor &e) {
                require_open(e, "the executor");
                drive(*e.world, [&] { return banyan_executor_trace_begin(e.handle); });
            },
            "Start to record the operations of this rank. Local.")
        .def(
            "write_trace",
            [](Executor &e, nb::handle path) {
                require_open(e, "the executor");
                std::string file = path_of(path);
                drive(*e.world,
                      [&] { return banyan_executor_trace_write(e.handle, file.c_str()); });
            },
            "path"_a, nb::sig("def write_trace(self, path: banyan.PathLike) -> None"),
            "Stop recording and write the records of all ranks, on rank 0, for Perfetto and "
            "``Plan.view``.")
        .def(
            "close", [](Executor &e) { close_resource(e); },
            "Close the executor and unload its plans.");
    m.def("_locate", locate, "address"_a);
    m.def("_run_once", run_once, "plan"_a, "world"_a, "input"_a, "output"_a = nb::none(),
          nb::kw_only(), "nbytes"_a = nb::none(), "workers"_a = 1, "stream"_a = nb::none());
}
