/* Topologies: the meaning of their entries, and refusals with their place. */
#include "simulate/star.h"

#include <math.h>

#include "core/text/json.h"
#include "simulate/topology/routes.h"

#define RATES                                                                                      \
    "\"block\": {\"local_bytes_per_s\": 1e9, \"load_bytes_per_s\": 1e9,"                           \
    " \"store_bytes_per_s\": 1e9, \"packet_bytes_per_s\": 1e9, \"reduce_bytes_per_s\": 1e9},"      \
    " \"proxy\": {\"request_ns\": 1, \"bytes_per_s\": 1e9}"
#define KIND                                                                                       \
    "{\"memory_bytes_per_s\": 1e9, \"blocks_at_once\": 1, \"launch_ns\": 1, \"operation_ns\": "    \
    "1.5, \"sync_ns\": 0,"                                                                         \
    " \"signal_ns\": 0, " RATES "}"
#define TOPOLOGY(rest) "{\"name\": \"t\", \"kinds\": {\"k\": " KIND "}, " rest "}"
#define TWO "\"processors\": [{\"for\": {\"p\": 2}, \"name\": \"p{p}\", \"kind\": \"k\"}]"
#define LINK(from, to, latency)                                                                    \
    "{\"from\": \"" from "\", \"to\": \"" to "\", \"latency_ns\": " latency                        \
    ", \"bytes_per_s\": 1e9}"

static banyan_status parse(const char *text, banyan_topology **topology)
{
    return banyan_topology_parse(text, strlen(text), "t.json", topology);
}

static banyan_topology *read_text(const char *text)
{
    banyan_topology *topology;
    CHECK_OK(parse(text, &topology));
    return topology;
}

static void check_refused(const char *text, const char *message)
{
    banyan_topology *topology;
    CHECK_FAILS(parse(text, &topology), BANYAN_ERR_FORMAT, message);
}

static void an_entry_stands_for_many(void **state)
{
    (void)state;
    banyan_topology *topology = read_text(TOPOLOGY(
        "\"processors\": [{\"for\": {\"n\": 2, \"g\": 3}, \"name\": \"n{n}.g{g}\", "
        "\"kind\": \"k\"}],"
        "\"switches\": [{\"for\": {\"n\": 2}, \"name\": \"s{n}\"}, {\"name\": \"top\"}],"
        "\"links\": [{\"for\": {\"n\": 2, \"g\": 3}, \"from\": \"n{n}.g{g}\", \"to\": \"s{n}\","
        " \"latency_ns\": 0.25, \"bytes_per_s\": 2e9},"
        "{\"for\": {\"n\": 2}, \"from\": \"s{n}\", \"to\": \"top\", \"latency_ns\": 10,"
        " \"bytes_per_s\": 1e9, \"both_ways\": false}]"));
    banyan_topology_info info = banyan_topology_describe(topology);
    CHECK(info.processors == 6 && info.switches == 3 && info.links == 14);
    CHECK(strcmp(topology->vertices.data[4].name, "n1.g1") == 0);
    CHECK(strcmp(topology->vertices.data[7].name, "s1") == 0);
    CHECK(topology->kinds[0].operation_ps == 1500 && topology->links.data[0].latency_ps == 250);
    CHECK(topology->links.data[1].from == 6 && topology->links.data[1].to == 0);
    CHECK(topology->links.data[13].from == 7 && topology->links.data[13].to == 8);
    banyan_topology_destroy(topology);
}

static void a_printed_topology_reads_back_equal(void **state)
{
    (void)state;
    for (size_t i = 0; banyan_topology_shipped(i); i++) {
        banyan_topology *first, *second;
        char *text, *again;
        CHECK_OK(banyan_topology_read(banyan_topology_shipped(i), &first));
        CHECK(strcmp(banyan_topology_describe(first).name, banyan_topology_shipped(i)) == 0);
        CHECK_OK(banyan_topology_print(first, &text));
        CHECK_OK(parse(text, &second));
        CHECK_OK(banyan_topology_print(second, &again));
        CHECK(strcmp(text, again) == 0);
        CHECK(json_equal(first->source, second->source));
        free(text);
        free(again);
        banyan_topology_destroy(first);
        banyan_topology_destroy(second);
    }
}

static void nodes_are_found_by_the_names_of_processors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int each;
    } cases[] = {{"dgx-h100x1024", 8}, {"dgx-h100x16", 8}, {"h200x8", 8}, {"gb200-nvl72", 72}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        banyan_topology *topology;
        CHECK_OK(banyan_topology_read(cases[i].name, &topology));
        CHECK(banyan_topology_describe(topology).processors_per_node == cases[i].each);
        banyan_topology_destroy(topology);
    }
}

#define LEVEL(bytes, rate)                                                                         \
    "{\"working_set_bytes\": " bytes ", \"local_bytes_per_s\": " rate                              \
    ", \"load_bytes_per_s\": " rate ", \"store_bytes_per_s\": " rate                               \
    ", \"packet_bytes_per_s\": " rate ", \"reduce_bytes_per_s\": " rate "}"
#define LEVELS(list)                                                                               \
    "{\"name\": \"t\", \"kinds\": {\"k\": {\"memory_bytes_per_s\": 1e9, \"blocks_at_once\": 1,"    \
    " \"launch_ns\": 1, \"operation_ns\": 1, \"sync_ns\": 0, \"signal_ns\": 0,"                    \
    " \"shared_memory\": true, \"block\": [" list "],"                                             \
    " \"proxy\": {\"request_ns\": 1, \"bytes_per_s\": 1e9}}}, " TWO ", \"links\": []}"

static bool is_near(double value, double wanted)
{
    return fabs(value / wanted - 1) < 1e-9;
}

static void a_byte_takes_longer_the_more_are_touched(void **state)
{
    (void)state;
    banyan_topology *topology =
        read_text(LEVELS(LEVEL("1e3", "8e9") "," LEVEL("1e5", "2e9") "," LEVEL("1e6", "1e9")));
    const processor_kind *kind = &topology->kinds[0];
    CHECK(kind->shared_memory && kind->rate_count == 3);
    CHECK(is_near(rates_for(kind, 0).local, 8e9) && is_near(rates_for(kind, 1e3).load, 8e9));
    CHECK(rates_for(kind, 1e6).store == 1e9 && rates_for(kind, 1e12).packet == 1e9);
    CHECK(is_near(rates_for(kind, 1e5).reduce, 2e9));
    /* Not given: the rate without reduction. */
    CHECK(is_near(rates_for(kind, 1e5).reduce_load, 2e9));
    CHECK(is_near(rates_for(kind, 1e5).reduce_store, 2e9));
    /* Half-way on a logarithmic scale: half of each time. */
    CHECK(is_near(1 / rates_for(kind, 1e4).local, (1 / 8e9 + 1 / 2e9) / 2));
    banyan_topology_destroy(topology);
    check_refused(LEVELS(""), "kinds.k.block has no rates");
    check_refused(LEVELS(LEVEL("1e5", "8e9") "," LEVEL("1e5", "2e9")),
                  "kinds.k.block[1] has a working set of 100000 bytes, and the one before of "
                  "100000: they ascend");
    check_refused(LEVELS("{\"local_bytes_per_s\": 0}"),
                  "kinds.k.block[0].local_bytes_per_s is 0: 1 to 1e+18 are possible");
}

static void the_quickest_way_is_taken_and_never_through_a_processor(void **state)
{
    (void)state;
    /* p0 - p1 - p2 would be quickest; s is quicker than the direct link. */
    banyan_topology *topology = read_text(TOPOLOGY(
        "\"processors\": [{\"for\": {\"p\": 3}, \"name\": \"p{p}\", \"kind\": \"k\"}],"
        "\"switches\": [{\"name\": \"s\"}, {\"name\": \"far\"}],"
        "\"links\": [" LINK("p0", "p1", "1") "," LINK("p1", "p2", "1") "," LINK(
            "p0", "p2", "9") "," LINK("p0", "s",
                                      "4") "," LINK("s", "p2",
                                                    "4") "," LINK("p0", "far",
                                                                  "20") "," LINK("far", "p2",
                                                                                 "20") "]"));
    routes all;
    route way = {0};
    bool there;
    CHECK_OK(routes_make(topology, &all));
    CHECK_OK(routes_find(&all, 0, 2, &way, &there));
    CHECK(there && way.links.count == 2 && way.latency_ps == 8000);
    CHECK(topology->links.data[way.links.data[0]].from == 3);
    CHECK_OK(routes_find(&all, 2, 2, &way, &there));
    CHECK(there && way.links.count == 0 && way.latency_ps == 0);
    CHECK_OK(routes_find(&all, 1, 3, &way, &there));
    CHECK(!there);
    route_free(&way);
    routes_free(&all);
    banyan_topology_destroy(topology);
}

/* For all shipped ones. */
static void processors_reach_each_other(void **state)
{
    (void)state;
    for (size_t i = 0; banyan_topology_shipped(i); i++) {
        banyan_topology *topology;
        routes all;
        route way = {0};
        CHECK_OK(banyan_topology_read(banyan_topology_shipped(i), &topology));
        CHECK_OK(routes_make(topology, &all));
        for (uint32_t from = 0; from < topology->processor_count; from += 7) {
            for (uint32_t to = 0; to < topology->processor_count; to++) {
                bool there;
                CHECK_OK(routes_find(&all, from, to, &way, &there));
                CHECK(there, "%s: %u to %u", banyan_topology_shipped(i), from, to);
            }
        }
        route_free(&way);
        routes_free(&all);
        banyan_topology_destroy(topology);
    }
}

static void mistakes_are_refused_with_their_place(void **state)
{
    (void)state;
    check_refused("[]", "t.json: the document is not an object");
    check_refused("{\"name\": \"t\"", "t.json:1:");
    check_refused("{\"name\": \"t\", \"colour\": 1}",
                  "t.json: the document has a key \"colour\" that means nothing here");
    check_refused("{\"name\": \"t\"}", "the document has no \"kinds\"");
    check_refused("{\"name\": \"t\", \"kinds\": {\"k\": {\"memory_bytes_per_s\": 0}}}",
                  "t.json: kinds.k.memory_bytes_per_s is 0: 1 to 1e+18 are possible");
    check_refused("{\"name\": \"t\", \"kinds\": {\"k\": {\"memory_bytes_per_s\": \"fast\"}}}",
                  "kinds.k.memory_bytes_per_s is not a number");
    check_refused(TOPOLOGY("\"processors\": []"), "the document has no processors");
    check_refused(TOPOLOGY("\"processors\": [{\"name\": \"p\", \"kind\": \"q\"}]"),
                  "processors[0] is of a kind \"q\" that \"kinds\" does not have");
    check_refused(TOPOLOGY("\"processors\": [{\"name\": \"p\", \"kind\": \"k\", \"rate\": 1}]"),
                  "processors[0] has a key \"rate\"");
    check_refused(
        TOPOLOGY("\"processors\": [{\"for\": {\"p\": 2}, \"name\": \"p\", \"kind\": \"k\"}]"),
        "processors[0] is the second one called \"p\"");
    check_refused(
        TOPOLOGY("\"processors\": [{\"for\": {\"p\": 0}, \"name\": \"p{p}\", \"kind\": \"k\"}]"),
        "processors[0].for.p is 0: 1 to 65536 are possible");
    check_refused(TOPOLOGY("\"processors\": [{\"for\": {\"a\": 65536, \"b\": 2}, "
                           "\"name\": \"p{a}.{b}\", \"kind\": \"k\"}]"),
                  "processors[0] makes more than 65536 processors and switches");
    check_refused(TOPOLOGY("\"processors\": [{\"name\": \"p{q}\", \"kind\": \"k\"}]"),
                  "processors[0].name is \"p{q}\", with a variable that \"for\" does not have");
    check_refused(TOPOLOGY("\"processors\": [{\"name\": \"p\\u001b[2J\", \"kind\": \"k\"}]"),
                  "processors[0] has a name with the control character 0x1b");
    check_refused("{\"name\": \"t\\u007f\"}", "has a name with the control character 0x7f");
    check_refused("{\"name\": \"t\", \"about\": \"\\n\"}",
                  "has a text about it with the control character 0x0a");
    check_refused("{\"name\": \"t\", \"about\": 7}",
                  "about is an integer where a string should be");
    check_refused("{\"name\": \"t\", \"kinds\": {\"\\t\": {}}}",
                  "kinds has a kind with the control character 0x09");
    check_refused(TOPOLOGY("\"processors\": [{\"name\": \"\", \"kind\": \"k\"}]"),
                  "processors[0].name is not a name");
    check_refused(TOPOLOGY(TWO), "the document has no \"links\"");
    check_refused(
        TOPOLOGY(TWO ", \"links\": [" LINK("p0", "p1", "1") "," LINK("p0", "p2", "1") "]"),
        "links[1] leads to \"p2\", which there is not");
    check_refused(TOPOLOGY(TWO ", \"links\": [" LINK("p1", "p1", "1") "]"),
                  "links[0] leads back to \"p1\"");
    check_refused(TOPOLOGY(TWO ", \"links\": [" LINK("p0", "p1", "-1") "]"),
                  "links[0].latency_ns is -1: 0 to 1e+11 are possible");
    check_refused(TOPOLOGY(TWO ", \"links\": 7"), "links is an integer where an array should be");
    banyan_topology *topology;
    CHECK_FAILS(banyan_topology_read("h2000", &topology), BANYAN_ERR_NOT_FOUND,
                "there is no file h2000, and no topology of that name: there are ");
}

static void ranks_without_a_way_are_refused(void **state)
{
    (void)state;
    banyan_topology *topology =
        read_text(TOPOLOGY(TWO ", \"links\": [{\"from\": \"p0\", \"to\": \"p1\", \"latency_ns\": 1,"
                               " \"bytes_per_s\": 1e9, \"both_ways\": false}]"));
    banyan_plan *plan = star_algorithm("allreduce_oneshot", 2);
    banyan_simulation *simulation;
    CHECK_FAILS(banyan_plan_simulate(plan, topology, NULL, &simulation), BANYAN_ERR_INVALID,
                "topology t: there is no way from p1 to p0");
    banyan_plan_destroy(plan);
    banyan_topology_destroy(topology);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_entry_stands_for_many),
        cmocka_unit_test(a_printed_topology_reads_back_equal),
        cmocka_unit_test(nodes_are_found_by_the_names_of_processors),
        cmocka_unit_test(a_byte_takes_longer_the_more_are_touched),
        cmocka_unit_test(the_quickest_way_is_taken_and_never_through_a_processor),
        cmocka_unit_test(processors_reach_each_other),
        cmocka_unit_test(mistakes_are_refused_with_their_place),
        cmocka_unit_test(ranks_without_a_way_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
