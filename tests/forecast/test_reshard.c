/* The time of a reshard, where a formula is known, and properties of every reshard. */
#include "simulate/star.h"

#include <math.h>

#define LATENCY 2e-6 /* of both links of a way */
#define RATE 1e10
#define RANKS 8
#define ROWS 4096
#define COLUMNS 2048
#define BYTES ((uint64_t)ROWS * COLUMNS * 2)

static const star plain = {.processors = RANKS, .latency_ns = 1000, .bytes_per_s = RATE};

/* A matrix, divided over some ranks in the source and over others in the destination. */
typedef struct matrix {
    int from, to, to_first, from_dim, to_dim;
} matrix;

static banyan_status matrix_layouts(void *context, int rank, banyan_layout *source,
                                    banyan_layout *destination)
{
    const matrix *of = context;
    const int64_t shape[] = {ROWS, COLUMNS};
    banyan_mesh from = {.ndim = 1, .extent = {of->from}};
    banyan_mesh to = {.ndim = 1, .extent = {of->to}, .first_rank = of->to_first};
    banyan_placement from_cut = {BANYAN_SHARD, of->from_dim}, to_cut = {BANYAN_SHARD, of->to_dim};
    banyan_layout_add_sharded(source, "weight", BANYAN_BF16, 2, shape, &from, &from_cut, rank);
    banyan_layout_add_sharded(destination, "weight", BANYAN_BF16, 2, shape, &to, &to_cut, rank);
    return BANYAN_OK;
}

static banyan_traffic *plan_matrix(matrix of, int ranks)
{
    const banyan_reshard_sample_world world = {
        .world_size = ranks, .layouts = matrix_layouts, .context = &of};
    banyan_traffic *traffic;
    CHECK_OK(banyan_traffic_plan(&world, NULL, &traffic));
    return traffic;
}

static banyan_forecast forecast(const banyan_traffic *traffic, const star *on,
                                banyan_forecast_service service, uint64_t slot_bytes, bool optimal)
{
    banyan_topology *topology = star_make(on);
    banyan_forecast_options options = BANYAN_FORECAST_OPTIONS_INIT;
    banyan_forecast found;
    options.service = service;
    options.slot_bytes = slot_bytes;
    options.optimal_rounds = optimal;
    CHECK_OK(banyan_traffic_simulate(traffic, topology, &options, &found, NULL));
    banyan_topology_destroy(topology);
    return found;
}

static void check_near(const char *what, double found, double expected)
{
    CHECK(fabs(found - expected) <= 0.01 * expected, "%s: %.9g s, not %.9g s", what, found,
          expected);
}

static void rows_to_columns_need_the_staging_of_one_sender(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= RANKS; ranks *= 2) {
        banyan_traffic *traffic = plan_matrix((matrix){ranks, ranks, 0, 0, 1}, ranks);
        banyan_traffic_info info = banyan_traffic_describe(traffic);
        uint64_t part = BYTES / (uint64_t)ranks / (uint64_t)ranks;
        uint64_t sent = (uint64_t)(ranks - 1) * part;
        CHECK(info.pairs == (uint64_t)(ranks * (ranks - 1)));
        CHECK(info.bytes == (uint64_t)ranks * sent && info.most_sent == sent);
        CHECK(info.most_received == sent && info.local_bytes == (uint64_t)ranks * part);
        banyan_forecast direct = forecast(traffic, &plain, BANYAN_FORECAST_DIRECT, 0, false);
        check_near("direct", direct.seconds, (double)sent / RATE + LATENCY);
        /* One batch for each partner: all ranks proceed to the next at once. */
        banyan_forecast rounds = forecast(traffic, &plain, BANYAN_FORECAST_PIPELINE, part, false);
        check_near("pipeline", rounds.seconds, (double)sent / RATE + LATENCY);
        CHECK(rounds.batches == info.pairs && rounds.rounds == (uint64_t)ranks - 1);
        banyan_traffic_destroy(traffic);
    }
}

static void direct_reads_need_the_staging_of_one_receiver(void **state)
{
    (void)state;
    /* Seven ranks send to one, whose link down is seven times as busy as their links up. */
    banyan_traffic *traffic = plan_matrix((matrix){7, 1, 7, 0, 0}, 8);
    banyan_forecast direct = forecast(traffic, &plain, BANYAN_FORECAST_DIRECT, 0, false);
    check_near("direct", direct.seconds, (double)BYTES / RATE + LATENCY);
    CHECK(banyan_traffic_describe(traffic).most_received == BYTES);
    banyan_traffic_destroy(traffic);
}

/* One pair: packing the first batch and unpacking the last cannot overlap with anything. */
static void a_pipeline_shows_its_slowest_stage(void **state)
{
    (void)state;
    star slow = plain;
    slow.local = 4 * RATE; /* a copy reads and writes: twice as fast as the link */
    slow.blocks_at_once = 1;
    banyan_traffic *traffic = plan_matrix((matrix){1, 1, 1, 0, 0}, 2);
    for (uint64_t batches = 4; batches <= 64; batches *= 4) {
        uint64_t slot = BYTES / batches;
        banyan_forecast found = forecast(traffic, &slow, BANYAN_FORECAST_PIPELINE, slot, false);
        double one = (double)slot / RATE;
        check_near("sends", found.seconds, (double)batches * one + one + LATENCY);
        CHECK(found.batches == batches && found.rounds == batches && found.slot_bytes == slot);
    }
    /* Packing and unpacking take four times as long as sending. */
    slow.local = RATE / 2;
    for (uint64_t batches = 4; batches <= 64; batches *= 4) {
        double one = (double)(BYTES / batches) / RATE;
        banyan_forecast found =
            forecast(traffic, &slow, BANYAN_FORECAST_PIPELINE, BYTES / batches, false);
        check_near("packs", found.seconds, 4 * (double)batches * one + one + 4 * one + LATENCY);
    }
    banyan_traffic_destroy(traffic);
}

/* Two slots, which come back a round trip after they were filled. */
static void a_long_way_is_waited_for_every_second_batch(void **state)
{
    (void)state;
    star far = plain;
    double way = 1e-3;
    far.latency_ns = way / 2 * 1e9;
    banyan_traffic *traffic = plan_matrix((matrix){1, 1, 1, 0, 0}, 2);
    for (uint64_t batches = 64; batches <= 1024; batches *= 4) {
        double one = (double)(BYTES / batches) / RATE, half = (double)(batches / 2);
        banyan_forecast found =
            forecast(traffic, &far, BANYAN_FORECAST_PIPELINE, BYTES / batches, false);
        check_near("grants", found.seconds, (half - 1) * (one + 2 * way) + 2 * one + way);
    }
    banyan_traffic_destroy(traffic);
}

static uint64_t link_bytes(const banyan_simulation *simulation)
{
    uint64_t sum = 0;
    banyan_link_use use;
    for (size_t i = 0; i < RANKS; i++) {
        CHECK(banyan_simulation_link(simulation, 2 * i, &use));
        sum += use.bytes;
        CHECK(use.full <= 1 + 1e-9 && use.busy <= 1 + 1e-9);
    }
    return sum;
}

static void check_forecast(const banyan_traffic *traffic, const banyan_topology *topology,
                           banyan_forecast_options options)
{
    banyan_traffic_info info = banyan_traffic_describe(traffic);
    banyan_simulation *simulation;
    banyan_forecast once, again;
    CHECK_OK(banyan_traffic_simulate(traffic, topology, &options, &once, &simulation));
    CHECK_OK(banyan_traffic_simulate(traffic, topology, &options, &again, NULL));
    uint64_t most = info.most_sent > info.most_received ? info.most_sent : info.most_received;
    uint64_t carried = link_bytes(simulation);
    /* Slots have gaps: segments begin at multiples of 16 bytes. */
    uint64_t slack = options.service == BANYAN_FORECAST_PIPELINE ? 16 * info.transfers * 4 : RANKS;
    CHECK(once.seconds == again.seconds && once.seconds == banyan_simulation_seconds(simulation));
    CHECK(once.critical_rank >= 0 && once.critical_rank < info.ranks);
    CHECK(banyan_simulation_rank_seconds(simulation, once.critical_rank) == once.seconds);
    CHECK(once.seconds >= (double)most / RATE);
    CHECK(carried + RANKS >= info.bytes && carried <= info.bytes + slack,
          "%llu bytes over links, %llu between ranks", (unsigned long long)carried,
          (unsigned long long)info.bytes);
    banyan_simulation_destroy(simulation);
}

static void bytes_are_conserved_and_links_are_no_faster_than_they_are(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    banyan_topology *topology = star_make(&plain);
    for (int turn = 0; turn < 30; turn++) {
        matrix of = {.from = (int)random_between(&random, 1, RANKS),
                     .to = (int)random_between(&random, 1, RANKS),
                     .from_dim = (int)random_between(&random, 0, 1),
                     .to_dim = (int)random_between(&random, 0, 1)};
        if (of.from + of.to <= RANKS && random_between(&random, 0, 1))
            of.to_first = of.from;
        banyan_traffic *traffic = plan_matrix(of, RANKS);
        banyan_traffic_info info = banyan_traffic_describe(traffic);
        CHECK(info.bytes + info.local_bytes == BYTES);
        banyan_forecast_options options = BANYAN_FORECAST_OPTIONS_INIT;
        check_forecast(traffic, topology, options);
        options.service = BANYAN_FORECAST_PIPELINE;
        options.slot_bytes = (uint64_t)random_between(&random, 1 << 12, 1 << 22);
        check_forecast(traffic, topology, options);
        options.optimal_rounds = true;
        check_forecast(traffic, topology, options);
        banyan_traffic_destroy(traffic);
    }
    banyan_topology_destroy(topology);
}

static void optimal_rounds_are_as_many_as_the_busiest_rank_has_batches(void **state)
{
    (void)state;
    /* Rows over 8 to rows over 5 of these: partners are few and unequal. */
    const uint64_t slot = 1 << 16;
    banyan_traffic *traffic = plan_matrix((matrix){8, 5, 0, 0, 0}, 8);
    banyan_traffic_info info = banyan_traffic_describe(traffic);
    banyan_forecast rotated = forecast(traffic, &plain, BANYAN_FORECAST_PIPELINE, slot, false);
    banyan_forecast coloured = forecast(traffic, &plain, BANYAN_FORECAST_PIPELINE, slot, true);
    /* The last batch of each partner may be less than full. */
    uint64_t least = (info.most_received + slot - 1) / slot, most = least + RANKS;
    CHECK(coloured.batches == rotated.batches);
    CHECK(coloured.rounds >= least && coloured.rounds <= most, "%llu rounds for %llu to %llu",
          (unsigned long long)coloured.rounds, (unsigned long long)least, (unsigned long long)most);
    CHECK(coloured.rounds < rotated.rounds);
    banyan_traffic_destroy(traffic);
}

/* Four ranks of one node hold the rows of a matrix; four of another need all of it. */
static banyan_status gather_layouts(void *context, int rank, banyan_layout *source,
                                    banyan_layout *destination)
{
    (void)context;
    const int64_t shape[] = {ROWS, COLUMNS};
    banyan_mesh from = {.ndim = 1, .extent = {4}}, to = {.ndim = 1, .extent = {4}, .first_rank = 4};
    banyan_placement rows = {BANYAN_SHARD, 0}, whole = {BANYAN_REPLICATE, 0};
    banyan_layout_add_sharded(source, "weight", BANYAN_BF16, 2, shape, &from, &rows, rank);
    banyan_layout_add_sharded(destination, "weight", BANYAN_BF16, 2, shape, &to, &whole, rank);
    return BANYAN_OK;
}

static void data_that_is_passed_on_follows_one_wave_behind(void **state)
{
    (void)state;
    banyan_reshard_sample_world world = {
        .world_size = 8, .layouts = gather_layouts, .ranks_per_node = 4};
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_traffic *traffic;
    banyan_traffic_links links;
    CHECK_OK(banyan_traffic_plan(&world, NULL, &traffic));
    CHECK_OK(banyan_traffic_describe_links(traffic, &links));
    CHECK(links.nodes == 2 && links.turns == 2 && links.least_bytes == BYTES);
    CHECK(links.in.links == 4 && links.in.most == BYTES / 4 && links.in.least == BYTES / 4);
    CHECK(links.out.links == 4 && links.out.most == BYTES / 4 && links.out.bytes == BYTES);
    CHECK(links.pairs.links == 1 && links.pairs.bytes == BYTES);
    CHECK(links.inside.links == 12 && links.inside.least == BYTES / 4);
    /* A quarter comes over the network, and then three from the others. */
    banyan_forecast direct = forecast(traffic, &plain, BANYAN_FORECAST_DIRECT, 0, false);
    check_near("direct", direct.seconds, (double)BYTES / RATE + 2 * LATENCY);
    banyan_forecast pipeline = forecast(traffic, &plain, BANYAN_FORECAST_PIPELINE, 0, true);
    check_near("pipeline", pipeline.seconds, (double)BYTES / RATE + 2 * LATENCY);
    banyan_traffic_destroy(traffic);
    options.each_rank_fetches = true;
    CHECK_OK(banyan_traffic_plan(&world, &options, &traffic));
    CHECK_OK(banyan_traffic_describe_links(traffic, &links));
    CHECK(links.turns == 0 && links.in.most == BYTES && links.in.bytes == 4 * BYTES);
    CHECK(links.inside.links == 0 && links.least_bytes == BYTES);
    banyan_traffic_destroy(traffic);
}

static void impossible_traffic_is_refused(void **state)
{
    (void)state;
    banyan_traffic *traffic = plan_matrix((matrix){4, 4, 0, 0, 1}, 4), *none;
    banyan_topology *topology;
    banyan_forecast_options options = BANYAN_FORECAST_OPTIONS_INIT;
    banyan_forecast found;
    const banyan_reshard_sample_world nobody = {.world_size = 0, .layouts = matrix_layouts};
    star small = plain;
    small.processors = 3;
    topology = star_make(&small);
    CHECK_FAILS(banyan_traffic_plan(&nobody, NULL, &none), BANYAN_ERR_INVALID, "0 ranks");
    CHECK_FAILS(banyan_traffic_simulate(traffic, topology, NULL, &found, NULL), BANYAN_ERR_INVALID,
                "4 ranks, and topology star has 3 processors");
    options.service = BANYAN_FORECAST_PIPELINE;
    options.slot_bytes = 1;
    CHECK_FAILS(banyan_traffic_simulate(traffic, topology, &options, &found, NULL),
                BANYAN_ERR_INVALID, "does not fit a slot of 1 bytes");
    options.service = (banyan_forecast_service)7;
    CHECK_FAILS(banyan_traffic_simulate(traffic, topology, &options, &found, NULL),
                BANYAN_ERR_INVALID, "no copy service 7");
    banyan_topology_destroy(topology);
    banyan_traffic_destroy(traffic);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_to_columns_need_the_staging_of_one_sender),
        cmocka_unit_test(direct_reads_need_the_staging_of_one_receiver),
        cmocka_unit_test(a_pipeline_shows_its_slowest_stage),
        cmocka_unit_test(a_long_way_is_waited_for_every_second_batch),
        cmocka_unit_test(bytes_are_conserved_and_links_are_no_faster_than_they_are),
        cmocka_unit_test(optimal_rounds_are_as_many_as_the_busiest_rank_has_batches),
        cmocka_unit_test(data_that_is_passed_on_follows_one_wave_behind),
        cmocka_unit_test(impossible_traffic_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
