/* Topologies, and the ways through them. */
#include "fuzz.h"

#include "simulate/topology/routes.h"

void fuzz_write_seeds(void)
{
    for (size_t i = 0; shipped_topologies[i].name; i++)
        fuzz_seed_text(shipped_topologies[i].text);
}

static void try_ways(const banyan_topology *topology)
{
    routes all;
    route way = {0};
    FUZZ_REQUIRE(routes_make(topology, &all) == BANYAN_OK);
    for (uint32_t to = 0; to < topology->vertices.count && to < 64; to++) {
        bool there;
        FUZZ_REQUIRE(routes_find(&all, 0, to, &way, &there) == BANYAN_OK);
        FUZZ_REQUIRE(!there || way.links.count < topology->vertices.count);
    }
    route_free(&way);
    routes_free(&all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    banyan_topology *topology, *again;
    char *text;
    if (!fuzz_took(banyan_topology_parse((const char *)data, size, "fuzz", &topology)))
        return 0;
    try_ways(topology);
    FUZZ_REQUIRE(banyan_topology_print(topology, &text) == BANYAN_OK);
    FUZZ_REQUIRE(banyan_topology_parse(text, strlen(text), "printed", &again) == BANYAN_OK);
    FUZZ_REQUIRE(again->links.count == topology->links.count &&
                 again->vertices.count == topology->vertices.count);
    free(text);
    banyan_topology_destroy(again);
    banyan_topology_destroy(topology);
    return 0;
}
