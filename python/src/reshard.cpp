/* Reshards: sets of tensors, plans, runs, checks of cases. */
#include "banyan_reshard.h"

/* ---- tensor sets ---- */

static size_t index_of(const Tensors &set, nb::handle key)
{
    if (PyUnicode_Check(key.ptr())) {
        auto found = set.by_name.find(text_of(key, "name"));
        if (found == set.by_name.end())
            throw nb::key_error(text_of(key, "name"));
        return found->second;
    }
    Py_ssize_t i = PyNumber_AsSsize_t(key.ptr(), PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        throw nb::python_error();
    i += i < 0 ? (Py_ssize_t)set.names.size() : 0;
    if (i < 0 || (size_t)i >= set.names.size())
        throw nb::index_error("the set has fewer tensors");
    return (size_t)i;
}

static void set_names(Tensors &set, std::vector<std::string> names)
{
    set.names = std::move(names);
    for (size_t i = 0; i < set.names.size(); i++)
        set.by_name.emplace(set.names[i], i);
}

static std::vector<std::string> names_of(const banyan_layout *layout)
{
    std::vector<std::string> names(layout ? banyan_layout_tensor_count(layout) : 0);
    for (size_t i = 0; i < names.size(); i++)
        names[i] = banyan_layout_tensor(layout, i)->name;
    return names;
}

static bool is_mapping(nb::handle tensors)
{
    return PyDict_Check(tensors.ptr()) || nb::hasattr(tensors, "keys");
}

/* Return the objects of the names, in their order; no others may be there. */
static nb::list in_order(const std::vector<std::string> &names, nb::handle tensors)
{
    nb::list list;
    if (!is_mapping(tensors)) {
        Items items(tensors);
        if (items.size() != names.size())
            throw nb::value_error((std::to_string(items.size()) + " tensors for a layout of " +
                                   std::to_string(names.size()))
                                      .c_str());
        for (size_t i = 0; i < items.size(); i++)
            list.append(items[i]);
        return list;
    }
    for (const std::string &name : names) {
        nb::str key(name.c_str());
        PyObject *found = PyObject_GetItem(tensors.ptr(), key.ptr());
        if (!found && PyErr_ExceptionMatches(PyExc_KeyError)) {
            PyErr_Clear();
            throw nb::value_error(("tensors: the layout's \"" + name + "\" is missing").c_str());
        }
        if (!found)
            throw nb::python_error();
        list.append(nb::steal(found));
    }
    if (nb::len(tensors) == names.size())
        return list;
    nb::set known;
    for (const std::string &name : names)
        known.add(nb::str(name.c_str()));
    for (nb::handle key : nb::iter(tensors))
        if (!known.contains(key))
            throw nb::value_error(("tensors: the layout has no tensor \"" +
                                   nb::cast<std::string>(nb::str(key)) + "\"")
                                      .c_str());
    return list;
}

static std::shared_ptr<Tensors> make_tensors(const Layout &layout, nb::object tensors)
{
    layout.check();
    auto set = std::make_shared<Tensors>();
    set_names(*set, names_of(layout.handle));
    set->given = in_order(set->names, tensors);
    std::vector<DLTensor> views;
    Items items(set->given);
    views.reserve(items.size());
    for (size_t i = 0; i < items.size(); i++) {
        const Tensor &t = set->lent.emplace_back(items[i], set->names[i].c_str(), false, true);
        views.push_back(t.t);
        if (t.is_read_only() && set->read_only.empty())
            set->read_only = set->names[i];
    }
    check(banyan_tensors_create(layout.handle, views.data(), views.size(), &set->handle));
    return adopt(set);
}

/* Call an allocation, which is collective with a world. */
template <typename Call>
static std::shared_ptr<Tensors> alloc_with(std::shared_ptr<World> world,
                                           std::vector<std::string> names, Call &&call)
{
    auto set = std::make_shared<Tensors>();
    set_names(*set, std::move(names));
    set->world = world;
    if (world)
        drive(*world, [&] { return call(world->handle, &set->handle); });
    else
        work([&] { return call(nullptr, &set->handle); });
    return adopt(set);
}

static std::shared_ptr<Tensors> alloc_tensors(const Layout &layout, std::shared_ptr<World> world,
                                              nb::object device, bool swappable)
{
    layout.check();
    DLDevice on = device_of(device);
    if (swappable && world)
        throw nb::value_error("memory that can be swapped is not symmetric: pass no world");
    return alloc_with(world, names_of(layout.handle), [&](banyan_world *w, banyan_tensors **set) {
        return swappable ? banyan_tensors_alloc_swappable(layout.handle, on, set)
                         : banyan_tensors_alloc_on(layout.handle, w, on, set);
    });
}

static std::shared_ptr<Tensors> alloc_planned(ReshardPlan &plan, bool symmetric, nb::object device)
{
    require_open(plan, "the plan");
    DLDevice on = device_of(device);
    std::vector<std::string> names(banyan_reshard_plan_tensor_count(plan.handle));
    for (size_t i = 0; i < names.size(); i++)
        names[i] = banyan_reshard_plan_tensor(plan.handle, i)->name;
    return alloc_with(symmetric ? plan.world : nullptr, std::move(names),
                      [&](banyan_world *w, banyan_tensors **set) {
                          return banyan_tensors_alloc_planned_on(plan.handle, w, on, set);
                      });
}

static nb::object get_tensor(std::shared_ptr<Tensors> set, nb::handle key)
{
    require_open(*set, "the set of tensors");
    size_t i = index_of(*set, key);
    if (!set->lent.empty())
        return set->given[i];
    const DLTensor *t = banyan_tensors_get(set->handle, i);
    Array array{set,      (char *)t->data + t->byte_offset,   t->device,
                t->dtype, {t->shape, t->shape + t->ndim}, {}};
    if (t->strides)
        array.strides.assign(t->strides, t->strides + t->ndim);
    return nb::cast(array);
}

/* True if these are the tensors of the set, or other objects of the same memory and strides. */
static bool holds(Tensors &set, nb::handle tensors)
{
    nb::list list = in_order(set.names, tensors);
    for (size_t i = 0; i < set.lent.size(); i++) {
        Tensor now(list[i], set.names[i].c_str(), false);
        const DLTensor &a = now.t, &b = set.lent[i].t;
        size_t bytes = sizeof(int64_t) * (size_t)a.ndim;
        if (now.address() != set.lent[i].address() || a.ndim != b.ndim ||
            !banyan_dtype_equal(a.dtype, b.dtype) || memcmp(a.shape, b.shape, bytes) != 0 ||
            !a.strides != !b.strides || (a.strides && memcmp(a.strides, b.strides, bytes) != 0))
            return false;
    }
    return set.lent.size() == list.size();
}

static const char *state_of(const Tensors &set)
{
    require_open(set, "the set of tensors");
    static const char *const names[] = {"empty", "torn", "whole"};
    return names[banyan_tensors_get_state(set.handle)];
}

/* ---- plans ---- */

ReshardOptions::ReshardOptions(const nb::kwargs &given)
{
    for (auto [key, value] : given) {
        std::string name = nb::cast<std::string>(key);
        if (name == "min_split_bytes")
            options.min_split_bytes = nb::cast<uint64_t>(value);
        else if (name == "max_staging_bytes")
            options.max_staging_bytes = nb::cast<uint64_t>(value);
        else if (name == "checksums")
            options.checksums = nb::cast<bool>(value);
        else if (name == "require_whole_source")
            options.require_whole_source = nb::cast<bool>(value);
        else if (name == "each_rank_fetches")
            options.each_rank_fetches = nb::cast<bool>(value);
        else if (name == "timeout")
            options.timeout_ns = timeout_of(value);
        else if (name == "skip")
            skip.emplace(value);
        else if (name == "transform")
            transform = value.is_none() ? nullptr : nb::cast<std::shared_ptr<Transform>>(value);
        else
            throw nb::type_error(("there is no option " + name).c_str());
    }
    options.transform = transform ? transform->handle : nullptr;
    options.skip = skip ? skip->pointers.data() : nullptr;
    options.skip_count = skip ? skip->pointers.size() : 0;
}

static std::shared_ptr<ReshardPlan> make_plan(const Layout *source, const Layout *destination,
                                              std::shared_ptr<World> world, nb::kwargs kwargs)
{
    ReshardOptions options(kwargs);
    auto plan = std::make_shared<ReshardPlan>();
    plan->world = world;
    plan->transform = options.transform;
    drive(*world, [&] {
        return banyan_reshard_plan_create(handle_of(source), handle_of(destination), world->handle,
                                          &options.options, &plan->handle);
    });
    return adopt(plan);
}

struct Transfer {
    std::string name;
    banyan_transfer transfer;
};

template <typename Count, typename Get>
static std::vector<Transfer> transfers_of(const ReshardPlan &plan, Count count, Get get)
{
    require_open(plan, "the plan");
    std::vector<Transfer> transfers;
    transfers.reserve(count(plan.handle));
    for (size_t i = 0; i < count(plan.handle); i++) {
        const banyan_transfer *t = get(plan.handle, i);
        transfers.push_back({t->name, *t});
    }
    return transfers;
}

/* ---- runs ---- */

static banyan_tensors *handle_of(const std::shared_ptr<Tensors> &set)
{
    return set ? set->handle : nullptr;
}

/* Check the arguments of a run, and keep them with the plan. */
static void begin_run(ReshardPlan &plan, const std::shared_ptr<Tensors> &source,
                      const std::shared_ptr<Tensors> &destination,
                      const std::shared_ptr<CopyService> &service)
{
    require_open(plan, "the plan");
    require_open(*service, "the copy service");
    for (auto &set : {source, destination})
        if (set)
            require_open(*set, "the set of tensors");
    if (service->world != plan.world)
        throw nb::value_error("the copy service and the plan are of different worlds");
    if (destination && !destination->read_only.empty())
        throw nb::value_error(
            ("destination: the tensor \"" + destination->read_only + "\" is read-only").c_str());
    require_idle(*plan.world);
    if (plan.service != service) {
        /* A new service may lie where a closed one did, whose schedules the plan has. */
        banyan_reshard_plan_release(plan.handle);
        plan.service = service;
    }
    plan.source = source;
    plan.destination = destination;
}

static void execute(ReshardPlan &plan, std::shared_ptr<Tensors> source,
                    std::shared_ptr<Tensors> destination, std::shared_ptr<CopyService> service,
                    nb::handle stream)
{
    begin_run(plan, source, destination, service);
    nb::object tensor = nb::none();
    for (auto &set : {destination, source})
        if (set && nb::len(set->given) > 0 && tensor.is_none())
            tensor = set->given[0];
    void *s = stream_of(stream, tensor, banyan_copy_service_device(service->handle));
    auto source_use = in_use(source), destination_use = in_use(destination);
    LateProgress::End end(service->progress);
    drive(*plan.world, [&] {
        return banyan_reshard_execute(plan.handle, handle_of(source), handle_of(destination),
                                      service->handle, plan.world->handle,
                                      plan.transform ? plan.transform->handle : nullptr, s);
    });
    end.raise();
}

/* A started run. Until it is waited for, nothing else uses its world. */
struct Request : Resource {
    banyan_request *handle = nullptr;
    std::shared_ptr<ReshardPlan> plan;
    std::shared_ptr<Tensors> source, destination;
    std::shared_ptr<CopyService> service;
    std::shared_ptr<void> uses[2];

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

static std::shared_ptr<Request> start(std::shared_ptr<ReshardPlan> plan,
                                      std::shared_ptr<Tensors> source,
                                      std::shared_ptr<Tensors> destination,
                                      std::shared_ptr<CopyService> service)
{
    begin_run(*plan, source, destination, service);
    auto request = std::make_shared<Request>();
    request->world = plan->world;
    request->plan = plan;
    request->source = source;
    request->destination = destination;
    request->service = service;
    request->uses[0] = in_use(source);
    request->uses[1] = in_use(destination);
    drive(*plan->world, [&] {
        return banyan_reshard_start(plan->handle, handle_of(source), handle_of(destination),
                                    service->handle, plan->world->handle,
                                    plan->transform ? plan->transform->handle : nullptr,
                                    &request->handle);
    });
    plan->world->running = request.get();
    return adopt(request);
}

/* As close_resource, which refuses to use the world of a request. */
static void wait_request(std::shared_ptr<Request> request)
{
    if (!request->is_open())
        return;
    banyan_status status;
    LateProgress::End end(request->service->progress);
    {
        Drive driving(*request->world, true);
        status = request->close();
    }
    request->uses[0] = request->uses[1] = nullptr;
    auto &kept = request->world->kept;
    for (size_t i = kept.size(); i-- > 0;)
        if (kept[i] == request)
            kept.erase(kept.begin() + (ptrdiff_t)i);
    check(status);
    end.raise();
}

/* ---- checks of cases ---- */

struct CaseFinding {
    std::string rule;
    int rank;
    std::string message;
};

struct CaseReport {
    banyan_reshard_report *handle = nullptr;
    std::string name;
    CaseReport() = default;
    CaseReport(const CaseReport &) = delete;
    ~CaseReport() { banyan_reshard_report_destroy(handle); }

    std::string print(bool json) const
    {
        char *text;
        ::check(banyan_reshard_report_print(handle, name.c_str(), json, &text));
        std::string result = text;
        free(text);
        return result;
    }
};

static std::shared_ptr<CaseReport> check_case(const MegatronCase &megatron_case,
                                              uint64_t slot_bytes, int ranks_per_node,
                                              nb::kwargs kwargs)
{
    ReshardOptions options(kwargs);
    auto report = std::make_shared<CaseReport>();
    report->name = banyan_megatron_case_name(megatron_case.handle);
    work([&] {
        return banyan_reshard_case_check(megatron_case.handle, &options.options, ranks_per_node,
                                         slot_bytes, &report->handle);
    });
    return report;
}

static std::vector<CaseFinding> findings_of(const CaseReport &report)
{
    std::vector<CaseFinding> findings;
    for (size_t i = 0; i < banyan_reshard_report_count(report.handle); i++) {
        const banyan_reshard_finding *f = banyan_reshard_report_finding(report.handle, i);
        findings.push_back({banyan_reshard_rule_name(f->rule), f->rank, f->message});
    }
    return findings;
}

/* ---- binding ---- */

static void bind_tensors(nb::module_ &m)
{
    auto tensors = nb::class_<Tensors>(
        m, "Tensors",
        "The memory of a layout's local tensors: one side of a run.\n\n"
        "Tensors of any library are kept, not copied. A destination is \"torn\" while a run fills "
        "it and after a failure, and then \"whole\" with a version.");
    def_new(tensors, make_tensors,
            "layout: Layout, tensors: collections.abc.Mapping[str, banyan.TensorLike] | "
            "collections.abc.Sequence[banyan.TensorLike]",
            "Make a set of tensors: a mapping with the names of the layout's local tensors, or a "
            "sequence in their order. Local.",
            "layout"_a, "tensors"_a);
    tensors
        .def_static("alloc", alloc_tensors, "layout"_a, "world"_a = nb::none(), "device"_a = nb::none(),
                    nb::kw_only(), "swappable"_a = false,
                    nb::sig("def alloc(layout: Layout, world: World | None = None, device: "
                            "banyan.DeviceLike = None, *, swappable: bool = False) -> Tensors"),
                    "Allocate dense, zeroed tensors for a layout. With ``world`` the memory is "
                    "symmetric, so that peers access it in place, and the call is collective. "
                    "``swappable``: on a GPU, a ``Subscription`` can have a shadow of them.")
        .def("__getitem__", get_tensor, "key"_a,
             nb::sig("def __getitem__(self, key: str | int) -> typing.Any"),
             "Return a tensor by name or number: the object that was given, or an Array of the "
             "set's own memory.")
        .def("keys", [](const Tensors &t) { return t.names; }, "Return the names, as a list.")
        .def("__len__", [](const Tensors &t) { return t.names.size(); })
        .def("holds", holds, "tensors"_a,
             nb::sig("def holds(self, tensors: collections.abc.Mapping[str, banyan.TensorLike] | "
                     "collections.abc.Sequence[banyan.TensorLike]) -> bool"),
             "Return True if the set has these tensors, or others with the same memory, shapes and "
             "strides.")
        .def_prop_ro("state", state_of,
                     nb::sig("def state(self) -> typing.Literal['empty', 'torn', 'whole']"),
                     "\"empty\": no run has filled the set; \"torn\": a run is active or failed; "
                     "\"whole\".")
        .def_prop_ro("version",
                     [](const Tensors &t) {
                         require_open(t, "the set of tensors");
                         return banyan_tensors_version(t.handle);
                     },
                     "Version of the last run that succeeded; 0: none.");
    def_close(tensors, "Free the set, and its own memory. No run may use it. Local.");
}

#define SETS "source: Tensors | None, destination: Tensors | None, service: CopyService"

static void bind_plan_class(nb::module_ &m)
{
    nb::class_<Transfer>(m, "Transfer", "A box that one rank sends and another receives.")
        .def_ro("name", &Transfer::name, "Name of the global tensor.")
#define FIELD(python, expression, doc)                                                             \
    .def_prop_ro(python, [](const Transfer &t) { return expression; }, doc)
        // clang-format off
        FIELD("box", Box{t.transfer.box}, "Elements, in global coordinates.")
        FIELD("source_rank", t.transfer.source_rank, "Rank that sends.")
        FIELD("destination_rank", t.transfer.destination_rank, "Rank that receives.")
        FIELD("task_id", t.transfer.task_id, "Number of the transfer, equal at both ranks.")
        FIELD("stage", t.transfer.stage,
              "0: from the source. 1: inside a node, from another rank's destination.")
        FIELD("nbytes", t.transfer.bytes, "Bytes in the source's type.")
        FIELD("source_piece", t.transfer.source_piece,
              "Piece of this rank's source layout (stage 1: destination), if this rank sends.")
        FIELD("destination_piece", t.transfer.destination_piece,
              "Piece of this rank's destination layout, if this rank receives.")
        FIELD("source_dtype", dtype_text(t.transfer.source_dtype), "Type of the source.")
        FIELD("destination_dtype", dtype_text(t.transfer.destination_dtype),
              "Type of the destination.")
        FIELD("negative_exp", (t.transfer.value_map & BANYAN_PIECE_NEGATIVE_EXP) != 0,
              "The receiver computes -exp(x).")
    // clang-format on
#undef FIELD
        .def("__repr__", [](const Transfer &t) {
            return "banyan.Transfer(\"" + t.name + "\", " +
                   nb::cast<std::string>(nb::repr(nb::cast(Box{t.transfer.box}))) + ", " +
                   std::to_string(t.transfer.source_rank) + " -> " +
                   std::to_string(t.transfer.destination_rank) + ")";
        });

    auto request = nb::class_<Request>(m, "Request", nb::is_weak_referenceable(),
                                       "A run that was started. Until it is waited for, no other "
                                       "call of its world is possible.");
    request
        .def("wait", wait_request,
             "Wait until the run has ended, and raise its error. Ctrl-C ends the wait, and the "
             "world. Does nothing after the first time.")
        .def("test",
             [](const Request &r) {
                 bool done = true;
                 if (r.is_open())
                     check(banyan_request_test(r.handle, &done));
                 return done;
             },
             "Return True if the run has ended, and raise its error. Does not wait.")
        .def("__enter__", [](nb::object self) { return self; },
             nb::sig("def __enter__(self) -> Request"))
        .def("__exit__", [](std::shared_ptr<Request> r, nb::args) { wait_request(r); },
             nb::sig("def __exit__(self, *args: object) -> None"));

    auto plan = nb::class_<ReshardPlan>(
        m, "ReshardPlan", nb::is_weak_referenceable(),
        "The transfers of this rank from the source layouts of all ranks to their destination "
        "layouts.\n\nPlan once, and run many times.");
    def_new(plan, make_plan,
            "source: Layout | None, destination: Layout | None, world: World, *, " RUN_OPTIONS,
            "Plan. None for a side on which this rank holds nothing. Collective; options are equal "
            "on all ranks.\n\n"
            "``min_split_bytes``: smallest share of a box that replicas split; 0: 256 KiB. "
            "``require_whole_source``: every source element must arrive somewhere, except tensors "
            "that match a pattern of ``skip``. ``transform``: allows types to differ. "
            "``max_staging_bytes``: limit of the memory that runs stage in; 0: none. "
            "``checksums``: verify every transfer. ``each_rank_fetches``: let each rank fetch all of "
            "its data over the network, even if several ranks of its node need it. ``timeout``: "
            "seconds, of planning and of runs.",
            "source"_a.none(), "destination"_a.none(), "world"_a, "options"_a);
    plan.def("execute", execute, "source"_a.none(), "destination"_a.none(), "service"_a,
             nb::kw_only(), "stream"_a = nb::none(),
             nb::sig("def execute(self, " SETS ", *, stream: banyan.StreamLike = None) -> None"),
             "Fill the destination from the source. None for a side on which this rank holds "
             "nothing. On a GPU, queue the transfers in ``stream``. The first run with these sets "
             "and this service prepares; the plan keeps them. Collective.")
        .def("start", start, "source"_a.none(), "destination"_a.none(), "service"_a,
             nb::sig("def start(self, " SETS ") -> Request"),
             "Start a run on the host, on a thread of its own. Collective.")
        .def("prove",
             [](const ReshardPlan &p) {
                 require_open(p, "the plan");
                 drive(*p.world, [&] { return banyan_reshard_plan_prove(p.handle); });
             },
             "Prove this rank's part: all that it sends it holds, and every element of its "
             "destination is received exactly once. Local.")
        .def("release",
             [](ReshardPlan &p) {
                 require_open(p, "the plan");
                 drive_briefly(*p.world, [&] {
                     banyan_reshard_plan_release(p.handle);
                     return BANYAN_OK;
                 });
                 p.service = nullptr;
                 p.source = p.destination = nullptr;
             },
             "Free the schedules, the staging memory and the tensors that earlier runs kept. "
             "Local.")
        .def("alloc", alloc_planned, nb::kw_only(), "symmetric"_a = true, "device"_a = nb::none(),
             nb::sig("def alloc(self, *, symmetric: bool = True, device: banyan.DeviceLike = None) "
                     "-> Tensors"),
             "Allocate the destination's tensors, as Tensors.alloc. Symmetric memory is "
             "collective. Persistent buffers have the source's type.")
        .def_prop_ro("sends",
                     [](const ReshardPlan &p) {
                         return transfers_of(p, banyan_reshard_plan_send_count,
                                             banyan_reshard_plan_send);
                     },
                     "Transfers to other ranks, as a new list.")
        .def_prop_ro("recvs",
                     [](const ReshardPlan &p) {
                         return transfers_of(p, banyan_reshard_plan_recv_count,
                                             banyan_reshard_plan_recv);
                     },
                     "Transfers to this rank, including copies from itself, as a new list.")
        .def_prop_ro("tensors",
                     [](const ReshardPlan &p) {
                         require_open(p, "the plan");
                         std::vector<LocalTensor> tensors;
                         for (size_t i = 0; i < banyan_reshard_plan_tensor_count(p.handle); i++)
                             tensors.emplace_back(*banyan_reshard_plan_tensor(p.handle, i));
                         return tensors;
                     },
                     "Local tensors of the destination as runs need them, as a new list.")
        .def_prop_ro("world", [](const ReshardPlan &p) { return p.world; }, "World of the ranks.");
    def_close(plan, "Destroy the plan, with what its runs kept. Local.");
}

void bind_reshard(nb::module_ &m)
{
    bind_tensors(m);
    bind_plan_class(m);
    nb::class_<CaseFinding>(m, "CaseFinding", "Violation of a rule by the plans of a case.")
        .def_ro("rule", &CaseFinding::rule, "Rule that is violated, for example \"unwritten\".")
        .def_ro("rank", &CaseFinding::rank, "Rank at which it is violated.")
        .def_ro("message", &CaseFinding::message, "Message with tensor, box and ranks.")
        .def("__repr__", [](const CaseFinding &f) {
            return "banyan.CaseFinding(\"" + f.rule + "\", " + std::to_string(f.rank) + ", \"" +
                   f.message + "\")";
        });
    nb::class_<CaseReport>(m, "CaseReport", "Findings of check_case. Its text is for people.")
        .def_prop_ro("findings", findings_of, "Findings, as a new list; at most 100 of each rule.")
        .def("json", [](const CaseReport &r) { return r.print(true); },
             "Return the findings as one JSON object.")
        .def("__str__", [](const CaseReport &r) { return r.print(false); });
    m.def("check_case", check_case, "megatron_case"_a, "slot_bytes"_a = 0,
          "ranks_per_node"_a = 0, "options"_a,
          nb::sig("def check_case(megatron_case: MegatronCase, slot_bytes: int = 0, "
                  "ranks_per_node: int = 0, *, " PLAN_OPTIONS ") -> CaseReport"),
          "Check the transfers of a case, and Banyan's plan of its layouts, by the rules of "
          "exactly-once delivery. ``slot_bytes``: of the copy pipeline; 0: 512 KiB. "
          "``ranks_per_node``: plan for nodes of so many ranks; 0: one node.");
}
