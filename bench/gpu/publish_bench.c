/* Publications of tensors on one GPU, with the shapes of Llama-3.1-8B in bf16 (16 GB).
 *
 *     usage: gpu_publish_bench [kernels] [update] [loads] [serving] [--shadow] [--layers N]
 *
 *     kernels   find, pack and exchange changes, by the module's functions
 *     update    whole updates: a trainer and an engine, two processes, each on a GPU if there are
 *               two
 *     loads     the same, while either side multiplies matrices or reads its weights
 *     serving   the same for an engine whose trainer lies in host memory, for one GPU
 *     --shadow  the engine exchanges its tensors with a shadow
 *
 * Bandwidth is that of a copy within the GPU in the same run, read and written. `sectors` reads and
 * writes the sectors that a commit changes, and does nothing else. Processes that
 * share a GPU take turns on it, so `loads` says little with one GPU. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include <banyan/banyan.h>

#include "core/deadline.h"
#include "core/module.h"
#include "memory/device.h"
#include "publish/delta/changes.h"
#include "publish/delta/device.h"
#include "publish/loads.h"

#define SECRET "00112233445566778899aabbccddeeff"
#define REPEATS 5
#define COPY_BYTES ((size_t)4 << 30)
#define WAVE_BYTES ((uint64_t)32 << 20)

static const double shares[] = {0, 0.001, 0.01, 0.03, 0.1, 0.3, 1};
static int layers = 32, device = 0;
static bool has_shadow;

static void need(banyan_status status)
{
    if (status == BANYAN_OK)
        return;
    fprintf(stderr, "gpu_publish_bench: %s\n", banyan_last_error());
    _exit(1);
}

static void cuda_need(cudaError_t result, const char *call)
{
    if (result == cudaSuccess)
        return;
    fprintf(stderr, "gpu_publish_bench: %s: %s\n", call, cudaGetErrorString(result));
    _exit(1);
}
#define CUDA(call) cuda_need((call), #call)

static double now_ms(void)
{
    return (double)time_now_ns() / 1e6;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count > 0 ? values[count / 2] : 0;
}

/* ---- model ---- */

struct model {
    banyan_layout *layout;
    banyan_tensors *tensors;
    size_t count;
    uint64_t elems;
};

static void add_matrix(banyan_layout *layout, const char *name, int64_t rows, int64_t columns)
{
    banyan_piece piece = {.name = name,
                          .ndim = 2,
                          .shape = {rows, columns},
                          .dim_map = {0, 1},
                          .box = {.ndim = 2, .extent = {rows, columns}}};
    piece.tensor = banyan_layout_add_tensor(layout, name, BANYAN_BF16, 2, piece.shape);
    banyan_layout_add_piece(layout, &piece);
}

static banyan_layout *layout_make(void)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } parts[] = {{"q_proj", 4096, 4096},     {"k_proj", 1024, 4096},     {"v_proj", 1024, 4096},
                 {"o_proj", 4096, 4096},     {"gate_proj", 14336, 4096}, {"up_proj", 14336, 4096},
                 {"down_proj", 4096, 14336}, {"norms", 2, 4096}};
    banyan_layout *layout;
    need(banyan_layout_create(&layout));
    add_matrix(layout, "embed_tokens", 128256, 4096);
    for (int i = 0; i < layers; i++) {
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d.%s", i, parts[k].name);
            add_matrix(layout, name, parts[k].rows, parts[k].columns);
        }
    }
    add_matrix(layout, "lm_head", 128256, 4096);
    need(banyan_layout_check(layout));
    return layout;
}

static uint64_t elems_of(const banyan_tensors *set, size_t i)
{
    const DLTensor *tensor = banyan_tensors_get(set, i);
    return (uint64_t)(tensor->shape[0] * tensor->shape[1]);
}

static void *at(const banyan_tensors *set, size_t i)
{
    const DLTensor *tensor = banyan_tensors_get(set, i);
    return (char *)tensor->data + tensor->byte_offset;
}

/* Describe the model without its elements. */
static struct model model_of(banyan_layout *layout, banyan_tensors *tensors)
{
    struct model made = {layout, tensors, banyan_tensors_count(tensors), 0};
    for (size_t i = 0; i < made.count; i++)
        made.elems += elems_of(tensors, i);
    return made;
}

static struct model model_make(bool is_swappable)
{
    banyan_layout *layout = layout_make();
    banyan_tensors *tensors;
    CUDA(cudaSetDevice(device));
    need(is_swappable ? banyan_tensors_alloc_swappable(layout, BANYAN_CUDA(device), &tensors)
                      : banyan_tensors_alloc_on(layout, NULL, BANYAN_CUDA(device), &tensors));
    struct model made = model_of(layout, tensors);
    for (size_t i = 0; i < made.count; i++)
        loads_fill(at(made.tensors, i), elems_of(made.tensors, i), i, 0);
    CUDA(cudaDeviceSynchronize());
    return made;
}

/* In host memory. */
static struct model model_make_here(void)
{
    banyan_layout *layout = layout_make();
    banyan_tensors *tensors;
    need(banyan_tensors_alloc(layout, NULL, &tensors));
    return model_of(layout, tensors);
}

/* Change a share of the elements in host memory, which lie at random distances. */
static void model_change_here(const struct model *model, double share, uint64_t seed)
{
    uint64_t most = share > 0 ? (uint64_t)(2 / share) : UINT64_MAX / 2, x = seed * 2 + 1;
    for (size_t i = 0; i < model->count; i++) {
        uint16_t *elems = at(model->tensors, i);
        for (uint64_t at = 0, end = elems_of(model->tensors, i); at < end; elems[at - 1]++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            if (x % most + 1 > end - at)
                break;
            at += x % most + 1;
        }
    }
}

static void model_change(const struct model *model, double share, uint64_t seed)
{
    for (size_t i = 0; i < model->count; i++)
        loads_change(at(model->tensors, i), elems_of(model->tensors, i), share, seed * 1000 + i, 0);
    CUDA(cudaDeviceSynchronize());
}

/* ---- kernels ---- */

/* Return GB/s, read and written. */
static double copy_bandwidth(void)
{
    char *memory;
    double best = 0;
    CUDA(cudaMalloc((void **)&memory, 2 * COPY_BYTES));
    for (int i = 0; i < REPEATS + 1; i++) {
        double start = now_ms();
        CUDA(cudaMemcpyAsync(memory, memory + COPY_BYTES, COPY_BYTES, cudaMemcpyDeviceToDevice, 0));
        CUDA(cudaDeviceSynchronize());
        double gbs = 2e-6 * (double)COPY_BYTES / (now_ms() - start);
        best = gbs > best ? gbs : best;
    }
    CUDA(cudaFree(memory));
    return best;
}

struct kernels {
    const delta_device_ops *ops;
    void *engine;
    struct model live;
    banyan_tensors *kept, *served;
    uint64_t *maps, words;
    struct delta_compare *compared;
    delta_source *sources;
    const uint64_t **map_of;
    double bandwidth;
};

static void kernels_open(struct kernels *all)
{
    const module_tables *tables;
    *all = (struct kernels){.live = model_make(false), .bandwidth = copy_bandwidth()};
    size_t count = all->live.count;
    need(module_load("cuda", &tables));
    all->ops = tables->delta;
    need(all->ops->open(0, &all->engine));
    need(banyan_tensors_alloc_on(all->live.layout, NULL, BANYAN_CUDA(device), &all->kept));
    need(banyan_tensors_alloc_on(all->live.layout, NULL, BANYAN_CUDA(device), &all->served));
    all->compared = calloc(count, sizeof *all->compared);
    all->sources = calloc(count, sizeof *all->sources);
    all->map_of = calloc(count, sizeof *all->map_of);
    for (size_t i = 0; i < count; i++)
        all->words += changes_words(elems_of(all->kept, i));
    CUDA(cudaMalloc((void **)&all->maps, 8 * all->words));
    uint64_t *map = all->maps;
    for (size_t i = 0; i < count; i++) {
        uint64_t elems = elems_of(all->kept, i);
        all->compared[i] =
            (struct delta_compare){.live = strided_view_dense(at(all->live.tensors, i), 2, elems),
                                   .kept = at(all->kept, i),
                                   .map = map};
        all->map_of[i] = map;
        all->sources[i] = (delta_source){.box = strided_view_dense(at(all->kept, i), 2, elems),
                                         .memory = at(all->kept, i),
                                         .maps = &all->map_of[i],
                                         .map_count = 1};
        map += changes_words(elems);
    }
}

static uint64_t find(struct kernels *all, double *ms)
{
    uint64_t changed = 0;
    double start = now_ms();
    need(all->ops->find(all->engine, all->compared, all->live.count, NULL));
    *ms = now_ms() - start;
    for (size_t i = 0; i < all->live.count; i++)
        changed += all->compared[i].changed;
    return changed;
}

/* Streams of a version on the host and on the GPU, and the table of their parts. */
struct packed {
    struct delta_part *parts;
    strided_view *boxes;
    uint64_t *ends, part_count, bytes;
    char *there;
    double measure_ms, pack_ms;
};

static void pack(struct kernels *all, struct packed *made)
{
    const uint64_t *sizes, *next;
    void *packing, *pinned;
    size_t count = all->live.count;
    uint64_t blocks = 0, parts = 0, first_end = 0;
    for (size_t i = 0; i < count; i++) {
        blocks += delta_blocks(elems_of(all->kept, i));
        parts += delta_blocks(elems_of(all->kept, i)) / DELTA_PART_BLOCKS + 1;
    }
    *made = (struct packed){.parts = calloc(parts, sizeof *made->parts),
                            .boxes = calloc(count, sizeof *made->boxes),
                            .ends = calloc(blocks, sizeof *made->ends)};
    struct delta_piece *pieces = calloc(parts, sizeof *pieces);
    double start = now_ms();
    need(all->ops->pack_open(all->engine, all->sources, count, &packing, &sizes));
    made->measure_ms = now_ms() - start;
    for (uint64_t i = 0; i < blocks; i++)
        made->bytes += sizes[i];
    need(all->ops->host_alloc(all->engine, WAVE_BYTES + ((uint64_t)1 << 20), &pinned));
    CUDA(cudaMalloc((void **)&made->there, made->bytes));
    next = sizes;
    uint64_t wave = 0, piece_count = 0, at_there = 0;
    for (size_t i = 0; i < count; i++) {
        made->boxes[i] = strided_view_dense(at(all->served, i), 2, elems_of(all->served, i));
        uint64_t box_blocks = delta_blocks(elems_of(all->kept, i));
        for (uint64_t first = 0; first < box_blocks; first += DELTA_PART_BLOCKS) {
            uint64_t some =
                box_blocks - first < DELTA_PART_BLOCKS ? box_blocks - first : DELTA_PART_BLOCKS;
            uint64_t bytes = 0;
            for (uint64_t k = 0; k < some; k++)
                made->ends[first_end + k] = bytes += *next++;
            pieces[piece_count++] = (struct delta_piece){i, first, some, wave};
            made->parts[made->part_count++] =
                (struct delta_part){.box = i,
                                    .first = first,
                                    .count = some,
                                    .stream = made->there + at_there + wave,
                                    .ends = made->ends + first_end};
            wave += bytes;
            first_end += some;
            if (wave < WAVE_BYTES && (i + 1 < count || first + some < box_blocks))
                continue;
            start = now_ms();
            need(all->ops->pack(packing, pieces, piece_count, pinned, wave));
            made->pack_ms += now_ms() - start;
            CUDA(cudaMemcpy(made->there + at_there, pinned, wave, cudaMemcpyHostToDevice));
            at_there += wave;
            wave = piece_count = 0;
        }
    }
    all->ops->pack_close(packing);
    all->ops->host_free(all->engine, pinned);
    free(pieces);
}

/* Exchange several times, and leave the new elements. */
static double exchange_ms(struct kernels *all, struct packed *version)
{
    void *staged;
    double times[2 * REPEATS + 1];
    need(all->ops->stage(all->engine, version->boxes, all->live.count, version->parts,
                         version->part_count, &staged));
    for (int i = 0; i < 2 * REPEATS + 1; i++) {
        double start = now_ms();
        need(all->ops->swap(staged, 0, version->part_count, 0, false, NULL));
        need(all->ops->wait(all->engine, NULL));
        times[i] = now_ms() - start;
    }
    all->ops->unstage(all->engine, staged);
    return median(times, 2 * REPEATS + 1);
}

/* Return how long it takes to read and write the sectors that have changes, and nothing else. An
 * even number of times, so that the elements stay. */
static double rewrite_ms(struct kernels *all)
{
    double times[2 * REPEATS];
    for (int i = 0; i < 2 * REPEATS; i++) {
        CUDA(cudaDeviceSynchronize());
        double start = now_ms();
        for (size_t t = 0; t < all->live.count; t++)
            loads_rewrite_sectors(at(all->served, t), elems_of(all->served, t), all->map_of[t], 0);
        CUDA(cudaDeviceSynchronize());
        times[i] = now_ms() - start;
    }
    return median(times, 2 * REPEATS);
}

static void check_served(struct kernels *all)
{
    double ms;
    for (size_t i = 0; i < all->live.count; i++)
        all->compared[i].kept = at(all->served, i);
    if (find(all, &ms) != 0) {
        fprintf(stderr, "gpu_publish_bench: the engine has other elements than the trainer\n");
        _exit(1);
    }
    for (size_t i = 0; i < all->live.count; i++)
        all->compared[i].kept = at(all->kept, i);
}

/* Exchange memory of the model's size with a shadow, which lies there before the pause. */
static void bench_remapping(size_t bytes)
{
    const memory_device_ops *ops;
    device_swappable *memory;
    void *live, *shadow;
    double swaps[2 * REPEATS], copies[REPEATS];
    unsigned char seen = 0;
    need(memory_device_find(kDLCUDA, &ops));
    need(ops->swappable_create(device, bytes, &memory, &live));
    need(ops->swappable_double(memory, &shadow));
    for (int i = 0; i < REPEATS; i++) {
        double start = now_ms();
        need(ops->copy(shadow, live, bytes));
        copies[i] = now_ms() - start;
    }
    need(ops->fill(live, 1, bytes));
    need(ops->fill(shadow, 2, bytes));
    for (int i = 0; i < 2 * REPEATS; i++) {
        double start = now_ms();
        need(ops->swappable_swap(memory));
        swaps[i] = now_ms() - start;
        need(ops->copy(&seen, (char *)live + bytes - 1, 1));
        if (seen != (i % 2 == 0 ? 2 : 1)) {
            fprintf(stderr, "gpu_publish_bench: the memory was not exchanged\n");
            _exit(1);
        }
    }
    double ms = median(swaps, 2 * REPEATS);
    printf(
        "a swap with a shadow of %.2f GB: %.2f ms, %.3f ms for each GiB (goal 1 ms); the copy to "
        "the shadow in the background: %.2f ms\n",
        1e-9 * (double)bytes, ms, ms / ((double)bytes / (1 << 30)), median(copies, REPEATS));
    ops->swappable_free(memory);
}

static void bench_kernels(void)
{
    struct kernels all;
    unsigned long long *sectors, touched = 0;
    double ms;
    kernels_open(&all);
    double bytes = 2 * (double)all.live.elems;
    CUDA(cudaMalloc((void **)&sectors, sizeof *sectors));
    find(&all, &ms);
    for (size_t i = 0; i < all.live.count; i++)
        CUDA(cudaMemcpy(at(all.served, i), at(all.kept, i), 2 * elems_of(all.kept, i),
                        cudaMemcpyDeviceToDevice));
    printf("%.2f GB of bf16 in %zu tensors; a copy within the GPU: %.0f GB/s read and written\n",
           bytes * 1e-9, all.live.count, all.bandwidth);
    printf("%9s %9s %10s %8s %11s %10s %10s %8s %10s %10s %9s %11s\n", "changed", "find ms",
           "find GB/s", "of copy", "measure ms", "pack ms", "pack GB/s", "wire", "commit ms",
           "limit ms", "of limit", "sectors ms");
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++) {
        double finds[REPEATS];
        for (int i = 0; i < REPEATS; i++) { /* the last one is packed */
            model_change(&all.live, shares[s], 100 * s + (uint64_t)i);
            if (i + 1 == REPEATS)
                for (size_t t = 0; t < all.live.count; t++)
                    CUDA(cudaMemcpy(at(all.served, t), at(all.kept, t), 2 * elems_of(all.kept, t),
                                    cudaMemcpyDeviceToDevice));
            CUDA(cudaDeviceSynchronize());
            find(&all, &finds[i]);
        }
        uint64_t changed = 0;
        for (size_t i = 0; i < all.live.count; i++)
            changed += all.compared[i].changed;
        CUDA(cudaMemset(sectors, 0, sizeof *sectors));
        loads_count_sectors(all.maps, all.words, sectors, 0);
        CUDA(cudaMemcpy(&touched, sectors, sizeof touched, cudaMemcpyDeviceToHost));
        double find_ms = median(finds, REPEATS);
        struct packed version;
        pack(&all, &version);
        double swap_ms = exchange_ms(&all, &version), sectors_ms = rewrite_ms(&all);
        check_served(&all);
        double limit_ms = 64e-6 * (double)touched / all.bandwidth;
        printf("%7.2f %% %9.2f %10.0f %6.0f %% %11.2f %10.2f %10.0f %8.2f %10.2f %10.2f %9.2f "
               "%11.2f\n",
               100 * (double)changed / (double)all.live.elems, find_ms, 2e-6 * bytes / find_ms,
               100 * 2e-6 * bytes / find_ms / all.bandwidth, version.measure_ms, version.pack_ms,
               1e-6 * bytes / version.pack_ms,
               changed > 0 ? (double)version.bytes / (3 * (double)changed) : 0.0, swap_ms, limit_ms,
               limit_ms > 0 ? swap_ms / limit_ms : 0.0, sectors_ms);
        fflush(stdout);
        free(version.parts);
        free(version.boxes);
        free(version.ends);
        CUDA(cudaFree(version.there));
    }
    banyan_tensors_destroy(all.kept);
    banyan_tensors_destroy(all.served);
    bench_remapping((size_t)bytes);
}

/* ---- two processes ---- */

struct shared {
    char address[128];
    _Atomic int listens, wanted, available, published, staged, committed, ends;
    _Atomic int load; /* of the trainer: enum load_kind */
    _Atomic uint64_t alone_ns, beside_ns;
    _Atomic uint64_t share_ppm;
    _Atomic uint64_t publish_ns, compared_ns, sent_bytes;
};

static void wait_for(const _Atomic int *mark, int wanted)
{
    while (atomic_load(mark) < wanted)
        usleep(50);
}

static banyan_world *world_of_one(void)
{
    banyan_unique_id id;
    banyan_world *world;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    need(banyan_unique_id_create(&id));
    options.rank = 0;
    options.world_size = 1;
    options.unique_id = &id;
    need(banyan_world_open(&options, &world));
    return world;
}

/* A load of the GPU. */
enum load_kind { NO_LOAD, MULTIPLY, READ, LOAD_KINDS };

static const char *const load_names[] = {"", "4 products of 4096 x 4096 matrices",
                                         "reading a quarter of the weights"};

struct load {
    cudaStream_t stream;
    char *a;
    float *c;
    const struct model *model;
    int kind;
};

static struct load load_open(const struct model *model, int kind)
{
    struct load made = {.model = model, .kind = kind};
    CUDA(cudaStreamCreateWithFlags(&made.stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&made.a, 2 * (size_t)LOADS_MATRIX * LOADS_MATRIX));
    CUDA(cudaMalloc((void **)&made.c, 4 * (size_t)LOADS_MATRIX * LOADS_MATRIX));
    CUDA(cudaMemset(made.a, 0, 2 * (size_t)LOADS_MATRIX * LOADS_MATRIX));
    return made;
}

static void load_close(struct load *load)
{
    CUDA(cudaStreamDestroy(load->stream));
    CUDA(cudaFree(load->a));
    CUDA(cudaFree(load->c));
}

static double load_once_ms(const struct load *load)
{
    double start = now_ms();
    if (load->kind == READ)
        for (size_t i = 0; i < load->model->count / 4; i++)
            loads_read(at(load->model->tensors, i), 2 * elems_of(load->model->tensors, i),
                       (unsigned *)load->c, load->stream);
    else
        for (int i = 0; i < 4; i++)
            loads_multiply(load->a, load->a, load->c, load->stream);
    CUDA(cudaStreamSynchronize(load->stream));
    return now_ms() - start;
}

#define LOADS 200

static double load_alone_ms(const struct load *load)
{
    double sum = 0;
    for (int i = 0; i < 20; i++)
        load_once_ms(load);
    for (int i = 0; i < LOADS; i++)
        sum += load_once_ms(load);
    return sum / LOADS;
}

/* Run the load until a mark has a value. Return the mean of its times. */
static double load_until_ms(const struct load *load, const _Atomic int *mark, int value)
{
    double sum = 0;
    int done = 0;
    while (done == 0 || atomic_load(mark) < value) {
        sum += load_once_ms(load);
        done++;
    }
    return sum / done;
}

static void trainer(struct shared *shared, bool is_here)
{
    banyan_world *world = world_of_one();
    int count = 1;
    if (!is_here)
        CUDA(cudaGetDeviceCount(&count));
    device = count > 1 ? 1 : 0;
    struct model model = is_here ? model_make_here() : model_make(false);
    banyan_publication *publication;
    need(banyan_publication_open(world, model.layout, "127.0.0.1:0", SECRET, NULL, &publication));
    snprintf(shared->address, sizeof shared->address, "%s",
             banyan_publication_address(publication));
    atomic_store(&shared->listens, 1);
    for (int version = 1; !atomic_load(&shared->ends); version++) {
        banyan_publish_report report;
        while (atomic_load(&shared->wanted) < version && !atomic_load(&shared->ends))
            usleep(50);
        if (atomic_load(&shared->ends))
            break;
        struct load load = {0};
        int kind = atomic_load(&shared->load);
        if (kind != NO_LOAD) {
            load = load_open(&model, kind);
            atomic_store(&shared->alone_ns, (uint64_t)(load_alone_ms(&load) * 1e6));
        }
        double share = (double)atomic_load(&shared->share_ppm) * 1e-6;
        if (is_here)
            model_change_here(&model, share, (uint64_t)version);
        else
            model_change(&model, share, (uint64_t)version);
        uint64_t start = time_now_ns(),
                 sent = banyan_publication_get_status(publication).sent_bytes;
        need(banyan_publication_publish(publication, model.tensors, (uint64_t)version, &report));
        atomic_store(&shared->available, version);
        atomic_store(&shared->publish_ns, time_now_ns() - start);
        atomic_store(&shared->compared_ns, report.compared_ns);
        if (kind != NO_LOAD) {
            double beside = load_until_ms(&load, &shared->staged, version);
            atomic_store(&shared->beside_ns, (uint64_t)(beside * 1e6));
            load_close(&load);
        }
        atomic_store(&shared->published, version);
        wait_for(&shared->committed, version);
        atomic_store(&shared->sent_bytes,
                     banyan_publication_get_status(publication).sent_bytes - sent);
        atomic_store(&shared->published, version);
    }
    banyan_publication_close(publication);
    need(banyan_world_close(world));
}

struct engine {
    struct shared *shared;
    struct model model;
    banyan_subscription *subscription;
    int version;
};

/* Ask for a version, and take it. Return milliseconds from the request to the commit's end. */
static double update(struct engine *engine, double share, double *commit_ms,
                     const struct load *load, double *beside_ms)
{
    uint64_t staged, committed;
    struct shared *shared = engine->shared;
    atomic_store(&shared->share_ppm, (uint64_t)(share * 1e6));
    engine->version++;
    double start = now_ms(), sum = 0;
    int loads = 0;
    atomic_store(&shared->wanted, engine->version);
    if (load)
        wait_for(&shared->available, engine->version);
    for (; load && banyan_subscription_staged(engine->subscription) < (uint64_t)engine->version;
         loads++)
        sum += load_once_ms(load);
    if (load)
        *beside_ms = loads > 0 ? sum / loads : 0;
    need(banyan_subscription_wait(engine->subscription, (uint64_t)engine->version - 1,
                                  UINT64_C(120) * 1000000000, &staged));
    atomic_store(&shared->staged, engine->version);
    double began = now_ms();
    need(banyan_subscription_commit(engine->subscription, &committed));
    *commit_ms = now_ms() - began;
    double all = now_ms() - start;
    atomic_store(&shared->committed, engine->version);
    wait_for(&shared->published, engine->version);
    usleep(2000);
    return all;
}

static void print_updates(struct engine *engine)
{
    double commit, whole = update(engine, 0, &commit, NULL, NULL);
    printf("the first version, whole: %.0f ms (with its allocations)\n", whole);
    printf("%9s %10s %11s %11s %10s %10s %12s %12s\n", "changed", "update ms", "publish ms",
           "compare ms", "fetch ms", "commit ms", "sent MB", "fetch GB/s");
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++) {
        double all[3], commits[3], fetches[3];
        for (int i = 0; i < 3; i++) {
            all[i] = update(engine, shares[s], &commits[i], NULL, NULL);
            fetches[i] =
                (double)banyan_subscription_get_status(engine->subscription).fetch_ns * 1e-6;
        }
        double sent = (double)atomic_load(&engine->shared->sent_bytes), fetch = median(fetches, 3);
        printf("%7.1f %% %10.1f %11.1f %11.1f %10.1f %10.2f %12.1f %12.2f\n", 100 * shares[s],
               median(all, 3), (double)atomic_load(&engine->shared->publish_ns) * 1e-6,
               (double)atomic_load(&engine->shared->compared_ns) * 1e-6, fetch, median(commits, 3),
               sent * 1e-6, sent * 1e-6 / fetch);
        fflush(stdout);
    }
}

static void print_load(const char *side, int kind, double *alone, double *beside)
{
    double before = median(alone, 3), now = median(beside, 3);
    printf("%s, %s: alone %.3f ms, beside a fetch of 3 %% %.3f ms, %.1f %% longer (goal 5 %%)\n",
           side, load_names[kind], before, now, 100 * (now / before - 1));
    fflush(stdout);
}

static void print_loads(struct engine *engine, bool with_trainer)
{
    struct shared *shared = engine->shared;
    for (int kind = MULTIPLY; kind < LOAD_KINDS; kind++) {
        double commit, beside[3], alone[3];
        struct load load = load_open(&engine->model, kind);
        for (int i = 0; i < 3; i++) {
            alone[i] = load_alone_ms(&load);
            update(engine, 0.03, &commit, &load, &beside[i]);
        }
        load_close(&load);
        print_load("engine", kind, alone, beside);
        if (!with_trainer)
            continue;
        atomic_store(&shared->load, kind);
        for (int i = 0; i < 3; i++) {
            update(engine, 0.03, &commit, NULL, NULL);
            alone[i] = (double)atomic_load(&shared->alone_ns) * 1e-6;
            beside[i] = (double)atomic_load(&shared->beside_ns) * 1e-6;
        }
        atomic_store(&shared->load, NO_LOAD);
        print_load("trainer", kind, alone, beside);
    }
}

static void engine(struct shared *shared, bool updates, bool loads, bool with_trainer)
{
    banyan_world *world = world_of_one();
    struct engine mine = {.shared = shared, .model = model_make(has_shadow)};
    banyan_subscription_options options = BANYAN_SUBSCRIPTION_OPTIONS_INIT;
    options.shadow = has_shadow;
    wait_for(&shared->listens, 1);
    need(banyan_subscription_open(world, mine.model.layout, mine.model.tensors, shared->address,
                                  SECRET, &options, &mine.subscription));
    double commit;
    if (updates)
        print_updates(&mine);
    else
        update(&mine, 0, &commit, NULL, NULL);
    if (loads)
        print_loads(&mine, with_trainer);
    atomic_store(&shared->ends, 1);
    banyan_subscription_close(mine.subscription);
    need(banyan_world_close(world));
}

/* Each part has processes of its own, since CUDA does not work in a child of a process that uses
 * it. */
static pid_t start(void)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

static int finish(pid_t child)
{
    int status = 1;
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

static int run_pair(bool updates, bool loads, bool trainer_is_here)
{
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t publishing = start();
    if (publishing == 0) {
        trainer(shared, trainer_is_here);
        _exit(0);
    }
    pid_t following = start();
    if (following == 0) {
        engine(shared, updates, loads, !trainer_is_here);
        fflush(NULL);
        _exit(0);
    }
    int failed = finish(following);
    if (failed)
        kill(publishing, SIGKILL);
    return failed | finish(publishing);
}

int main(int argc, char **argv)
{
    bool kernels = false, updates = false, loads = false, serving = false;
    for (int i = 1; i < argc; i++) {
        kernels |= strcmp(argv[i], "kernels") == 0;
        updates |= strcmp(argv[i], "update") == 0;
        loads |= strcmp(argv[i], "loads") == 0;
        serving |= strcmp(argv[i], "serving") == 0;
        has_shadow |= strcmp(argv[i], "--shadow") == 0;
        if (strcmp(argv[i], "--layers") == 0 && i + 1 < argc)
            layers = atoi(argv[++i]);
    }
    int failed = 0;
    if (!kernels && !updates && !loads && !serving)
        kernels = updates = loads = serving = true;
    if (kernels) {
        pid_t child = start();
        if (child == 0) {
            bench_kernels();
            fflush(NULL);
            _exit(0);
        }
        failed |= finish(child);
    }
    if (updates || loads)
        failed |= run_pair(updates, loads, false);
    if (serving)
        failed |= run_pair(false, true, true);
    return failed;
}
