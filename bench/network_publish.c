/* Versions of a model from trainers on one node to engines on another. Run by bench/network.py,
 * which makes the nodes.
 *
 *     network_publish densities [off]  2 trainers, 2 engine ranks: versions of which some elements
 *                                      have changed, and the whole model by a reshard; off:
 *                                      without compression
 *     network_publish step             1 trainer, 1 engine: the trainer's step alone, and while the
 *                                      engine fetches
 *     network_publish join             1 trainer, and an engine for each other rank: all come at
 *                                      once, and then get a version of which 3 % have changed
 *
 * Rank 0 prints one JSON object. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define SECRET "00112233445566778899aabbccddeeff"
#define ROWS 4096
#define ROUNDS 3
#define MOST_RANKS 128
#define WAIT_NS (UINT64_C(60) * 1000000000)

/* One of the two jobs, as its rank sees it. */
struct job {
    banyan_world *all, *world; /* `world`: of this job */
    int trainers;
    bool is_trainer;
    banyan_layout *layout, *from, *to; /* `from`, `to`: for a reshard in `all` */
    banyan_tensors *tensors;
    size_t tensor_count;
    int64_t columns;
    banyan_publication *publication;
    banyan_subscription *subscription;
    uint64_t version, seed;
};

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Trainers hold rows, and the ranks of an engine columns. */
static void add_tensors(banyan_layout *layout, const struct job *job, int first_rank, int rank,
                        int count, int64_t dim)
{
    int64_t shape[] = {ROWS, job->columns};
    banyan_mesh mesh = {.ndim = 1, .extent = {count}, .first_rank = first_rank};
    banyan_placement by_dim = {BANYAN_SHARD, dim};
    for (size_t i = 0; i < job->tensor_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%zu.weight", i);
        banyan_layout_add_sharded(layout, name, BANYAN_BF16, 2, shape, &mesh, &by_dim, rank);
    }
}

static uint64_t elems_here(const struct job *job)
{
    uint64_t elems = 0;
    for (size_t i = 0; i < job->tensor_count; i++) {
        const DLTensor *tensor = banyan_tensors_get(job->tensors, i);
        elems += (uint64_t)(tensor->shape[0] * tensor->shape[1]);
    }
    return elems;
}

/* Change a share of the elements, at random places. 1: all of them. */
static void change(struct job *job, double share)
{
    for (size_t i = 0; i < job->tensor_count; i++) {
        const DLTensor *tensor = banyan_tensors_get(job->tensors, i);
        uint16_t *elems = tensor->data;
        uint64_t count = (uint64_t)(tensor->shape[0] * tensor->shape[1]);
        if (share >= 1) {
            for (uint64_t k = 0; k < count; k++)
                elems[k] ^= 1;
            continue;
        }
        for (uint64_t k = 0; k < (uint64_t)(share * (double)count); k++)
            elems[next_random(&job->seed) % count] ^= 1 + next_random(&job->seed) % 7;
    }
}

/* Bf16 of about a normal distribution, of mean 0 and deviation 0.02: sums of four random numbers.
 */
static uint16_t random_weight(uint64_t *seed)
{
    uint64_t random = next_random(seed);
    int64_t sum = -2 * 65535;
    for (int i = 0; i < 4; i++)
        sum += (int64_t)(random >> 16 * i & 65535);
    float value = (float)sum * (0.02f / 37837); /* the sum's deviation */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* `engine_ranks`: of one engine; the first `trainers` ranks are the trainer. */
static void job_open(struct job *job, int trainers, int engine_ranks, size_t tensors,
                     int64_t columns)
{
    *job = (struct job){.trainers = trainers, .tensor_count = tensors, .columns = columns};
    need(banyan_world_open(NULL, &job->all));
    int rank = banyan_world_rank(job->all);
    job->is_trainer = rank < trainers;
    int count = job->is_trainer ? trainers : engine_ranks;
    int first = job->is_trainer ? 0 : trainers + (rank - trainers) / engine_ranks * engine_ranks;
    int ranks[MOST_RANKS];
    for (int i = 0; i < count; i++)
        ranks[i] = first + i;
    need(banyan_world_split(job->all, ranks, count, &job->world));
    need(banyan_layout_create(&job->layout));
    need(banyan_layout_create(&job->from));
    need(banyan_layout_create(&job->to));
    add_tensors(job->layout, job, 0, rank - first, count, job->is_trainer ? 0 : 1);
    add_tensors(job->is_trainer ? job->from : job->to, job, first, rank, count,
                job->is_trainer ? 0 : 1);
    need(banyan_tensors_alloc(job->layout, NULL, &job->tensors));
    job->seed = 88172645463325252 + (uint64_t)rank;
    if (job->is_trainer)
        for (size_t i = 0; i < tensors; i++) {
            const DLTensor *tensor = banyan_tensors_get(job->tensors, i);
            uint16_t *elems = tensor->data;
            for (int64_t k = 0; k < tensor->shape[0] * tensor->shape[1]; k++)
                elems[k] = random_weight(&job->seed);
        }
}

/* Open the publication, and subscribe to it. */
static void job_start(struct job *job, banyan_publication_compression compression)
{
    char address[128] = "";
    banyan_publication_options options = BANYAN_PUBLICATION_OPTIONS_INIT;
    options.compression = compression;
    if (job->is_trainer) {
        need(banyan_publication_open(job->world, job->layout, NULL, SECRET, &options,
                                     &job->publication));
        snprintf(address, sizeof address, "%s", banyan_publication_address(job->publication));
    }
    need(banyan_world_broadcast(job->all, address, sizeof address, 0));
    if (!job->is_trainer)
        need(banyan_subscription_open(job->world, job->layout, job->tensors, address, SECRET, NULL,
                                      &job->subscription));
}

static void job_close(struct job *job)
{
    need(banyan_world_barrier(job->all));
    banyan_subscription_close(job->subscription);
    need(banyan_world_barrier(job->all)); /* engines that leave first are not missed */
    banyan_publication_close(job->publication);
    banyan_tensors_destroy(job->tensors);
    banyan_layout_destroy(job->layout);
    banyan_layout_destroy(job->from);
    banyan_layout_destroy(job->to);
    need(banyan_world_close(job->world));
    need(banyan_world_close(job->all));
}

/* Duration of one version, in seconds. */
struct update {
    double all, publish, commit; /* `all`: from the call of publish to the last engine's commit */
    uint64_t changed, sent_bytes;
};

/* Largest or sum of a value of all ranks. */
static double largest(const struct job *job, double mine)
{
    int size = banyan_world_size(job->all);
    double values[MOST_RANKS], found = mine;
    need(banyan_world_allgather(job->all, &mine, sizeof mine, values));
    for (int i = 0; i < size; i++)
        found = values[i] > found ? values[i] : found;
    return found;
}

static uint64_t sum(const struct job *job, uint64_t mine)
{
    int size = banyan_world_size(job->all);
    uint64_t values[MOST_RANKS], found = 0;
    need(banyan_world_allgather(job->all, &mine, sizeof mine, values));
    for (int i = 0; i < size; i++)
        found += values[i];
    return found;
}

/* Publish what the tensors hold, and wait until all engines have committed it. */
static struct update job_update(struct job *job)
{
    struct update update = {0};
    banyan_publish_report report = {0};
    uint64_t sent = 0, staged, committed = 0;
    if (job->is_trainer)
        sent = banyan_publication_get_status(job->publication).sent_bytes;
    job->version++;
    need(banyan_world_barrier(job->all));
    double start = now_s(), publish = 0, commit = 0;
    if (job->is_trainer) {
        need(banyan_publication_publish(job->publication, job->tensors, job->version, &report));
        publish = now_s() - start;
    }
    while (!job->is_trainer && committed < job->version) {
        need(banyan_subscription_wait(job->subscription, committed, WAIT_NS, &staged));
        double began = now_s();
        need(banyan_subscription_commit(job->subscription, &committed));
        commit = now_s() - began;
    }
    need(banyan_world_barrier(job->all));
    update.all = largest(job, now_s() - start);
    update.publish = largest(job, publish);
    update.commit = largest(job, commit);
    update.changed = sum(job, report.changed);
    if (job->is_trainer)
        sent = banyan_publication_get_status(job->publication).sent_bytes - sent;
    update.sent_bytes = sum(job, sent);
    return update;
}

/* Seconds of a reshard of all elements, the best of some. */
static double whole_reshard(struct job *job)
{
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    double best = 1e9;
    need(banyan_copy_service_open(job->all, NULL, NULL, &service));
    need(banyan_reshard_plan_create(job->from, job->to, job->all, NULL, &plan));
    for (int round = 0; round <= ROUNDS; round++) { /* the first one prepares */
        need(banyan_world_barrier(job->all));
        double start = now_s();
        need(banyan_reshard_execute(plan, job->is_trainer ? job->tensors : NULL,
                                    job->is_trainer ? NULL : job->tensors, service, job->all, NULL,
                                    NULL));
        need(banyan_world_barrier(job->all));
        double took = largest(job, now_s() - start);
        best = round > 0 && took < best ? took : best;
    }
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    return best;
}

static void measure_densities(banyan_publication_compression compression)
{
    static const double shares[] = {0.001, 0.01, 0.03, 0.1, 0.5, 1};
    enum { SHARES = sizeof shares / sizeof *shares };
    struct job job;
    struct update best[SHARES];
    job_open(&job, 2, 2, 8, 4096);
    uint64_t elems = sum(&job, job.is_trainer ? elems_here(&job) : 0);
    double whole = whole_reshard(&job);
    job_start(&job, compression);
    struct update first = job_update(&job);
    for (int i = 0; i < SHARES; i++) {
        for (int round = 0; round < ROUNDS; round++) {
            if (job.is_trainer)
                change(&job, shares[i]);
            struct update one = job_update(&job);
            if (round == 0 || one.all < best[i].all)
                best[i] = one;
        }
    }
    if (banyan_world_rank(job.all) == 0) {
        printf("{\"bytes\": %" PRIu64 ", \"whole_seconds\": %.6f, \"first_seconds\": %.6f, "
               "\"versions\": [",
               elems * 2, whole, first.all);
        for (int i = 0; i < SHARES; i++)
            printf("%s{\"share\": %g, \"seconds\": %.6f, \"publish_seconds\": %.6f, "
                   "\"commit_seconds\": %.6f, \"changed\": %" PRIu64 ", \"sent_bytes\": %" PRIu64
                   "}",
                   i ? ", " : "", shares[i], best[i].all, best[i].publish, best[i].commit,
                   best[i].changed, best[i].sent_bytes);
        printf("]}\n");
    }
    job_close(&job);
}

/* Work of a trainer: sums of products over its memory, on one core. Return the seconds. */
static double step(const struct job *job)
{

    double start = now_s();
    float total = 0;
    for (int round = 0; round < 8; round++) {
        for (size_t i = 0; i < job->tensor_count; i++) {
            const DLTensor *tensor = banyan_tensors_get(job->tensors, i);
            const uint16_t *elems = tensor->data;
            for (int64_t k = 0; k < tensor->shape[0] * tensor->shape[1]; k++)
                total += (float)elems[k] * (float)(elems[k] ^ round);
        }
    }
    volatile float kept = total; /* or nothing need be computed */
    (void)kept;
    return now_s() - start;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Steps without and with a fetch in the background, in turn. */
static void measure_step(void)
{
    enum { STEPS = 15 };
    struct job job;
    double alone[STEPS], beside[STEPS];
    job_open(&job, 1, 1, 4, 4096);
    job_start(&job, BANYAN_COMPRESSION_AUTOMATIC);
    (void)job_update(&job);
    for (int i = 0; i < STEPS; i++) {
        uint64_t staged, committed = job.version;
        alone[i] = job.is_trainer ? step(&job) : 0;
        if (job.is_trainer) {
            change(&job, 0.03);
            need(banyan_publication_publish(job.publication, job.tensors, job.version + 1, NULL));
            beside[i] = step(&job);
        } else {
            need(banyan_subscription_wait(job.subscription, job.version, WAIT_NS, &staged));
        }
        job.version++;
        need(banyan_world_barrier(job.all)); /* what follows is not a part of a step */
        if (!job.is_trainer)
            need(banyan_subscription_commit(job.subscription, &committed));
        need(banyan_world_barrier(job.all));
    }
    if (job.is_trainer) {
        qsort(alone, STEPS, sizeof *alone, compare_doubles);
        qsort(beside, STEPS, sizeof *beside, compare_doubles);
        printf("{\"alone_seconds\": %.6f, \"beside_seconds\": %.6f}\n", alone[STEPS / 2],
               beside[STEPS / 2]);
    }
    job_close(&job);
}

static void measure_joining(void)
{
    struct job job;
    job_open(&job, 1, 1, 4, 256);
    int engines = banyan_world_size(job.all) - 1;
    char address[128] = "";
    if (job.is_trainer) {
        need(banyan_publication_open(job.world, job.layout, NULL, SECRET, NULL, &job.publication));
        need(banyan_publication_publish(job.publication, job.tensors, ++job.version, NULL));
        snprintf(address, sizeof address, "%s", banyan_publication_address(job.publication));
    }
    need(banyan_world_broadcast(job.all, address, sizeof address, 0));
    need(banyan_world_barrier(job.all));
    double start = now_s();
    if (!job.is_trainer) {
        uint64_t version;
        need(banyan_subscription_open(job.world, job.layout, job.tensors, address, SECRET, NULL,
                                      &job.subscription));
        need(banyan_subscription_wait(job.subscription, 0, WAIT_NS, &version));
        need(banyan_subscription_commit(job.subscription, &job.version));
    }
    double own = now_s() - start, last = largest(&job, own);
    if (job.is_trainer)
        change(&job, 0.03);
    struct update update = job_update(&job);
    if (job.is_trainer) {
        banyan_publication_status status = banyan_publication_get_status(job.publication);
        printf("{\"engines\": %d, \"joined\": %" PRIu64 ", \"dropped\": %" PRIu64
               ", \"bytes\": %" PRIu64 ", \"join_seconds\": %.6f, \"update_seconds\": %.6f, "
               "\"publish_seconds\": %.6f, \"sent_bytes\": %" PRIu64 "}\n",
               engines, status.joined, status.dropped, elems_here(&job) * 2, last, update.all,
               update.publish, update.sent_bytes);
    }
    job_close(&job);
}

int main(int argc, char **argv)
{
    const char *part = argc >= 2 ? argv[1] : "";
    if (strcmp(part, "densities") == 0)
        measure_densities(argc > 2 ? BANYAN_COMPRESSION_OFF : BANYAN_COMPRESSION_AUTOMATIC);
    else if (strcmp(part, "step") == 0)
        measure_step();
    else if (strcmp(part, "join") == 0)
        measure_joining();
    else
        return 1;
}
