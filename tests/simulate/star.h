/* Topologies for tests: processors around one switch, with infinite rates except those that a test
 * sets. */
#ifndef TESTS_SIMULATE_STAR_H
#define TESTS_SIMULATE_STAR_H

#include <math.h>

#include "support/test.h"

typedef struct star {
    int processors;
    double latency_ns; /* of a link; a way has two */
    double bytes_per_s;
    double launch_ns, operation_ns, sync_ns, signal_ns, request_ns;
    double local, load, store, packet, reduce, port, memory; /* bytes a second; 0: no limit */
    double blocks_at_once;                                   /* 0: no limit */
    bool multicast;
    bool shared_memory;
    double load_overhead, store_overhead; /* 0: none */
    double reduce_load;                   /* 0: as load */
    double reduce_store;                  /* 0: as store */
    bool port_takes_block;
} star;

static double star_rate(double rate)
{
    return rate > 0 ? rate : 1e18;
}

static inline banyan_topology *star_make(const star *of)
{
    char text[2048];
    banyan_topology *topology;
    int bytes = snprintf(
        text, sizeof text,
        "{\"name\": \"star\", \"kinds\": {\"fast\": {\"shared_memory\": %s,"
        " \"load_overhead\": %.17g, \"store_overhead\": %.17g,"
        " \"memory_bytes_per_s\": %.17g,"
        " \"blocks_at_once\": %.17g,"
        " \"launch_ns\": %.17g, \"operation_ns\": %.17g, \"sync_ns\": %.17g, \"signal_ns\": %.17g,"
        " \"block\": {\"local_bytes_per_s\": %.17g, \"load_bytes_per_s\": %.17g,"
        "  \"store_bytes_per_s\": %.17g, \"packet_bytes_per_s\": %.17g,"
        "  \"reduce_bytes_per_s\": %.17g, \"reduce_load_bytes_per_s\": %.17g,"
        "  \"reduce_store_bytes_per_s\": %.17g},"
        " \"proxy\": {\"request_ns\": %.17g, \"bytes_per_s\": %.17g, \"takes_block\": %s}}},"
        " \"processors\": [{\"for\": {\"p\": %d}, \"name\": \"p{p}\", \"kind\": \"fast\"}],"
        " \"switches\": [{\"name\": \"middle\", \"multicast\": %s}],"
        " \"links\": [{\"for\": {\"p\": %d}, \"from\": \"p{p}\", \"to\": \"middle\","
        "  \"latency_ns\": %.17g, \"bytes_per_s\": %.17g}]}",
        of->shared_memory ? "true" : "false", fmax(of->load_overhead, 1),
        fmax(of->store_overhead, 1), star_rate(of->memory),
        of->blocks_at_once > 0 ? of->blocks_at_once : 1e6, of->launch_ns, of->operation_ns,
        of->sync_ns, of->signal_ns, star_rate(of->local), star_rate(of->load), star_rate(of->store),
        star_rate(of->packet), star_rate(of->reduce),
        star_rate(of->reduce_load > 0 ? of->reduce_load : of->load),
        star_rate(of->reduce_store > 0 ? of->reduce_store : of->store), of->request_ns,
        star_rate(of->port), of->port_takes_block ? "true" : "false", of->processors,
        of->multicast ? "true" : "false", of->processors, of->latency_ns,
        star_rate(of->bytes_per_s));
    CHECK(bytes > 0 && bytes < (int)sizeof text);
    CHECK_OK(banyan_topology_parse(text, (size_t)bytes, "star", &topology));
    return topology;
}

/* Bytes on the up and down links of processor p, as in the topology. */
static inline uint64_t star_bytes(const banyan_simulation *simulation, int p, bool up)
{
    banyan_link_use use;
    CHECK(banyan_simulation_link(simulation, (size_t)(2 * p + !up), &use));
    char name[32];
    snprintf(name, sizeof name, "p%d", p);
    CHECK(use.destination && strcmp(up ? use.source : use.destination, name) == 0);
    return use.bytes;
}

static inline banyan_simulation *star_run(const banyan_plan *plan, const banyan_topology *topology,
                                          uint64_t bytes)
{
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    banyan_simulation *simulation;
    options.message_bytes = bytes;
    options.steps = true;
    CHECK_OK(banyan_plan_simulate(plan, topology, &options, &simulation));
    return simulation;
}

static inline double star_seconds(const banyan_plan *plan, const star *of, uint64_t bytes)
{
    banyan_topology *topology = star_make(of);
    banyan_simulation *simulation = star_run(plan, topology, bytes);
    double seconds = banyan_simulation_seconds(simulation);
    banyan_simulation_destroy(simulation);
    banyan_topology_destroy(topology);
    return seconds;
}

static inline banyan_plan *star_algorithm(const char *name, int ranks)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    params.ranks = ranks;
    params.instances = 1;
    params.shift = 1;
    CHECK_OK(banyan_algorithm_compile(name, &params, &plan));
    return plan;
}

#endif
