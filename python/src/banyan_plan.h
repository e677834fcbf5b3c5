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

/* A collective by name: "allreduce" as in plans, or "all_reduce". */
banyan_collective_kind collective_of(const std::string &name);

void bind_check(nb::module_ &m);
void bind_simulate(nb::module_ &m);

/* Methods of Plan that other files define. */
void def_check(nb::class_<Plan> &plan);
void def_simulate(nb::class_<Plan> &plan);

#endif
