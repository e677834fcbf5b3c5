/* Copy services: batches of sends and receives of tensors. */
#include "banyan_reshard.h"

struct Schedule : Resource {
    banyan_copy_schedule *handle = nullptr;
    std::shared_ptr<CopyService> service;
    std::deque<Tensor> tensors;
    nb::object like; /* as the service's */

    bool is_open() const override { return handle != nullptr; }
    banyan_status close() override
    {
        banyan_copy_schedule_destroy(handle);
        handle = nullptr;
        return BANYAN_OK;
    }
    ~Schedule() override { close(); }
};

static std::shared_ptr<CopyService> open_service(std::shared_ptr<World> world,
                                                 std::optional<std::string> backend,
                                                 std::optional<std::string> transport,
                                                 size_t slot_bytes, bool optimal_rounds,
                                                 nb::object device, nb::object progress,
                                                 nb::object timeout)
{
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.transport = transport ? transport->c_str() : nullptr;
    options.slot_bytes = slot_bytes;
    options.optimal_rounds = optimal_rounds;
    options.device = device_of(device);
    options.timeout_ns = timeout_of(timeout);
    auto service = std::make_shared<CopyService>(progress);
    service->world = world;
    if (service->progress.is_wanted()) {
        options.context = service.get();
        options.progress = [](void *context, uint64_t done, uint64_t total) {
            ((CopyService *)context)->progress.report(done, total);
        };
    }
    drive(*world, [&] {
        return banyan_copy_service_open(world->handle, backend ? backend->c_str() : nullptr,
                                        &options, &service->handle);
    });
    return adopt(service);
}

/* Part and flags of an operation. */
struct Op {
    banyan_copy_op op = {};

    Op(uint32_t part, bool cast, nb::handle mxfp8)
    {
        op.part = part;
        op.flags = cast ? (uint32_t)BANYAN_COPY_OP_CAST : 0;
        if (mxfp8.is_none())
            return;
        std::string text = nb::cast<std::string>(mxfp8);
        op.flags |= BANYAN_COPY_OP_MXFP8;
        if (text == "scales" || text == "scales_ocp")
            op.flags |= BANYAN_COPY_OP_SCALES;
        else if (text != "elements" && text != "elements_ocp")
            throw nb::value_error("mxfp8 is \"elements\" or \"scales\", with \"_ocp\" for the OCP "
                                  "rule");
        if (text.size() > 4 && text.compare(text.size() - 4, 4, "_ocp") == 0)
            op.flags |= BANYAN_COPY_OP_OCP;
    }
};

static uint64_t task_id_of(nb::handle id)
{
    if (id.is_none())
        return BANYAN_TASK_ID_NONE;
    unsigned long long value = PyLong_AsUnsignedLongLong(id.ptr());
    if (value == (unsigned long long)-1 && PyErr_Occurred())
        throw nb::python_error();
    return value;
}

static banyan_status submit_op(CopyService &service, bool is_send, const banyan_copy_op *op)
{
    return is_send ? banyan_copy_service_submit_send_op(service.handle, op)
                   : banyan_copy_service_submit_recv_op(service.handle, op);
}

template <bool is_send>
static void submit(CopyService &service, nb::handle tensor, int rank, nb::handle task_id,
                   uint32_t part, bool cast, nb::handle mxfp8)
{
    require_open(service, "the copy service");
    Op op(part, cast, mxfp8);
    const Tensor &t = service.queued.emplace_back(tensor, "tensor", !is_send, true);
    op.op.tensor = t.t;
    op.op.peer = rank;
    try {
        op.op.task_id = task_id_of(task_id);
        drive_briefly(*service.world, [&] { return submit_op(service, is_send, &op.op); });
        service.like = nb::borrow(tensor);
    } catch (...) {
        service.queued.pop_back();
        throw;
    }
}

template <bool is_send>
static void submit_many(CopyService &service, nb::handle tensors, nb::handle ranks,
                        nb::handle task_ids)
{
    require_open(service, "the copy service");
    Items t(tensors), ids(task_ids);
    std::optional<Items> peers;
    int rank = 0;
    if (PyLong_Check(ranks.ptr()))
        rank = nb::cast<int>(ranks);
    else
        peers.emplace(ranks);
    if (ids.size() != t.size() || (peers && peers->size() != t.size()))
        throw nb::value_error((std::to_string(t.size()) + " tensors, " +
                               (peers ? std::to_string(peers->size()) + " ranks, " : "") +
                               std::to_string(ids.size()) + " task ids")
                                  .c_str());
    if (t.size() > 0)
        service.like = nb::borrow(t[0]);
    drive_briefly(*service.world, [&] {
        banyan_copy_op op = {};
        for (size_t i = 0; i < t.size(); i++) {
            op.peer = peers ? nb::cast<int>((*peers)[i]) : rank;
            op.task_id = task_id_of(ids[i]);
            op.tensor = service.queued.emplace_back(t[i], "tensors", !is_send, true).t;
            banyan_status status = submit_op(service, is_send, &op);
            if (status != BANYAN_OK)
                return status;
        }
        return BANYAN_OK;
    });
}

static void *stream_for(const CopyService &service, nb::handle stream, const nb::object &like)
{
    return stream_of(stream, like.is_valid() ? like : nb::none(),
                     banyan_copy_service_device(service.handle));
}

static void run_service(CopyService &service, nb::handle stream)
{
    require_open(service, "the copy service");
    void *s = stream_for(service, stream, service.like);
    service.like.reset();
    std::deque<Tensor> tensors;
    tensors.swap(service.queued); /* the queue is empty afterwards, even after an error */
    LateProgress::End end(service.progress);
    drive(*service.world, [&] { return banyan_copy_service_run(service.handle, s); });
    end.raise();
}

static std::shared_ptr<Schedule> prepare(std::shared_ptr<CopyService> service, bool keep)
{
    require_open(*service, "the copy service");
    auto schedule = std::make_shared<Schedule>();
    schedule->world = service->world;
    schedule->service = service;
    if (!keep && banyan_copy_service_device(service->handle).device_type == kDLCUDA)
        throw nb::value_error("keep=False: peers map the tensors of a GPU until the schedule is "
                              "closed, so they must be kept");
    schedule->tensors.swap(service->queued);
    schedule->like = std::move(service->like);
    drive(*service->world,
          [&] { return banyan_copy_service_prepare(service->handle, &schedule->handle); });
    if (!keep) {
        schedule->tensors.clear();
        schedule->like.reset();
    }
    return adopt(schedule);
}

static void run_schedule(Schedule &schedule, nb::handle stream)
{
    require_open(schedule, "the schedule");
    require_open(*schedule.service, "the copy service");
    void *s = stream_for(*schedule.service, stream, schedule.like);
    LateProgress::End end(schedule.service->progress);
    drive(*schedule.world, [&] { return banyan_copy_schedule_run(schedule.handle, s); });
    end.raise();
}

static std::vector<std::string> capabilities(const CopyService &service)
{
    require_open(service, "the copy service");
    static const std::pair<uint64_t, const char *> names[] = {
        {BANYAN_COPY_STRIDED, "strided"},
        {BANYAN_COPY_MATCH_BY_ORDER, "match_by_order"},
        {BANYAN_COPY_KEEPS_SCHEDULES, "keeps_schedules"},
        {BANYAN_COPY_CASTS, "casts"},
    };
    std::vector<std::string> list;
    for (auto &name : names)
        if (banyan_copy_service_capabilities(service.handle) & name.first)
            list.push_back(name.second);
    return list;
}

#define ONE                                                                                        \
    "rank: int, task_id: int | None = None, *, part: int = 0, cast: bool = False, mxfp8: "         \
    "typing.Literal['elements', 'scales', 'elements_ocp', 'scales_ocp'] | None = None) -> None"
#define MANY                                                                                       \
    "tensors: collections.abc.Iterable[banyan.TensorLike], ranks: int | "                          \
    "collections.abc.Iterable[int], task_ids: collections.abc.Iterable[int]) -> None"

void bind_copy(nb::module_ &m)
{
    auto schedule = nb::class_<Schedule>(
        m, "Schedule", "A batch of a copy service that is prepared once and run many times.");
    schedule.def("run", run_schedule, nb::kw_only(), "stream"_a = nb::none(),
                 nb::sig("def run(self, *, stream: banyan.StreamLike = None) -> None"),
                 "Move the batch. On a GPU, queue the moves in ``stream``. Collective.");
    def_close(schedule, "Free the schedule. Local.");

    auto service = nb::class_<CopyService>(
        m, "CopyService",
        "Sends and receives of tensors between the ranks of a world.\n\n"
        "Every rank submits its sends and receives; a send and its receive have the same task id. "
        "Then all ranks call ``run``, or ``prepare`` once and ``run`` of the schedule many times. "
        "Shapes may differ: elements move in row-major order. Tensors may have any strides. They "
        "are kept until the run has ended, or with the schedule.");
    def_new(service, open_service,
            "world: World, backend: str | None = None, *, transport: str | None = None, "
            "slot_bytes: int = 0, optimal_rounds: bool = False, device: banyan.DeviceLike = None, "
            PROGRESS ", timeout: float | None = None",
            "Open a service. Collective.\n\n"
            "``backend``: \"direct\", \"pipeline\", \"mpi\", or on a GPU \"nccl\"; None: "
            "BANYAN_COPY, else the default. ``slot_bytes``, ``optimal_rounds``: of the pipeline. "
            "``device``: of all tensors. ``progress``: True draws a bar on a terminal and in "
            "notebooks, if a run takes long; a function is called with the bytes that are done, and "
            "their total. Only \"direct\" and \"pipeline\" on the host report it.",
            "world"_a, "backend"_a = nb::none(), nb::kw_only(), "transport"_a = nb::none(),
            "slot_bytes"_a = 0, "optimal_rounds"_a = false, "device"_a = nb::none(),
            "progress"_a.none() = true, "timeout"_a = nb::none());
    service
        .def("submit_send", submit<true>, "tensor"_a, "rank"_a, "task_id"_a = nb::none(),
             nb::kw_only(), "part"_a = 0, "cast"_a = false, "mxfp8"_a = nb::none(),
             nb::sig("def submit_send(self, tensor: banyan.TensorLike, " ONE),
             "Queue the send of a tensor to ``rank``.\n\n"
             "``part`` numbers the tensors of one task. ``cast``: convert the elements to the "
             "receiver's type. ``mxfp8``: quantize them; \"elements\" or \"scales\" are sent. Both "
             "sides pass the same. Local.")
        .def("submit_recv", submit<false>, "tensor"_a, "rank"_a, "task_id"_a = nb::none(),
             nb::kw_only(), "part"_a = 0, "cast"_a = false, "mxfp8"_a = nb::none(),
             nb::sig("def submit_recv(self, tensor: banyan.TensorLike, " ONE),
             "Queue the receive of a tensor from ``rank``; see submit_send. Local.")
        .def("submit_sends", submit_many<true>, "tensors"_a, "ranks"_a, "task_ids"_a,
             nb::sig("def submit_sends(self, " MANY),
             "Queue many sends. ``ranks`` is one rank, or a list with one for each tensor. Local.")
        .def("submit_recvs", submit_many<false>, "tensors"_a, "ranks"_a, "task_ids"_a,
             nb::sig("def submit_recvs(self, " MANY), "Queue many receives. Local.")
        .def("run", run_service, nb::kw_only(), "stream"_a = nb::none(),
             nb::sig("def run(self, *, stream: banyan.StreamLike = None) -> None"),
             "Move everything that is queued, and wait for it. The queue is empty afterwards. "
             "Collective, also for ranks without operations.")
        .def("prepare", prepare, nb::kw_only(), "keep"_a = true,
             nb::sig("def prepare(self, *, keep: bool = True) -> Schedule"),
             "Make a schedule of everything that is queued. The queue is empty afterwards. "
             "``keep`` False: the schedule does not keep the tensors. In every run there must be "
             "tensors of these shapes at their addresses. On the host alone. Collective.")
        .def("check",
             [](CopyService &s) {
                 require_open(s, "the copy service");
                 drive_briefly(*s.world, [&] { return banyan_copy_service_check(s.handle); });
             },
             "Raise the error that ended a run on a GPU, if any. Local, does not wait.")
        .def_prop_ro("backend",
                     [](CopyService &s) {
                         require_open(s, "the copy service");
                         return banyan_copy_service_name(s.handle);
                     },
                     "Name of the backend.")
        .def_prop_ro("capabilities", capabilities,
                     "What the backend can do, of \"strided\", \"match_by_order\", "
                     "\"keeps_schedules\" and \"casts\".")
        .def_prop_ro("device",
                     [](CopyService &s) {
                         require_open(s, "the copy service");
                         return device_text(banyan_copy_service_device(s.handle));
                     },
                     "Device of the tensors.")
        .def_prop_ro("world", [](CopyService &s) { return s.world; }, "World of the ranks.");
    def_close(service, "Close the service. Its schedules can no longer run. Local.");
}
