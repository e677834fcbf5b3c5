/* Simulating rings of many ranks on a cluster of DGX H100: seconds and memory. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include <banyan/collective.h>
#include <banyan/simulate.h>

#include "core/deadline.h"

#define LIMIT_SECONDS 30
#define MESSAGE_BYTES (UINT64_C(64) << 20)
/* Bytes that the compiler takes for a ring's plan, by ranks² × steps. */
#define BYTES_AN_OPERATION 250

static double seconds_since(uint64_t begin_ns)
{
    return (double)(time_now_ns() - begin_ns) / 1e9;
}

static uint64_t resident_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss << 10;
}

static banyan_status simulate(int ranks, const banyan_topology *topology, bool *met)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    banyan_plan *plan;
    banyan_simulation *simulation;
    params.ranks = ranks;
    uint64_t begin = time_now_ns();
    banyan_status status = banyan_algorithm_compile("allreduce_ring_direct", &params, &plan);
    if (status != BANYAN_OK)
        return status;
    double compiled = seconds_since(begin);
    options.message_bytes = MESSAGE_BYTES;
    begin = time_now_ns();
    status = banyan_plan_simulate(plan, topology, &options, &simulation);
    double simulated = seconds_since(begin);
    if (status == BANYAN_OK) {
        printf("%6d ranks %12" PRIu64 " operations  compiled in %6.2f s  simulated in %6.2f s  "
               "(%.2f ms)  %6.2f GiB\n",
               ranks, banyan_plan_describe(plan).operations, compiled, simulated,
               banyan_simulation_seconds(simulation) * 1e3, (double)resident_bytes() / (1 << 30));
        *met = simulated < LIMIT_SECONDS;
        banyan_simulation_destroy(simulation);
    }
    banyan_plan_destroy(plan);
    return status;
}

static bool has_memory(int ranks)
{
    uint64_t bytes = (uint64_t)ranks * (uint64_t)ranks * 12 * BYTES_AN_OPERATION;
    uint64_t there = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes < there;
}

int main(void)
{
    banyan_topology *topology;
    bool met = true;
    banyan_status status = banyan_topology_read("dgx-h100x1024", &topology);
    if (status != BANYAN_OK) {
        fprintf(stderr, "%s\n", banyan_last_error());
        return 1;
    }
    printf("all-reduce around a ring, 64 MiB (limit: %d s to simulate 1,024 ranks)\n",
           LIMIT_SECONDS);
    for (int ranks = 256; ranks <= 1024 && met && status == BANYAN_OK; ranks *= 2) {
        if (has_memory(ranks))
            status = simulate(ranks, topology, &met);
        else
            printf("%6d ranks: this machine has too little memory free for the plan\n", ranks);
    }
    if (status != BANYAN_OK)
        fprintf(stderr, "%s\n", banyan_last_error());
    banyan_topology_destroy(topology);
    return status == BANYAN_OK && met ? 0 : 1;
}
