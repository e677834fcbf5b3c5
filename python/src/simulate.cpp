/* Topologies and simulations. */
#include "banyan_plan.h"

static std::shared_ptr<Topology> read_topology(nb::handle path)
{
    std::string file = path_of(path);
    banyan_topology *topology = nullptr;
    work([&] { return banyan_topology_read(file.c_str(), &topology); });
    return std::make_shared<Topology>(topology);
}

static std::shared_ptr<Topology> parse_topology(const std::string &text, const std::string &name)
{
    banyan_topology *topology = nullptr;
    check(banyan_topology_parse(text.data(), text.size(), name.c_str(), &topology));
    return std::make_shared<Topology>(topology);
}

std::shared_ptr<Topology> topology_of(nb::handle topology)
{
    if (nb::isinstance<Topology>(topology))
        return nb::cast<std::shared_ptr<Topology>>(topology);
    return read_topology(topology);
}

static std::shared_ptr<Simulation> simulate(std::shared_ptr<Plan> plan, nb::handle topology,
                                            uint64_t nbytes, nb::handle dtype, bool steps,
                                            uint64_t max_steps)
{
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    options.message_bytes = nbytes;
    options.elem_bytes = banyan_dtype_bytes(dtype_of(dtype));
    options.steps = steps;
    options.max_steps = max_steps;
    auto simulation = std::make_shared<Simulation>();
    simulation->plan = plan;
    simulation->topology = topology_of(topology);
    simulation->ranks = banyan_plan_describe(plan->handle).ranks;
    work([&] {
        return banyan_plan_simulate(plan->handle, simulation->topology->handle, &options,
                                    &simulation->handle);
    });
    return simulation;
}

void def_simulate(nb::class_<Plan> &plan)
{
    plan.def("simulate", simulate, "topology"_a, "nbytes"_a = 1 << 20, nb::kw_only(),
             "dtype"_a = "float32", "steps"_a = true, "max_steps"_a = uint64_t(1) << 25,
             nb::sig("def simulate(self, topology: Topology | banyan.PathLike, nbytes: int = "
                     "1048576, *, dtype: banyan.DTypeLike = 'float32', steps: bool = True, "
                     "max_steps: int = 33554432) -> Simulation"),
             "Predict the time of a run on a machine, with rank i on processor i.\n\n"
             "``topology``: a Topology, a file, or a shipped name such as \"h200x4\". ``steps``: "
             "record every operation, for the critical path and traces. ``max_steps``: of the "
             "plan's loops.");
}

/* A move as Python gives it, a dict with the members of banyan_move. */
static banyan_move move_of(nb::handle given, std::vector<std::string> &names)
{
    nb::dict fields = nb::cast<nb::dict>(given);
    auto get = [&](const char *name, nb::object otherwise) {
        return fields.contains(name) ? nb::object(fields[name]) : otherwise;
    };
    banyan_move move = {};
    move.rank = nb::cast<int>(get("rank", nb::none()));
    move.peer = nb::cast<int>(get("peer", nb::none()));
    move.lane = nb::cast<int>(get("lane", nb::int_(0)));
    std::string by = nb::cast<std::string>(get("by", nb::str("blocks")));
    if (by != "blocks" && by != "proxy")
        throw nb::value_error(("by: \"blocks\" or \"proxy\", not \"" + by + "\"").c_str());
    move.by = by == "proxy" ? BANYAN_MOVE_BY_PROXY : BANYAN_MOVE_BY_BLOCKS;
    names.push_back(nb::cast<std::string>(get("what", nb::str("move"))));
    move.what = names.back().c_str();
    move.bytes = nb::cast<uint64_t>(get("nbytes", nb::int_(0)));
    move.after[0] = move.after[1] = BANYAN_NO_MOVE;
    auto after = nb::cast<std::vector<size_t>>(get("after", nb::list()));
    if (after.size() > 2)
        throw nb::value_error("after: a move waits for at most two moves");
    std::copy(after.begin(), after.end(), move.after);
    return move;
}

static std::shared_ptr<Simulation> simulate_moves(nb::handle topology, nb::handle given, int ranks,
                                                  bool steps, double grain)
{
    auto simulation = std::make_shared<Simulation>();
    nb::list list(given);
    simulation->names.reserve(list.size());
    std::vector<banyan_move> moves;
    for (nb::handle move : list)
        moves.push_back(move_of(move, simulation->names));
    banyan_moves_options options = BANYAN_MOVES_OPTIONS_INIT;
    options.steps = steps;
    options.grain = grain;
    simulation->topology = topology_of(topology);
    simulation->ranks = ranks;
    work([&] {
        return banyan_moves_simulate(moves.data(), moves.size(), ranks,
                                     simulation->topology->handle, &options, &simulation->handle);
    });
    return simulation;
}

/* Records with strings that live as long as their owner. */
struct Use : banyan_link_use {
    std::shared_ptr<Topology> owner;
};

struct Step : banyan_simulation_step {
    std::shared_ptr<Simulation> owner;
};

static std::vector<Use> links_of(const Simulation &s)
{
    std::vector<Use> links;
    for (banyan_link_use use; banyan_simulation_link(s.handle, links.size(), &use);)
        links.push_back({use, s.topology});
    return links;
}

static std::vector<Step> steps_of(std::shared_ptr<Simulation> s,
                                  bool (*next)(const banyan_simulation *, size_t,
                                               banyan_simulation_step *))
{
    std::vector<Step> steps;
    for (banyan_simulation_step step; next(s->handle, steps.size(), &step);)
        steps.push_back({step, s});
    return steps;
}

static void bind_topology(nb::module_ &m)
{
    auto info = [](auto member) {
        return [member](const Topology &t) { return banyan_topology_describe(t.handle).*member; };
    };
    nb::class_<Topology>(m, "Topology",
                         "A machine: processors, switches, and links between them. It does not "
                         "change.")
        .def_static("read", read_topology, "path_or_name"_a,
                    nb::sig("def read(path_or_name: banyan.PathLike) -> Topology"),
                    "Read a topology from a JSON file, or find a shipped one by its name.")
        .def_static("parse", parse_topology, "text"_a, "name"_a = "topology",
                    "Parse a topology from JSON text. Errors call the text ``name``.")
        .def_static(
            "shipped",
            [] {
                std::vector<std::string> names;
                while (const char *name = banyan_topology_shipped(names.size()))
                    names.push_back(name);
                return names;
            },
            "List the names of the topologies that Banyan ships.")
        .def_static(
            "probe",
            [](nb::handle ranks) {
                return nb::module_::import_("banyan._command").attr("probe")(ranks);
            },
            "ranks"_a = nb::none(), nb::sig("def probe(ranks: int | None = None) -> Topology"),
            "Measure this machine with small plans between processes, as many as cores by "
            "default. Run nothing else meanwhile.")
        .def(
            "json",
            [](const Topology &t) {
                char *text = nullptr;
                check(banyan_topology_print(t.handle, &text));
                return take_text(text);
            },
            nb::sig("def json(self) -> str"), "Return the topology as JSON text.")
        .def_prop_ro("name", info(&banyan_topology_info::name), "Name of the machine.")
        .def_prop_ro("about", info(&banyan_topology_info::about), "One line.")
        .def_prop_ro("processors", info(&banyan_topology_info::processors), "Their number.")
        .def_prop_ro("switches", info(&banyan_topology_info::switches), "Their number.")
        .def_prop_ro("links", info(&banyan_topology_info::links),
                     "Their number; each direction counts.")
        .def_prop_ro("thread_blocks", info(&banyan_topology_info::thread_blocks),
                     "Thread blocks that a processor runs at once at their full rate.")
        .def(
            "simulate_moves",
            [](nb::handle self, nb::handle moves, int ranks, bool steps, double grain) {
                return simulate_moves(self, moves, ranks, steps, grain);
            },
            "moves"_a, "ranks"_a, nb::kw_only(), "steps"_a = false, "grain"_a = 0.0,
            nb::sig("def simulate_moves(self, moves: "
                    "collections.abc.Iterable[dict[str, typing.Any]], ranks: int, *, steps: bool = "
                    "False, grain: float = 0.0) -> Simulation"),
            "Predict the time of transfers without a plan.\n\n"
            "A move is a dict: ``rank`` and ``peer``, ``nbytes`` (0: only an order), ``lane`` (its "
            "moves run one after another), ``by`` (\"blocks\" or \"proxy\"), ``what`` (its name) "
            "and ``after`` (indices of at most two moves to wait for). ``grain`` 0: exact; more, "
            "up to 1: faster.")
        .def("__repr__", [](const Topology &t) {
            banyan_topology_info i = banyan_topology_describe(t.handle);
            return "banyan.Topology(name=\"" + std::string(i.name) +
                   "\", processors=" + std::to_string(i.processors) + ")";
        });
}

void bind_simulate(nb::module_ &m)
{
    bind_topology(m);
    nb::class_<Use>(m, "LinkUse", "Use of a link, or of the memory of a rank.")
        .def_prop_ro(
            "source", [](const Use &u) { return u.source; }, "For example \"gpu0\".")
        .def_prop_ro(
            "destination",
            [](const Use &u) -> std::optional<std::string> {
                return u.destination ? std::optional<std::string>(u.destination) : std::nullopt;
            },
            nb::sig("def destination(self) -> str | None"), "None: the memory of ``source``.")
        .def_ro("nbytes", &Use::bytes, "Bytes transferred in the run.")
        .def_ro("busy", &Use::busy, "Fraction of the time with any traffic.")
        .def_ro("full", &Use::full, "Bytes as a fraction of the capacity over the whole time.");
    nb::class_<Step>(m, "SimulationStep", "One operation of a simulation.")
        .def_ro("rank", &Step::rank, "Rank that executes it.")
        .def_ro("thread_block", &Step::thread_block, "Thread block that executes it.")
        .def_ro("operation", &Step::operation,
                "Index in the thread block; -1: the kernel's launch.")
        .def_ro("loop_operation", &Step::loop_operation, "Index in the loop's body, or -1.")
        .def_ro("iteration", &Step::iteration, "Of the loop.")
        .def_ro("proxy", &Step::proxy, "The rank's proxy works, for that operation.")
        .def_prop_ro(
            "what", [](const Step &s) { return s.what; }, "Its name, such as \"put\".")
        .def_ro("began", &Step::began_s, "Seconds from the start of all ranks.")
        .def_ro("ended", &Step::ended_s, "Seconds from the start of all ranks.")
        .def_prop_ro(
            "after",
            [](const Step &s) {
                return s.after == SIZE_MAX ? std::nullopt : std::optional<size_t>(s.after);
            },
            nb::sig("def after(self) -> int | None"),
            "Index of the step that delayed this one last.")
        .def("__repr__", [](const Step &s) {
            return "<" + std::string(s.what) + " at rank " + std::to_string(s.rank) +
                   ", thread block " + std::to_string(s.thread_block) + ">";
        });
    nb::class_<Simulation>(m, "Simulation", "Predicted time of a run. It does not change.")
        .def_prop_ro(
            "seconds", [](const Simulation &s) { return banyan_simulation_seconds(s.handle); },
            "From the start of all ranks to the end of the last one.")
        .def_prop_ro(
            "rank_seconds",
            [](const Simulation &s) {
                std::vector<double> seconds;
                for (int rank = 0; rank < s.ranks; rank++)
                    seconds.push_back(banyan_simulation_rank_seconds(s.handle, rank));
                return seconds;
            },
            "Of each rank, until its work is done and its data has arrived.")
        .def_prop_ro("links", links_of, nb::sig("def links(self) -> list[LinkUse]"),
                     "Use of the topology's links, then of the memories of the ranks.")
        .def_prop_ro(
            "steps",
            [](std::shared_ptr<Simulation> s) { return steps_of(s, banyan_simulation_step_at); },
            nb::sig("def steps(self) -> list[SimulationStep]"),
            "Recorded operations, in the order of their ends.")
        .def_prop_ro(
            "critical_path",
            [](std::shared_ptr<Simulation> s) { return steps_of(s, banyan_simulation_path); },
            nb::sig("def critical_path(self) -> list[SimulationStep]"),
            "The chain of dependent steps, from the start, that determines the end.")
        .def(
            "write_trace",
            [](const Simulation &s, nb::handle path) {
                std::string file = path_of(path);
                work([&] { return banyan_simulation_write_trace(s.handle, file.c_str()); });
            },
            "path"_a, nb::sig("def write_trace(self, path: banyan.PathLike) -> None"),
            "Write the steps as a trace, for Perfetto and ``Plan.view``.")
        .def("__repr__", [](const Simulation &s) {
            return "<banyan.Simulation: " +
                   std::to_string(banyan_simulation_seconds(s.handle) * 1e6) + " us>";
        });
}
