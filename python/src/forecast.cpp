/* Reshards of worlds that do not exist: jobs, the cost of plans, predicted times. */
#include "banyan_plan.h"
#include "banyan_reshard.h"

#include <banyan/forecast.h>

/* ---- jobs ---- */

/* One side of a job: a spec, a layout file, or what ranks saved. */
struct JobSide {
    std::shared_ptr<Spec> spec;
    std::shared_ptr<LayoutFile> file;
    std::shared_ptr<Checkpoint> saved;

    explicit JobSide(nb::handle side)
    {
        if (nb::isinstance<nb::str>(side)) {
            spec = std::make_shared<Spec>(Spec{{}, nb::cast<std::string>(side)});
            check(banyan_spec_parse(spec->text.c_str(), &spec->spec));
        } else if (nb::isinstance<Spec>(side)) {
            spec = nb::cast<std::shared_ptr<Spec>>(side);
        } else if (nb::isinstance<LayoutFile>(side)) {
            file = nb::cast<std::shared_ptr<LayoutFile>>(side);
        } else if (nb::isinstance<Checkpoint>(side)) {
            saved = nb::cast<std::shared_ptr<Checkpoint>>(side);
            require_open(*saved, "the checkpoint");
        } else {
            throw nb::type_error("a side of a job is a Spec or its text, a LayoutFile, or a "
                                 "Checkpoint that ranks saved");
        }
    }
    int ranks() const
    {
        return spec   ? banyan_spec_world_size(&spec->spec)
               : file ? banyan_layout_file_rank_count(file->handle)
                      : banyan_checkpoint_rank_count(saved->handle);
    }
};

struct Job {
    JobSide source, destination;
    std::shared_ptr<Model> model;
    std::shared_ptr<Rules> rules;
    int source_ranks, destination_ranks, first_destination = 0, world_size;

    Job(nb::handle source, nb::handle destination, std::shared_ptr<Model> model,
        std::shared_ptr<Rules> rules, bool disjoint)
        : source(source), destination(destination), model(model), rules(rules),
          source_ranks(this->source.ranks()), destination_ranks(this->destination.ranks())
    {
        if ((this->source.spec || this->destination.spec) && !model)
            throw nb::value_error("a spec needs model=Model(...)");
        if (!rules) {
            this->rules = std::make_shared<Rules>();
            check(banyan_rules_load(nullptr, &this->rules->handle));
        }
        first_destination = disjoint ? source_ranks : 0;
        int64_t ranks = std::max<int64_t>(source_ranks, (int64_t)first_destination + destination_ranks);
        if (ranks > BANYAN_MAX_RANKS)
            throw nb::value_error((std::to_string(ranks) + " ranks are more than a world can have")
                                      .c_str());
        world_size = (int)ranks;
    }

    void add_side(const JobSide &side, int rank, int offset, banyan_layout *layout) const
    {
        if (side.spec)
            banyan_layout_add_model(layout, model->handle, rules->handle, &side.spec->spec, rank,
                                    offset);
        else if (side.file)
            banyan_layout_add_file(layout, side.file->handle, rank, offset);
        else
            banyan_checkpoint_add_layout(side.saved->handle, rank, layout);
    }

    void add(int rank, banyan_layout *from, banyan_layout *to) const
    {
        if (rank >= 0 && rank < source_ranks)
            add_side(source, rank, 0, from);
        int to_rank = rank - first_destination;
        if (to_rank >= 0 && to_rank < destination_ranks)
            add_side(destination, to_rank, first_destination, to);
    }
};

static nb::object layouts_of(const Job &job, int rank)
{
    auto from = std::make_shared<Layout>(), to = std::make_shared<Layout>();
    job.add(rank, from->handle, to->handle);
    from->check();
    to->check();
    return nb::make_tuple(from, to);
}

/* ---- worlds that one process plans ---- */

/* The world of a Job, or of a function of Python. */
class SampleWorld {
  public:
    banyan_reshard_sample_world world = {};
    Calls calls;

    SampleWorld(nb::object layouts, std::optional<int> world_size, nb::object progress)
        : layouts(layouts), progress(progress, "planning", false)
    {
        world.context = this;
        if (nb::isinstance<Job>(layouts)) {
            job = nb::cast<std::shared_ptr<Job>>(layouts);
            world.world_size = world_size.value_or(job->world_size);
            world.layouts = from_job;
        } else if (!world_size) {
            throw nb::value_error("world_size is needed, unless layouts is a Job");
        } else {
            world.world_size = *world_size;
            world.layouts = from_python;
        }
        if (this->progress.is_wanted())
            world.progress = show;
    }

    /* Call the library without the interpreter's lock; an exception of Python counts first. */
    template <typename Call> void plan(Call &&call)
    {
        banyan_status status;
        {
            nb::gil_scoped_release release;
            status = call();
        }
        calls.end();
        progress.end();
        check(status);
    }

  private:
    nb::object layouts;
    Progress progress;
    std::shared_ptr<Job> job;

    static banyan_status from_job(void *context, int rank, banyan_layout *source,
                                  banyan_layout *destination)
    {
        ((SampleWorld *)context)->job->add(rank, source, destination);
        return BANYAN_OK;
    }

    static banyan_status from_python(void *context, int rank, banyan_layout *source,
                                     banyan_layout *destination)
    {
        auto *self = (SampleWorld *)context;
        bool good = self->calls.python([&] {
            /* Python may keep the objects: they have the library's layouts for the call only. */
            auto from = std::make_shared<Layout>(), to = std::make_shared<Layout>();
            std::swap(from->handle, source);
            std::swap(to->handle, destination);
            auto swap_back = [&] {
                std::swap(from->handle, source);
                std::swap(to->handle, destination);
            };
            try {
                self->layouts(rank, from, to);
            } catch (...) {
                swap_back();
                throw;
            }
            swap_back();
        });
        return good ? BANYAN_OK
                    : banyan_error_set(BANYAN_ERR_ABORTED, "rank %d: its layouts raised an exception",
                                       rank);
    }

    static void show(void *context, uint64_t done, uint64_t total)
    {
        ((SampleWorld *)context)->progress.report(done, total);
    }
};

/* Take the option of a SampleWorld out of the others. */
static int take_ranks_per_node(nb::kwargs &kwargs)
{
    if (!kwargs.contains("ranks_per_node"))
        return 0;
    int taken = nb::cast<int>(kwargs["ranks_per_node"]);
    nb::del(kwargs["ranks_per_node"]);
    return taken;
}

static std::vector<banyan_reshard_plan_cost> plan_scale(nb::object layouts,
                                                        std::optional<int> world_size,
                                                        nb::object ranks, nb::object progress,
                                                        nb::kwargs kwargs)
{
    int ranks_per_node = take_ranks_per_node(kwargs);
    ReshardOptions options(kwargs);
    SampleWorld world(layouts, world_size, progress);
    world.world.ranks_per_node = ranks_per_node;
    std::vector<int> sampled;
    if (nb::isinstance<nb::int_>(ranks)) {
        /* Evenly over the world, with the first and the last. */
        int64_t count = std::min(nb::cast<int>(ranks), world.world.world_size);
        for (int64_t i = 0; i < count; i++)
            sampled.push_back(
                count == 1 ? 0 : (int)(i * (world.world.world_size - 1) / (count - 1)));
    } else {
        sampled = nb::cast<std::vector<int>>(ranks);
    }
    std::vector<banyan_reshard_plan_cost> costs(sampled.size());
    world.plan([&] {
        return banyan_reshard_plan_sample(&world.world, &options.options, sampled.data(),
                                          (int)sampled.size(), costs.data());
    });
    return costs;
}

/* ---- predicted times ---- */

struct Traffic {
    banyan_traffic *handle = nullptr;
    Traffic() = default;
    Traffic(const Traffic &) = delete;
    ~Traffic() { banyan_traffic_destroy(handle); }
};

static std::shared_ptr<Traffic> make_traffic(nb::object layouts, std::optional<int> world_size,
                                             nb::object progress, nb::kwargs kwargs)
{
    int ranks_per_node = take_ranks_per_node(kwargs);
    ReshardOptions options(kwargs);
    auto traffic = std::make_shared<Traffic>();
    if (nb::isinstance<MegatronCase>(layouts)) {
        auto &c = nb::cast<MegatronCase &>(layouts);
        work([&] { return banyan_traffic_plan_case(c.handle, &options.options, &traffic->handle); });
        return traffic;
    }
    SampleWorld world(layouts, world_size, progress);
    world.world.ranks_per_node = ranks_per_node;
    world.plan(
        [&] { return banyan_traffic_plan(&world.world, &options.options, &traffic->handle); });
    return traffic;
}

static banyan_traffic_links links_of(const Traffic &traffic)
{
    banyan_traffic_links links;
    check(banyan_traffic_describe_links(traffic.handle, &links));
    return links;
}

struct Forecast {
    banyan_forecast forecast;
    std::shared_ptr<Simulation> simulation;
};

static Forecast simulate_traffic(const Traffic &traffic, nb::object topology,
                                 const std::string &service, uint64_t slot_bytes,
                                 bool optimal_rounds, bool steps)
{
    if (service != "direct" && service != "pipeline")
        throw nb::value_error("service is \"direct\" or \"pipeline\"");
    banyan_forecast_options options = BANYAN_FORECAST_OPTIONS_INIT;
    options.service = service == "direct" ? BANYAN_FORECAST_DIRECT : BANYAN_FORECAST_PIPELINE;
    options.slot_bytes = slot_bytes;
    options.optimal_rounds = optimal_rounds;
    options.steps = steps;
    Forecast result = {{}, std::make_shared<Simulation>()};
    Simulation &simulation = *result.simulation;
    simulation.topology = topology_of(topology);
    simulation.ranks = banyan_traffic_describe(traffic.handle).ranks;
    work([&] {
        return banyan_traffic_simulate(traffic.handle, simulation.topology->handle, &options,
                                       &result.forecast, &simulation.handle);
    });
    return result;
}

#define LAYOUTS "Job | collections.abc.Callable[[int, Layout, Layout], object]"

void bind_forecast(nb::module_ &m)
{
    nb::class_<Job>(m, "Job", nb::is_weak_referenceable(),
                    "A reshard between two jobs, whose layouts are made for each rank on demand.")
        .def("__init__",
             [](Job *self, nb::object source, nb::object destination, std::shared_ptr<Model> model,
                std::shared_ptr<Rules> rules, bool disjoint) {
                 new (self) Job(source, destination, model, rules, disjoint);
             },
             "source"_a, "destination"_a, nb::kw_only(), "model"_a = nb::none(),
             "rules"_a = nb::none(), "disjoint"_a = false,
             nb::sig("def __init__(self, source: Spec | str | LayoutFile | Checkpoint, destination: "
                     "Spec | str | LayoutFile | Checkpoint, *, model: Model | None = None, rules: "
                     "Rules | None = None, disjoint: bool = False) -> None"),
             "Each side is a spec, a layout file, or a folder that ranks saved. Specs need a "
             "model. ``rules`` None: the built-in ones. ``disjoint``: the destination's ranks "
             "follow the source's; otherwise both begin at rank 0.")
        .def("layouts", layouts_of, "rank"_a,
             nb::sig("def layouts(self, rank: int) -> tuple[Layout, Layout]"),
             "Return the source and destination layouts of a rank; a side on which it holds nothing "
             "is empty.")
        .def_ro("world_size", &Job::world_size, "Ranks of both sides together.")
        .def_ro("source_ranks", &Job::source_ranks, "Ranks of the source.")
        .def_ro("destination_ranks", &Job::destination_ranks, "Ranks of the destination.");

    using Cost = banyan_reshard_plan_cost;
    nb::class_<Cost>(m, "PlanCost", "Cost of planning at one rank.")
        .def_ro("rank", &Cost::rank, "Rank in the sampled world.")
        .def_ro("seconds", &Cost::seconds, "Processor time, without the rank's layouts.")
        .def_ro("owner_seconds", &Cost::owner_seconds,
                "Part of it: the directory entries that the rank owns.")
        .def_ro("prove_seconds", &Cost::prove_seconds, "In addition: ReshardPlan.prove.")
        .def_ro("nbytes", &Cost::bytes, "Peak memory of layouts, planner, directory and plan.")
        .def_ro("owner_nbytes", &Cost::owner_bytes, "Memory of the rank's part of the directory.")
        .def_ro("transfers", &Cost::transfers, "Transfers sent, received and copied.")
        .def_ro("transfer_nbytes", &Cost::transfer_bytes, "Bytes received and copied.");
    m.def("plan_scale", plan_scale, "layouts"_a, "world_size"_a = nb::none(), "ranks"_a = 16,
          "progress"_a.none() = true, "options"_a,
          nb::sig("def plan_scale(layouts: " LAYOUTS ", world_size: int | None = None, ranks: int | "
                  "collections.abc.Sequence[int] = 16, " PROGRESS ", *, " PLAN_OPTIONS
                  ", ranks_per_node: int = 0) -> list[PlanCost]"),
          "Plan a reshard of a world of any size in this process, and return what it costs some of "
          "the ranks.\n\n"
          "``layouts``: a Job, or a function that adds everything that a rank holds to two empty "
          "layouts, source and destination; it may be called several times for a rank. "
          "``ranks``: their number, evenly over the world, or a list. ``progress``: True draws a bar "
          "on a terminal and in notebooks; a function is called with the steps that are done, and "
          "their number. ``ranks_per_node``: ranks of each node, in rank order; 0: one node. No other "
          "thread may allocate much memory meanwhile.");

    auto traffic = nb::class_<Traffic>(m, "Traffic",
                                       "All transfers of a reshard, of a world that need not "
                                       "exist.");
    def_new(traffic, make_traffic,
            "layouts: MegatronCase | " LAYOUTS ", world_size: int | None = None, " PROGRESS
            ", *, " PLAN_OPTIONS ", ranks_per_node: int = 0",
            "Plan every rank. ``layouts`` is as for plan_scale, or a case, and ``progress``, too. "
            "``ranks_per_node``: ranks of each node, in rank order; 0: one node.",
            "layouts"_a, "world_size"_a = nb::none(), "progress"_a.none() = true, "options"_a);
#define INFO(name, member, doc)                                                                    \
    .def_prop_ro(name, [](const Traffic &t) { return banyan_traffic_describe(t.handle).member; },  \
                 doc)
    traffic INFO("ranks", ranks, "Number of ranks.")
        INFO("transfers", transfers, "Transfers between two ranks.")
        INFO("nbytes", bytes, "Bytes of these transfers.")
        INFO("local_nbytes", local_bytes, "Bytes that ranks copy within their own memory.")
        INFO("pairs", pairs, "Pairs of sender and receiver with at least one transfer.")
        INFO("most_sent", most_sent, "Bytes that one rank sends: the maximum.")
        INFO("most_received", most_received, "Bytes that one rank receives: the maximum.")
            .def("simulate", simulate_traffic, "topology"_a, nb::kw_only(), "service"_a = "direct",
                 "slot_bytes"_a = 0, "optimal_rounds"_a = false, "steps"_a = true,
                 nb::sig("def simulate(self, topology: Topology | banyan.PathLike, *, service: "
                         "typing.Literal['direct', 'pipeline'] = 'direct', slot_bytes: int = 0, "
                         "optimal_rounds: bool = False, steps: bool = True) -> Forecast"),
                 "Predict the time on a machine: a Topology, a file, or a shipped name such as "
                 "\"h200x4\". ``slot_bytes``: of the pipeline; 0: 16 MiB. ``steps``: record every "
                 "move, for the critical path and traces.");
#undef INFO
#define LINKS(name, member, doc)                                                                   \
    .def_prop_ro(name, [](const Traffic &t) { return links_of(t).member; }, doc)
    traffic LINKS("network_nbytes", in.bytes, "Bytes that cross between nodes.")
        LINKS("least_network_nbytes", least_bytes,
              "The least: every element once to each node that needs it and does not hold it.")
        LINKS("most_card_sent", out.most, "Bytes out of one rank's network card: the maximum.")
        LINKS("most_card_received", in.most, "Bytes into one rank's network card: the maximum.")
        LINKS("inside_nbytes", inside.bytes, "Bytes between ranks of one node.")
        LINKS("turns", turns, "Turns of a run with stages; otherwise 0.");
#undef LINKS
    nb::class_<Forecast>(m, "Forecast", "Predicted time of a reshard.")
        .def_prop_ro("seconds", [](const Forecast &f) { return f.forecast.seconds; },
                     "Time until the last rank is done.")
        .def_prop_ro("critical_rank", [](const Forecast &f) { return f.forecast.critical_rank; },
                     "Rank that is done last.")
        .def_prop_ro("batches", [](const Forecast &f) { return f.forecast.batches; },
                     "Batches of the pipeline that all ranks send.")
        .def_prop_ro("rounds", [](const Forecast &f) { return f.forecast.rounds; },
                     "Rounds of the pipeline, of one rank: the maximum.")
        .def_prop_ro("slot_bytes", [](const Forecast &f) { return f.forecast.slot_bytes; },
                     "Bytes of a slot of the pipeline.")
        .def_ro("simulation", &Forecast::simulation,
                "The simulation, with the use of links, steps and the critical path.");
}
