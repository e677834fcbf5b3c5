/* Shared by the files that bind plans: the object of Python and what others do with it. */
#ifndef BANYAN_PYTHON_PLAN_H
#define BANYAN_PYTHON_PLAN_H

#include "banyan_python.h"

struct Plan {
    banyan_plan *handle = nullptr;

    explicit Plan(banyan_plan *handle) : handle(handle) {}
    Plan(const Plan &) = delete;
    ~Plan() { banyan_plan_destroy(handle); }
};

/* Return a text of the library as a string of Python, and free it. */
inline nb::str take_text(char *text)
{
    nb::str taken(text);
    free(text);
    return taken;
}

struct Topology {
    banyan_topology *handle = nullptr;

    explicit Topology(banyan_topology *handle) : handle(handle) {}
    Topology(const Topology &) = delete;
    ~Topology() { banyan_topology_destroy(handle); }
};

struct Simulation {
    banyan_simulation *handle = nullptr;
    std::shared_ptr<Plan> plan; /* null: of moves */
    std::shared_ptr<Topology> topology;
    int ranks = 0;
    std::vector<std::string> names; /* of moves */

    Simulation() = default;
    Simulation(const Simulation &) = delete;
    ~Simulation() { banyan_simulation_destroy(handle); }
};

/* Return a Topology of Python, or read one from a path or by its name. */
std::shared_ptr<Topology> topology_of(nb::handle topology);

/* A collective by name: "allreduce" as in plans, or "all_reduce". */
banyan_collective_kind collective_of(const std::string &name);

void bind_check(nb::module_ &m);
void bind_simulate(nb::module_ &m);

/* Methods of Plan that other files define. */
void def_check(nb::class_<Plan> &plan);
void def_simulate(nb::class_<Plan> &plan);

#endif
