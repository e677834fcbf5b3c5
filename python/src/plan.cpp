/* Plans and built-in algorithms. */
#include "banyan_plan.h"

struct Link {
    int source, destination;
    uint64_t nbytes;
};

struct Stats {
    uint64_t input_bytes, output_bytes, scratch_bytes, local_bytes, signals, critical_hops;
    std::vector<Link> links;
};

struct Result {
    uint64_t offset, nbytes;
    std::vector<std::pair<int, uint64_t>> sources;
};

static const char *const reductions[] = {"sum", "min", "max", "prod"};

static std::shared_ptr<Plan> read_plan(nb::handle path)
{
    std::string file = path_of(path);
    banyan_plan *plan = nullptr;
    work([&] { return banyan_plan_read(file.c_str(), &plan); });
    return std::make_shared<Plan>(plan);
}

static std::shared_ptr<Plan> parse_plan(nb::handle text, const std::string &name)
{
    nb::object bytes =
        nb::isinstance<nb::str>(text) ? nb::borrow(text).attr("encode")() : nb::borrow(text);
    nb::bytes json = nb::cast<nb::bytes>(bytes);
    banyan_plan *plan = nullptr;
    work([&] { return banyan_plan_parse(json.c_str(), json.size(), name.c_str(), &plan); });
    return std::make_shared<Plan>(plan);
}

static nb::str json_of(const Plan &plan)
{
    char *text = nullptr;
    work([&] { return banyan_plan_print(plan.handle, &text, nullptr); });
    return take_text(text);
}

static nb::dict tags_of(const Plan &plan)
{
    nb::dict tags;
    for (size_t i = 0; const char *key = banyan_plan_tag_key(plan.handle, i); i++)
        tags[key] = banyan_plan_tag(plan.handle, key);
    return tags;
}

static nb::str list_plan(const Plan &plan, std::optional<int> rank)
{
    char *text = nullptr;
    check(banyan_plan_list(plan.handle, rank.value_or(-1), &text));
    return take_text(text);
}

static nb::object diff_plans(const Plan &a, const Plan &b, std::optional<size_t> most)
{
    char *text = nullptr;
    size_t differences;
    work([&] {
        return banyan_plan_diff(a.handle, b.handle, most.value_or(SIZE_MAX), &text, &differences);
    });
    return take_text(text).attr("splitlines")();
}

static std::pair<const char *, std::vector<Result>> expected_of(const Plan &plan, int rank,
                                                                uint64_t nbytes)
{
    banyan_plan_result *parts = nullptr;
    size_t count = 0;
    banyan_reduce_op op = BANYAN_SUM;
    work([&] { return banyan_plan_expected(plan.handle, rank, nbytes, &parts, &count, &op); });
    std::vector<Result> results;
    for (size_t i = 0; i < count; i++) {
        Result result{parts[i].offset, parts[i].bytes, {}};
        for (size_t s = 0; s < parts[i].source_count; s++)
            result.sources.emplace_back(parts[i].sources[s].rank, parts[i].sources[s].offset);
        results.push_back(std::move(result));
    }
    free(parts);
    return {reductions[op], std::move(results)};
}

static Stats stats_of(const Plan &plan, uint64_t nbytes)
{
    banyan_plan_stats s = {};
    work([&] { return banyan_plan_measure(plan.handle, nbytes, &s); });
    Stats stats{s.input_bytes,
                s.output_bytes,
                s.scratch_bytes,
                s.local_bytes,
                s.signals,
                s.critical_hops,
                {}};
    for (size_t i = 0; i < s.link_count; i++)
        stats.links.push_back({s.links[i].source, s.links[i].destination, s.links[i].bytes});
    free(s.links);
    return stats;
}

/* ---- algorithms ---- */

banyan_collective_kind collective_of(const std::string &name)
{
    std::string joined; /* "all_reduce" is the format's "allreduce" */
    for (char c : name)
        if (c != '_')
            joined += c;
    banyan_collective_kind kind;
    check(banyan_collective_kind_parse(joined.c_str(), &kind));
    return kind;
}

static std::vector<banyan_algorithm_info> algorithms()
{
    std::vector<banyan_algorithm_info> all;
    for (banyan_algorithm_info info; banyan_algorithm_at(all.size(), &info) == BANYAN_OK;)
        all.push_back(info);
    return all;
}

static std::shared_ptr<Plan> compile_algorithm(const std::string &name, int ranks,
                                               int ranks_per_node, bool in_place, nb::handle op,
                                               int root, int shift, int instances,
                                               uint64_t unit_bytes)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = ranks;
    params.ranks_per_node = ranks_per_node;
    params.in_place = in_place;
    params.op = reduce_op_of(op);
    params.root = root;
    params.shift = shift;
    params.instances = instances;
    params.unit_bytes = unit_bytes;
    banyan_plan *plan = nullptr;
    work([&] { return banyan_algorithm_compile(name.c_str(), &params, &plan); });
    return std::make_shared<Plan>(plan);
}

static std::pair<int, uint64_t> tuned_parameters(const std::string &name, int ranks,
                                                 uint64_t nbytes, nb::handle dtype,
                                                 nb::handle device, nb::handle tuning)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = ranks;
    std::string path = tuning.is_none() ? "" : path_of(tuning);
    check(banyan_algorithm_tuned(name.c_str(), tuning.is_none() ? nullptr : path.c_str(),
                                 device_of(device), dtype_of(dtype), nbytes, &params));
    return {params.instances, params.unit_bytes};
}

static void bind_algorithms(nb::module_ &m)
{
    nb::class_<banyan_algorithm_info>(m, "Algorithm", "A built-in algorithm.")
        .def_prop_ro(
            "name", [](const banyan_algorithm_info &a) { return a.name; },
            "For example \"allreduce_ring\".")
        .def_prop_ro(
            "collective",
            [](const banyan_algorithm_info &a) {
                return banyan_collective_kind_name(a.collective);
            },
            "Collective that it implements, for example \"allreduce\".")
        .def_prop_ro(
            "about", [](const banyan_algorithm_info &a) { return a.about; }, "One sentence.")
        .def_prop_ro(
            "reaches_peers_buffers",
            [](const banyan_algorithm_info &a) { return a.reaches_peers_buffers; },
            "True if it accesses buffers of peers: ordinary memory is staged then.")
        .def("__repr__", [](const banyan_algorithm_info &a) {
            return "banyan.Algorithm(\"" + std::string(a.name) + "\")";
        });
    m.def("algorithms", algorithms, nb::sig("def algorithms() -> list[Algorithm]"),
          "List the built-in algorithms.");
    m.def("compile_algorithm", compile_algorithm, "name"_a, "ranks"_a, nb::kw_only(),
          "ranks_per_node"_a = 0, "in_place"_a = false, "op"_a = "sum", "root"_a = 0, "shift"_a = 1,
          "instances"_a = 0, "unit_bytes"_a = 0,
          nb::sig("def compile_algorithm(name: str, ranks: int, *, ranks_per_node: int = 0, "
                  "in_place: bool = False, op: banyan.ReduceOp = 'sum', root: int = 0, shift: int "
                  "= 1, instances: int = 0, unit_bytes: int = 0) -> Plan"),
          "Compile a built-in algorithm. Local.\n\n"
          "``ranks_per_node`` 0: all ranks are on one node. ``op``: of a collective that reduces. "
          "``root``: of broadcast and reduce. ``shift``: send-recv to rank + shift. ``instances`` "
          "and ``unit_bytes`` (of pipelined loops) 0: the algorithm's defaults.");
    m.def("tuned_parameters", tuned_parameters, "name"_a, "ranks"_a, "nbytes"_a, nb::kw_only(),
          "dtype"_a = "float32", "device"_a = nb::none(), "tuning"_a = nb::none(),
          nb::sig("def tuned_parameters(name: str, ranks: int, nbytes: int, *, dtype: "
                  "banyan.DTypeLike = 'float32', device: banyan.DeviceLike = None, tuning: "
                  "banyan.PathLike | None = None) -> tuple[int, int]"),
          "Return the ``instances`` and ``unit_bytes`` that the tuning table has for an algorithm "
          "and messages of ``nbytes`` (a rank's input). 0: the algorithm's default. Local.\n\n"
          "``tuning``: a table that comes before the built-in one; None: BANYAN_TUNING.");
}

static std::shared_ptr<Plan> adapt_plan(const Plan &plan, const std::string &executor)
{
    banyan_plan_executor wanted;
    banyan_plan *adapted;
    check(banyan_plan_executor_parse(executor.c_str(), &wanted));
    work([&] { return banyan_plan_adapt(plan.handle, wanted, &adapted); });
    return std::make_shared<Plan>(adapted);
}

/* ---- the class ---- */

template <typename Value>
static void def_info(nb::class_<Plan> &plan, const char *name, Value banyan_plan_info::*member,
                     const char *doc)
{
    plan.def_prop_ro(
        name, [member](const Plan &p) { return banyan_plan_describe(p.handle).*member; }, doc);
}

static void def_infos(nb::class_<Plan> &plan)
{
    def_info(plan, "name", &banyan_plan_info::name, "Name of the plan.");
    def_info(plan, "collective", &banyan_plan_info::collective_name,
             "Collective that it implements, for example \"allreduce\"; a custom one has a name of "
             "its own.");
    def_info(plan, "ranks", &banyan_plan_info::ranks, "Number of ranks.");
    def_info(plan, "root", &banyan_plan_info::root, "Root of broadcast and reduce.");
    def_info(plan, "shift", &banyan_plan_info::shift, "Shift of send-recv.");
    def_info(plan, "in_place", &banyan_plan_info::in_place, "Input and output share memory.");
    def_info(plan, "reuse_resources", &banyan_plan_info::reuse_resources,
             "Scratch has a fixed size, whatever the message.");
    def_info(plan, "double_scratch", &banyan_plan_info::double_scratch,
             "Consecutive runs alternate between two halves of scratch.");
    def_info(plan, "threads_per_block", &banyan_plan_info::threads_per_block,
             "Threads of a thread block on a GPU.");
    def_info(plan, "buffer_alignment", &banyan_plan_info::buffer_alignment,
             "Bytes that chunks are aligned to.");
    def_info(plan, "min_message_bytes", &banyan_plan_info::min_message_bytes,
             "Smallest message that the plan is meant for: bytes of a rank's input, but of the "
             "output for all-gather.");
    def_info(plan, "max_message_bytes", &banyan_plan_info::max_message_bytes,
             "Largest message that the plan is meant for.");
    def_info(plan, "message_parts", &banyan_plan_info::message_parts,
             "A message is a multiple of this many elements. 0: the plan has no buffers.");
    def_info(plan, "operations", &banyan_plan_info::operations,
             "Operations of all ranks; one inside a loop counts once.");
    def_info(plan, "thread_blocks", &banyan_plan_info::thread_blocks,
             "Thread blocks of a rank: the maximum over the ranks.");
    plan.def_prop_ro(
        "executor",
        [](const Plan &p) {
            return banyan_plan_executor_name(banyan_plan_describe(p.handle).executor);
        },
        "Executor that the file is written for: \"banyan\" or \"mscclpp\".");
    plan.def_prop_ro(
        "protocol",
        [](const Plan &p) {
            return banyan_plan_describe(p.handle).protocol == BANYAN_LL ? "LL" : "Simple";
        },
        "\"Simple\", or \"LL\" for packets.");
}

static void bind_records(nb::module_ &m)
{
    nb::class_<Link>(m, "PlanLink", "Traffic from one rank to another.")
        .def_ro("source", &Link::source, "Rank.")
        .def_ro("destination", &Link::destination, "Rank.")
        .def_ro("nbytes", &Link::nbytes, "Bytes; packets count with their flags.");
    nb::class_<Stats>(m, "PlanStats", "Traffic of a run.")
        .def_ro("input_bytes", &Stats::input_bytes, "Of a rank: maximum over the ranks.")
        .def_ro("output_bytes", &Stats::output_bytes, "Of a rank: maximum over the ranks.")
        .def_ro("scratch_bytes", &Stats::scratch_bytes, "Of a rank: maximum over the ranks.")
        .def_ro("local_bytes", &Stats::local_bytes,
                "Bytes that ranks write to their own buffers, in all.")
        .def_ro("signals", &Stats::signals, "Signals of all ranks.")
        .def_ro("critical_hops", &Stats::critical_hops,
                "Messages between ranks on the longest chain. 0 also if it is unknown.")
        .def_ro("links", &Stats::links, "By source, then destination; only those with traffic.");
    nb::class_<Result>(m, "ExpectedPart", "A part of an output and its contents.")
        .def_ro("offset", &Result::offset, "First byte in the output.")
        .def_ro("nbytes", &Result::nbytes, "Its length.")
        .def_ro("sources", &Result::sources,
                "Rank and byte offset of the inputs that are reduced, or copied if there is one.");
}

#define VIEW_OPTIONS                                                                               \
    "topology: Topology | banyan.PathLike | None = None, nbytes: int = 1048576, trace: "           \
    "banyan.PathLike | None = None, check: bool = False, ranks: str | None = None, part: str | "   \
    "None = None, width: float | None = None"

void bind_plan(nb::module_ &m)
{
    bind_records(m);
    auto plan = nb::class_<Plan>(
        m, "Plan",
        "A collective algorithm, compiled: the operations of every rank. It does not change.\n\n"
        "Plans come from files (``Plan.read``), from programs of ``banyan.language`` and from "
        "``compile_algorithm``. Methods are local, and any thread may call them, except ``run``. "
        "``nbytes`` is the size of a rank's input.");
    plan.def_static("read", read_plan, "path"_a, nb::sig("def read(path: banyan.PathLike) -> Plan"),
                    "Read a plan from a file in MSCCL++'s execution-plan JSON.")
        .def_static("parse", parse_plan, "text"_a, "name"_a = "plan",
                    nb::sig("def parse(text: str | bytes, name: str = 'plan') -> Plan"),
                    "Parse a plan from JSON text. Errors call the text ``name``.")
        .def(
            "write",
            [](const Plan &p, nb::handle path) {
                std::string file = path_of(path);
                work([&] { return banyan_plan_write(p.handle, file.c_str()); });
            },
            "path"_a, nb::sig("def write(self, path: banyan.PathLike) -> None"),
            "Write the plan to a file, which appears when it is complete.")
        .def("json", json_of, nb::sig("def json(self) -> str"), "Return the plan as JSON text.");
    def_infos(plan);
    plan.def_prop_ro("tags", tags_of, nb::sig("def tags(self) -> dict[str, str]"),
                     "Texts that the author gave the plan.")
        .def(
            "sizes",
            [](const Plan &p, int rank, uint64_t nbytes) {
                uint64_t input, output;
                check(banyan_plan_sizes(p.handle, rank, nbytes, &input, &output));
                return std::make_pair(input, output);
            },
            "rank"_a, "nbytes"_a,
            "Return the bytes of a rank's input and output for a message of ``nbytes``.")
        .def("expected", expected_of, "rank"_a, "nbytes"_a,
             nb::sig("def expected(self, rank: int, nbytes: int) -> tuple[banyan.ReduceOp, "
                     "list[ExpectedPart]]"),
             "Return the reduction and the contents that a rank's output has after a run. Parts "
             "of the output that are not listed are not defined.")
        .def("adapt", adapt_plan, "executor"_a, nb::sig("def adapt(self, executor: str) -> Plan"),
             "Return a plan that does on ``executor`` (\"mscclpp\") what this one does here. Prove "
             "it with ``check(executor=...)``. Raises ``Unsupported`` with the operation and the "
             "reason if the executor cannot do it.")
        .def("listing", list_plan, "rank"_a = nb::none(),
             nb::sig("def listing(self, rank: int | None = None) -> str"),
             "Return a listing of the operations for people, of one rank or of all.")
        .def("diff", diff_plans, "other"_a, "most"_a = nb::none(),
             nb::sig("def diff(self, other: Plan, most: int | None = None) -> list[str]"),
             "Return a line for each difference from another plan, at most ``most``. The list is "
             "empty if the plans are equal.")
        .def("stats", stats_of, "nbytes"_a, "Count the traffic of a run.")
        .def(
            "view",
            [](nb::object self, nb::kwargs options) {
                return nb::module_::import_("banyan._view").attr("view")(self, **options);
            },
            "options"_a, nb::sig("def view(self, *, " VIEW_OPTIONS ") -> banyan.View"),
            "Draw the plan: a page (``html()``) and a figure (``svg()``), which notebooks show.\n\n"
            "``topology``: draw to time, as simulated for ``nbytes``. ``trace``: draw to time, "
            "from the last run of a trace file. Without both, an operation takes one step. "
            "``check``: mark the findings. Of the figure: ``ranks`` such as \"0,1\" or \"0:3\", "
            "``part`` of the time in percent, \"0:25\", and ``width`` in points.")
        .def(
            "test",
            [](nb::object self, nb::kwargs options) {
                return nb::module_::import_("banyan._command").attr("test")(self, **options);
            },
            "options"_a,
            nb::sig("def test(self, *, nbytes: int | tuple[int, int] = (1024, 67108864), dtype: "
                    "str = 'f32', gpu: bool = False, workers: int = 1, symmetric: bool = True, "
                    "shuffle: int | None = None, trace: banyan.PathLike | None = None) -> "
                    "dict[str, typing.Any]"),
            "Run the plan between new processes of this machine, one for each rank; check every "
            "element of every output, and time it, as ``banyan run`` does. Return its report.\n\n"
            "``nbytes``: one size of the longer of input and output, or the lowest and highest. "
            "``shuffle``: the seed of a random order that the memory model allows.")
        .def(
            "_repr_html_",
            [](nb::object self) { return self.attr("view")().attr("_repr_html_")(); },
            nb::sig("def _repr_html_(self) -> str"), "Draw the plan in a notebook.")
        .def("__repr__", [](const Plan &p) {
            banyan_plan_info info = banyan_plan_describe(p.handle);
            return "banyan.Plan(name=\"" + std::string(info.name) + "\", collective=\"" +
                   info.collective_name + "\", ranks=" + std::to_string(info.ranks) +
                   ", operations=" + std::to_string(info.operations) + ")";
        });
    bind_check(m);
    bind_simulate(m);
    def_check(plan);
    def_simulate(plan);
    plan.def(
        "run",
        [](nb::object self, nb::args args, nb::kwargs options) {
            return nb::module_::import_("banyan._core").attr("_run_once")(self, *args, **options);
        },
        "args"_a, "options"_a,
        nb::sig("def run(self, world: World, input: banyan.TensorLike, output: "
                "banyan.TensorLike | None = None, *, nbytes: int | None = None, workers: int = "
                "1, stream: banyan.StreamLike = None) -> typing.Any"),
        "Load the plan, run it once and unload it. Collective. For many runs, load it once "
        "(``Executor.load``).\n\n"
        "``output`` None: in place. Return the output.");
    bind_algorithms(m);
}
