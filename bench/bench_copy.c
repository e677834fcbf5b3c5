/* Speed of copy backends that move tensors between the processes of one machine, beside the memcpy
 * of as many processes and beside MPI.
 *
 * Without arguments it measures everything. It starts the ranks itself; those for MPI are this
 * program again, under mpirun. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <banyan/banyan.h>

#include "core/deadline.h"

#define RANKS 4
#define ROUNDS 5
#define MIB ((uint64_t)1 << 20)
#define ID_VARIABLE "BENCH_COPY_ID"

/* A box of rows, each contiguous. */
typedef struct box {
    int from, to;
    uint64_t rows, row_bytes, from_pitch, to_pitch;
    uint64_t from_at, to_at; /* in the source's and the destination's memory */
} box;

typedef struct workload {
    const char *name, *title;
    box *boxes;
    size_t count;
    uint64_t sent[RANKS], received[RANKS]; /* bytes of memory, including pitches */
    uint64_t bytes;                        /* bytes that move */
    int repeats;                           /* per round */
} workload;

static void add_box(workload *work, box one)
{
    if (work->count % 1024 == 0)
        work->boxes = realloc(work->boxes, (work->count + 1024) * sizeof *work->boxes);
    one.from_at = work->sent[one.from];
    one.to_at = work->received[one.to];
    work->sent[one.from] += one.rows * one.from_pitch;
    work->received[one.to] += one.rows * one.to_pitch;
    work->bytes += one.rows * one.row_bytes;
    work->boxes[work->count++] = one;
}

static workload large_boxes(void)
{
    workload work = {.name = "large",
                     .title = "all to all, boxes of 1024 rows of 2 KiB in rows of 4 KiB",
                     .repeats = 2};
    for (int from = 0; from < RANKS; from++)
        for (int to = 0; to < RANKS; to++)
            for (int i = 0; i < 8 && from != to; i++)
                add_box(&work, (box){from, to, 1024, 2048, 4096, 4096, 0, 0});
    return work;
}

static workload small_tensors(void)
{
    workload work = {.name = "small", .title = "10,000 tensors of 4 KiB", .repeats = 10};
    for (int i = 0; i < 10000; i++) {
        int from = i % RANKS, to = (from + 1 + i / RANKS % (RANKS - 1)) % RANKS;
        add_box(&work, (box){from, to, 1, 4096, 4096, 4096, 0, 0});
    }
    return work;
}

/* Add a weight of `rows` x `columns` bf16, from two ranks to four, cut along either dimension. */
static void add_weight(workload *work, int stage, uint64_t rows, uint64_t columns, bool by_rows)
{
    uint64_t row_bytes = columns * 2;
    for (int to = 0; to < RANKS; to++) {
        int from = stage * 2 + to / 2;
        if (from == to)
            continue;
        if (by_rows)
            add_box(work, (box){from, to, 1, rows / 4 * row_bytes, rows / 4 * row_bytes,
                                rows / 4 * row_bytes, 0, 0});
        else
            add_box(work, (box){from, to, rows, row_bytes / 4, row_bytes / 2, row_bytes / 4, 0, 0});
    }
}

/* Transfers between ranks when Qwen3-0.6B's matrices go from tp=2, pp=2 to tp=4. */
static workload model(void)
{
    workload work = {
        .name = "model", .title = "a model's matrices from tp=2,pp=2 to tp=4", .repeats = 1};
    for (int layer = 0; layer < 28; layer++) {
        int stage = layer / 14;
        add_weight(&work, stage, 2048, 1024, true);
        add_weight(&work, stage, 1024, 1024, true);
        add_weight(&work, stage, 1024, 1024, true);
        add_weight(&work, stage, 1024, 2048, false);
        add_weight(&work, stage, 3072, 1024, true);
        add_weight(&work, stage, 3072, 1024, true);
        add_weight(&work, stage, 1024, 3072, false);
    }
    add_weight(&work, 0, 151936, 1024, true);
    return work;
}

static workload workload_named(const char *name)
{
    if (strcmp(name, "small") == 0)
        return small_tensors();
    return strcmp(name, "model") == 0 ? model() : large_boxes();
}

static void must(banyan_status status)
{
    if (status == BANYAN_OK)
        return;
    fprintf(stderr, "bench_copy: %s: %s\n", banyan_status_name(status), banyan_last_error());
    exit(1);
}

typedef struct rank_memory {
    banyan_memory *source_buffer, *destination_buffer;
    char *source, *destination;
} rank_memory;

static rank_memory memory_make(banyan_world *world, const workload *work, bool symmetric)
{
    int rank = banyan_world_rank(world);
    rank_memory memory = {0};
    if (symmetric) {
        must(banyan_memory_alloc(world, work->sent[rank], &memory.source_buffer));
        must(banyan_memory_alloc(world, work->received[rank], &memory.destination_buffer));
        memory.source = banyan_memory_local(memory.source_buffer);
        memory.destination = banyan_memory_local(memory.destination_buffer);
    } else {
        memory.source = malloc(work->sent[rank] + 1);
        memory.destination = malloc(work->received[rank] + 1);
    }
    memset(memory.source, rank + 1, work->sent[rank]);
    memset(memory.destination, 0, work->received[rank]);
    return memory;
}

static void memory_end(rank_memory *memory)
{
    if (memory->source_buffer) {
        banyan_memory_free(memory->source_buffer);
        banyan_memory_free(memory->destination_buffer);
    } else {
        free(memory->source);
        free(memory->destination);
    }
}

static void submit(const workload *work, int rank, const rank_memory *memory,
                   banyan_copy_service *service)
{
    for (size_t i = 0; i < work->count; i++) {
        const box *one = &work->boxes[i];
        int64_t shape[] = {(int64_t)one->rows, (int64_t)one->row_bytes}, strides[] = {0, 1};
        DLTensor tensor = {.device = {kDLCPU, 0},
                           .ndim = 2,
                           .dtype = BANYAN_U8,
                           .shape = shape,
                           .strides = strides};
        if (one->from == rank) {
            tensor.data = memory->source + one->from_at;
            strides[0] = (int64_t)one->from_pitch;
            must(banyan_copy_service_submit_send(service, &tensor, one->to, i));
        }
        if (one->to == rank) {
            tensor.data = memory->destination + one->to_at;
            strides[0] = (int64_t)one->to_pitch;
            must(banyan_copy_service_submit_recv(service, &tensor, one->from, i));
        }
    }
}

static void verify(const workload *work, int rank, const rank_memory *memory)
{
    for (size_t i = 0; i < work->count; i++) {
        const box *one = &work->boxes[i];
        for (uint64_t row = 0; one->to == rank && row < one->rows; row++) {
            const char *at = memory->destination + one->to_at + row * one->to_pitch;
            if (at[0] == one->from + 1 && memcmp(at, at + 1, one->row_bytes - 1) == 0)
                continue;
            fprintf(stderr, "bench_copy: box %zu arrived wrong\n", i);
            exit(1);
        }
    }
}

/* Time from the start of the first rank to the end of the last: where ranks share processors, some
 * finish before others have begun. */
static double timed(banyan_world *world, void (*run)(void *context), void *context, int repeats)
{
    uint64_t all_ns[RANKS][2], own_ns[2];
    must(banyan_world_barrier(world));
    own_ns[0] = time_now_ns();
    for (int i = 0; i < repeats; i++)
        run(context);
    own_ns[1] = time_now_ns();
    must(banyan_world_allgather(world, own_ns, sizeof own_ns, all_ns));
    for (int i = 0; i < RANKS; i++) {
        own_ns[0] = all_ns[i][0] < own_ns[0] ? all_ns[i][0] : own_ns[0];
        own_ns[1] = all_ns[i][1] > own_ns[1] ? all_ns[i][1] : own_ns[1];
    }
    return (double)(own_ns[1] - own_ns[0]) / (double)NS_PER_S / repeats;
}

static void run_schedule(void *context)
{
    must(banyan_copy_schedule_run(context, NULL));
}

struct plain_copy {
    char *to;
    const char *from;
    size_t bytes;
};

static void run_memcpy(void *context)
{
    const struct plain_copy *copy = context;
    memcpy(copy->to, copy->from, copy->bytes);
}

/* The best of the rounds, in which memcpy and the backend take turns. */
typedef struct result {
    double seconds, memcpy_seconds, prepare_seconds;
} result;

static result measure(banyan_world *world, const workload *work, const char *backend,
                      bool symmetric)
{
    int rank = banyan_world_rank(world);
    rank_memory memory = memory_make(world, work, symmetric);
    uint64_t bytes = work->bytes / RANKS;
    struct plain_copy copy = {malloc(bytes), malloc(bytes), bytes};
    memset(copy.to, 1, bytes);
    memset((void *)(uintptr_t)copy.from, 2, bytes);

    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    must(banyan_copy_service_open(world, backend, NULL, &service));
    submit(work, rank, &memory, service);
    must(banyan_world_barrier(world));
    uint64_t start = time_now_ns();
    must(banyan_copy_service_prepare(service, &schedule));
    result best = {1e30, 1e30, (double)(time_now_ns() - start) / (double)NS_PER_S};
    must(banyan_copy_schedule_run(schedule, NULL));
    verify(work, rank, &memory);
    for (int round = 0; round < ROUNDS; round++) {
        double plain = timed(world, run_memcpy, &copy, work->repeats);
        double seconds = timed(world, run_schedule, schedule, work->repeats);
        best.memcpy_seconds = plain < best.memcpy_seconds ? plain : best.memcpy_seconds;
        best.seconds = seconds < best.seconds ? seconds : best.seconds;
    }
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    memory_end(&memory);
    free(copy.to);
    free((void *)(uintptr_t)copy.from);
    return best;
}

static result rank_main(int rank, const banyan_unique_id *id, const workload *work,
                        const char *backend, bool symmetric)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = RANKS;
    options.unique_id = id;
    banyan_world *world;
    must(banyan_world_open(&options, &world));
    result found = measure(world, work, backend, symmetric);
    must(banyan_world_close(world));
    return found;
}

static bool run_forked(const workload *work, const char *backend, bool symmetric, result *found)
{
    result *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    banyan_unique_id id;
    pid_t children[RANKS];
    bool good = true;
    must(banyan_unique_id_create(&id));
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            result own = rank_main(rank, &id, work, backend, symmetric);
            if (rank == 0)
                *shared = own;
            exit(0);
        }
    }
    for (int rank = 0; rank < RANKS; rank++) {
        int status = 1;
        waitpid(children[rank], &status, 0);
        good &= status == 0;
    }
    *found = *shared;
    munmap(shared, sizeof *shared);
    return good;
}

static void print_hex(const banyan_unique_id *id, char *text)
{
    for (size_t i = 0; i < sizeof id->bytes; i++)
        sprintf(text + 2 * i, "%02x", id->bytes[i]);
}

static void parse_hex(const char *text, banyan_unique_id *id)
{
    for (size_t i = 0; i < sizeof id->bytes; i++) {
        char digits[] = {text[2 * i], text[2 * i + 1], '\0'};
        id->bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
}

static bool run_under_mpirun(const workload *work, result *found)
{
    char text[2 * BANYAN_UNIQUE_ID_BYTES + 1], program[4096], command[5000];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return false;
    program[length] = '\0';
    banyan_unique_id id;
    must(banyan_unique_id_create(&id));
    print_hex(&id, text);
    setenv(ID_VARIABLE, text, 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    snprintf(command, sizeof command, "mpirun --oversubscribe -n %d '%s' rank %s 2>&1", RANKS,
             program, work->name);
    fflush(NULL);
    FILE *output = popen(command, "r");
    char line[512];
    bool good = false;
    while (output && fgets(line, sizeof line, output)) {
        if (sscanf(line, "RESULT %lf %lf %lf", &found->seconds, &found->memcpy_seconds,
                   &found->prepare_seconds) == 3)
            good = true;
        else
            fputs(line, stderr);
    }
    return output && pclose(output) == 0 && good;
}

static int main_of_mpi_rank(const char *name)
{
    const char *text = getenv(ID_VARIABLE), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!text || strlen(text) != 2 * BANYAN_UNIQUE_ID_BYTES || !rank)
        return 1;
    banyan_unique_id id;
    parse_hex(text, &id);
    workload work = workload_named(name);
    result found = rank_main(atoi(rank), &id, &work, "mpi", false);
    if (atoi(rank) == 0)
        printf("RESULT %.9f %.9f %.9f\n", found.seconds, found.memcpy_seconds,
               found.prepare_seconds);
    free(work.boxes);
    return 0;
}

static void print_row(const workload *work, const char *what, const result *found,
                      const result *mpi, const char *goal)
{
    double rate = (double)work->bytes / found->seconds / 1e9;
    double limit = (double)work->bytes / found->memcpy_seconds / 1e9;
    printf("  %-22s %8.2f GB/s %8.2f ms %6.0f %% of memcpy's %.2f GB/s", what, rate,
           found->seconds * 1e3, 100 * rate / limit, limit);
    if (mpi)
        printf(", %5.2f x MPI", mpi->seconds / found->seconds);
    printf(", prepared in %.1f ms%s%s\n", found->prepare_seconds * 1e3, goal[0] ? "; goal " : "",
           goal);
    fflush(stdout);
}

static const struct variant {
    const char *backend, *title;
    bool symmetric;
    const char *goals[3]; /* large, small, model */
} variants[] = {
    {"direct", "direct, symmetric", true, {"90 %", "5 x MPI", "1.5 x MPI"}},
    {"direct", "direct, ordinary", false, {"65 %", "5 x MPI", "1.5 x MPI"}},
    {"pipeline", "pipeline, ordinary", false, {"45 %", "", ""}},
};

static bool measure_workload(const char *name, size_t goal)
{
    workload work = workload_named(name);
    result mpi;
    printf("%s: %d ranks, %zu tensors, %.1f MiB\n", work.title, RANKS, work.count,
           (double)work.bytes / (double)MIB);
    fflush(stdout);
    bool has_mpi = run_under_mpirun(&work, &mpi), good = true;
    if (has_mpi)
        print_row(&work, "mpi, ordinary", &mpi, NULL, "");
    else
        printf("  mpi: not measured, mpirun or the module is missing\n");
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        const struct variant *variant = &variants[i];
        const banyan_copy_backend *backend;
        result found;
        if (banyan_copy_backend_find(variant->backend, &backend) != BANYAN_OK)
            continue;
        if (run_forked(&work, variant->backend, variant->symmetric, &found))
            print_row(&work, variant->title, &found, has_mpi ? &mpi : NULL, variant->goals[goal]);
        else
            good = false;
    }
    free(work.boxes);
    return good;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"large", "small", "model"};
    if (argc == 3 && strcmp(argv[1], "rank") == 0)
        return main_of_mpi_rank(argv[2]);
    bool good = true, known = argc == 1;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (argc == 1 || (argc == 2 && strcmp(argv[1], names[i]) == 0)) {
            known = true;
            good &= measure_workload(names[i], i);
        }
    if (!known) {
        fprintf(stderr, "usage: bench_copy [large|small|model]\n");
        return 2;
    }
    return good ? 0 : 1;
}
