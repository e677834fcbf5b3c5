/* Saved ranks join into the model they hold, load back, and appear completely or not at all. */
#include "support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reshard/checkpoint/write.h"
#include "reshard/filled.h"
#include "reshard/layout/layout.h"
#include "reshard/model/facts.h"
#include "reshard/model/model.h"
#include "reshard/random_case.h"
#include "support/folder.h"

enum { RANKS = 3, PASS = 4 };

struct round {
    const char *folder;
    uint64_t seed;
};

static char *path_in(const struct round *round, const char *name)
{
    return folder_path(round->folder, name);
}

static uint64_t elems_of(const case_tensor *tensor)
{
    uint64_t elems = 1;
    for (int d = 0; d < tensor->ndim; d++)
        elems *= (uint64_t)tensor->shape[d];
    return elems;
}

static void check_joined(const banyan_checkpoint *joined, const random_case *of)
{
    CHECK(banyan_checkpoint_tensor_count(joined) == (size_t)of->tensor_count);
    for (int t = 0; t < of->tensor_count; t++) {
        const case_tensor *tensor = &of->tensors[t];
        size_t i;
        CHECK_OK(banyan_checkpoint_find(joined, tensor->name, &i));
        const DLTensor *data = banyan_checkpoint_data(joined, i);
        size_t bytes = banyan_dtype_bytes(tensor->dtype);
        CHECK(banyan_dtype_equal(data->dtype, tensor->dtype));
        CHECK(data->ndim == tensor->ndim);
        CHECK((uintptr_t)data->data % bytes == 0);
        for (int d = 0; d < tensor->ndim; d++)
            CHECK(data->shape[d] == tensor->shape[d]);
        for (uint64_t n = 0; n < elems_of(tensor); n++) {
            unsigned char value[8];
            filled_value(tensor->name, PASS, n, bytes, value);
            CHECK(memcmp((char *)data->data + n * bytes, value, bytes) == 0, "%s, element %llu",
                  tensor->name, (unsigned long long)n);
        }
    }
}

static void load_and_compare(const char *path, const banyan_layout *layout, banyan_tensors *tensors)
{
    banyan_checkpoint *checkpoint;
    CHECK_OK(banyan_checkpoint_open(path, &checkpoint));
    filled_poison(tensors);
    CHECK_OK(banyan_checkpoint_load(checkpoint, layout, tensors, NULL));
    filled_check(layout, tensors, PASS, false);
    banyan_checkpoint_close(checkpoint);
}

/* Every rank that saved can be restored: its tensors, with all of their pieces. */
static void load_as_saved(const char *saved)
{
    banyan_checkpoint *checkpoint;
    CHECK_OK(banyan_checkpoint_open(saved, &checkpoint));
    int ranks = banyan_checkpoint_rank_count(checkpoint);
    CHECK(ranks > 0);
    for (int rank = -1; rank <= ranks; rank++) {
        banyan_layout *layout;
        banyan_tensors *tensors;
        CHECK_OK(banyan_layout_create(&layout));
        banyan_checkpoint_add_layout(checkpoint, rank, layout);
        CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
        CHECK((banyan_layout_tensor_count(layout) > 0) == (rank >= 0 && rank < ranks));
        CHECK_OK(banyan_tensors_alloc(layout, NULL, &tensors));
        load_and_compare(saved, layout, tensors);
        banyan_tensors_destroy(tensors);
        banyan_layout_destroy(layout);
    }
    banyan_checkpoint_close(checkpoint);
}

/* Save, join, and load another sharding of either on every rank. */
static void save_join_and_load(banyan_world *world, void *context)
{
    const struct round *round = context;
    int rank = banyan_world_rank(world);
    random_state random = random_from(round->seed);
    case_options options = {.world_size = RANKS, .max_elems = 3000};
    random_case *of = case_make(random_next(&random), &options);
    banyan_layout *from = case_layout(of, rank, false), *to = case_layout(of, rank, true);
    banyan_tensors *source, *destination;
    CHECK_OK(banyan_tensors_alloc(from, NULL, &source));
    CHECK_OK(banyan_tensors_alloc(to, NULL, &destination));
    filled_make(from, source, PASS);
    char *saved = path_in(round, "saved"), *joined = path_in(round, "joined/");
    bool holds = banyan_layout_tensor_count(from) > 0;
    CHECK_OK(
        banyan_checkpoint_save(saved, holds ? from : NULL, holds ? source : NULL, world, NULL));
    banyan_checkpoint_options join = BANYAN_CHECKPOINT_OPTIONS_INIT;
    join.max_shard_bytes = (uint64_t)random_between(&random, 0, 2000);
    if (rank == 0)
        CHECK_OK(banyan_checkpoint_join(saved, joined, &join));
    CHECK_OK(banyan_world_barrier(world));
    banyan_checkpoint *checkpoint;
    CHECK_OK(banyan_checkpoint_open(joined, &checkpoint));
    check_joined(checkpoint, of);
    CHECK(banyan_checkpoint_rank_count(checkpoint) == 0);
    banyan_checkpoint_close(checkpoint);
    load_and_compare(joined, to, destination);
    load_and_compare(saved, to, destination);
    if (rank == 0)
        load_as_saved(saved);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destination);
    banyan_layout_destroy(from);
    banyan_layout_destroy(to);
    free(of);
    free(saved);
    free(joined);
}

static void saved_layouts_join_and_load(void **state)
{
    random_state random = random_from(random_seed());
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "round-%d", i);
        struct round round = {folder_path(*state, name), random_next(&random)};
        assert_int_equal(mkdir(round.folder, 0777), 0);
        ranks_run(RANKS, save_join_and_load, &round);
        assert_int_equal(folder_entries(round.folder), 2);
        free((char *)round.folder);
    }
}

static const char *const large_names[2] = {"cube", "rows"};
static const int64_t large_shapes[2][3] = {{3, 5, 3000000}, {2, 1, 9000000}};

static unsigned char large_value(int t, uint64_t n)
{
    return (unsigned char)((n * 2654435761u >> 13) + (uint64_t)t);
}

/* Two ranks, each half of a dimension. */
static void save_large(banyan_world *world, void *context)
{
    const struct round *round = context;
    int rank = banyan_world_rank(world);
    banyan_layout *layout;
    banyan_tensors *tensors;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_mesh mesh = {.ndim = 1, .extent = {2}};
    for (int t = 0; t < 2; t++) {
        banyan_placement placement = {BANYAN_SHARD, t == 0 ? 1 : 2};
        banyan_layout_add_sharded(layout, large_names[t], BANYAN_U8, 3, large_shapes[t], &mesh,
                                  &placement, rank);
    }
    CHECK_OK(banyan_tensors_alloc(layout, NULL, &tensors));
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        int t = strcmp(piece->name, large_names[0]) != 0;
        unsigned char *at = banyan_tensors_get(tensors, (size_t)piece->tensor)->data;
        const int64_t *start = piece->box.start, *extent = piece->box.extent;
        for (int64_t a = 0; a < extent[0]; a++)
            for (int64_t b = 0; b < extent[1]; b++)
                for (int64_t c = 0; c < extent[2]; c++)
                    *at++ = large_value(
                        t, (uint64_t)(((start[0] + a) * large_shapes[t][1] + start[1] + b) *
                                          large_shapes[t][2] +
                                      start[2] + c));
    }
    char *saved = path_in(round, "saved");
    CHECK_OK(banyan_checkpoint_save(saved, layout, tensors, world, NULL));
    banyan_tensors_destroy(tensors);
    banyan_layout_destroy(layout);
    free(saved);
}

static void tensors_larger_than_the_buffer_are_joined(void **state)
{
    struct round round = {*state, 0};
    ranks_run(2, save_large, &round);
    char *saved = path_in(&round, "saved"), *joined = path_in(&round, "joined");
    CHECK_OK(banyan_checkpoint_join(saved, joined, NULL));
    banyan_checkpoint *checkpoint;
    CHECK_OK(banyan_checkpoint_open(joined, &checkpoint));
    for (int t = 0; t < 2; t++) {
        size_t i;
        CHECK_OK(banyan_checkpoint_find(checkpoint, large_names[t], &i));
        const unsigned char *data = banyan_checkpoint_data(checkpoint, i)->data;
        uint64_t elems = (uint64_t)(large_shapes[t][0] * large_shapes[t][1] * large_shapes[t][2]);
        for (uint64_t n = 0; n < elems; n++)
            CHECK(data[n] == large_value(t, n), "%s, element %llu", large_names[t],
                  (unsigned long long)n);
    }
    banyan_checkpoint_close(checkpoint);
    free(saved);
    free(joined);
}

static banyan_layout *simple_layout(DLDataType dtype, banyan_tensors **tensors);

/* Ranks keep one fact each; the last also contradicts rank 0 in the second folder. */
static void save_with_facts(banyan_world *world, void *context)
{
    const struct round *round = context;
    int rank = banyan_world_rank(world);
    banyan_tensors *tensors;
    banyan_layout *layout = simple_layout(BANYAN_F32, &tensors);
    char *saved = path_in(round, "saved"), *odd = path_in(round, "odd"), key[32], value[32];
    snprintf(key, sizeof key, "of_rank_%d", rank);
    snprintf(value, sizeof value, "%d", 100 + rank);
    CHECK(layout_keep_fact(layout, key, value));
    CHECK(layout_keep_fact(layout, "head_dim", rank == 1 ? "64.0" : "64"));
    CHECK(layout_keep_fact(layout, "head_dim", "64"));
    CHECK(layout_keep_fact(layout, "model_type", "\"llama\""));
    if (rank == 1)
        CHECK_FAILS((layout_keep_fact(layout, "head_dim", "128"), banyan_layout_status(layout)),
                    BANYAN_ERR_INVALID, "whose head_dim is 64.0, and of one whose head_dim is 128");
    banyan_layout_destroy(layout);
    banyan_tensors_destroy(tensors);
    layout = simple_layout(BANYAN_F32, &tensors);
    CHECK(layout_keep_fact(layout, key, value));
    CHECK(layout_keep_fact(layout, "head_dim", "64"));
    CHECK(layout_keep_fact(layout, "model_type", "\"llama\""));
    CHECK_OK(banyan_checkpoint_save(saved, layout, tensors, world, NULL));
    CHECK(layout_keep_fact(layout, "experts", rank == RANKS - 1 ? "9" : "8"));
    CHECK_FAILS(banyan_checkpoint_save(odd, layout, tensors, world, NULL), BANYAN_ERR_MISMATCH,
                "whose experts is 8, and is 9");
    banyan_layout_destroy(layout);
    banyan_tensors_destroy(tensors);
    free(saved);
    free(odd);
}

static void check_facts(const facts *known)
{
    int64_t value = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        char key[32];
        snprintf(key, sizeof key, "of_rank_%d", rank);
        CHECK(facts_find_int(known, key, &value) && value == 100 + rank);
    }
    CHECK(facts_find_int(known, "head_dim", &value) && value == 64);
    CHECK(facts_find(known, "model_type") &&
          strcmp(facts_find(known, "model_type"), "\"llama\"") == 0);
    CHECK(known->list.count == RANKS + 2);
}

static void facts_of_layouts_are_saved_and_read_back(void **state)
{
    struct round round = {*state, 0};
    ranks_run(RANKS, save_with_facts, &round);
    assert_int_equal(folder_entries(*state), 1);
    char *saved = path_in(&round, "saved"), *config = path_in(&round, "saved/config.json");
    banyan_checkpoint *checkpoint;
    banyan_layout *layout;
    banyan_model *model;
    CHECK_OK(banyan_checkpoint_open(saved, &checkpoint));
    CHECK_OK(banyan_layout_create(&layout));
    banyan_checkpoint_add_layout(checkpoint, 1, layout);
    CHECK_OK(banyan_layout_check(layout));
    check_facts(layout_facts(layout));
    banyan_layout_destroy(layout);
    banyan_checkpoint_close(checkpoint);

    CHECK_OK(banyan_model_load(saved, &model));
    CHECK(strcmp(model_fact(model, "head_dim"), "64") == 0);
    CHECK_OK(banyan_layout_create(&layout));
    model_pass_facts(model, layout);
    check_facts(layout_facts(layout));
    banyan_layout_destroy(layout);
    banyan_model_destroy(model);

    folder_write(config, "{\"head_dim\": 64, \"hidden_size\": 4096}");
    CHECK_OK(banyan_model_load(saved, &model));
    CHECK(strcmp(model_fact(model, "hidden_size"), "4096") == 0);
    CHECK(strcmp(model_fact(model, "of_rank_1"), "101") == 0);
    banyan_model_destroy(model);
    folder_write(config, "{\"head_dim\": 128}");
    CHECK_FAILS(banyan_model_load(saved, &model), BANYAN_ERR_MISMATCH,
                "saved: head_dim is 64 in banyan.index.json and 128 in config.json");
    free(saved);
    free(config);
}

static void expect_text(const char *folder, const char *name, const char *text)
{
    char *path = folder_path(folder, name), found[64] = "";
    FILE *file = fopen(path, "r");
    CHECK((file != NULL) == (text != NULL), "%s", path);
    if (file) {
        CHECK(fread(found, 1, sizeof found - 1, file) == strlen(text) && strcmp(found, text) == 0);
        fclose(file);
    }
    free(path);
}

static void save_with_small_files(banyan_world *world, void *context)
{
    const struct round *round = context;
    int rank = banyan_world_rank(world);
    banyan_tensors *tensors;
    banyan_layout *layout = simple_layout(BANYAN_F32, &tensors);
    char *from = path_in(round, "from"), *saved = path_in(round, "saved");
    char *none = path_in(round, "none"), *unwanted = path_in(round, "unwanted");
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    options.small_files_from = none;
    CHECK_FAILS(banyan_checkpoint_save(unwanted, layout, tensors, world, &options),
                BANYAN_ERR_NOT_FOUND, "none to copy small files from");
    /* Rank 0 chooses; the others need not. */
    options.small_files_from = rank == 0 ? from : NULL;
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    if (rank == 0) {
        signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){16384, limit.rlim_max}) == 0);
    }
    CHECK_FAILS(banyan_checkpoint_save(unwanted, layout, tensors, world, &options),
                BANYAN_ERR_SYSTEM, "/large.txt: File too large");
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_OK(banyan_world_barrier(world));
    CHECK(folder_entries(round->folder) == 1);
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_checkpoint_save(saved, layout, tensors, world, &options));
    banyan_tensors_destroy(tensors);
    banyan_layout_destroy(layout);
    free(from);
    free(saved);
    free(none);
    free(unwanted);
}

static void small_files_go_with_a_save_and_a_join_whole_or_not_at_all(void **state)
{
    struct round round = {*state, 0};
    char *from = path_in(&round, "from"), *sub = path_in(&round, "from/sub");
    char *config = path_in(&round, "from/config.json"), *large = path_in(&round, "from/large.txt");
    char *inner = path_in(&round, "from/sub/t.jinja"), *index = path_in(&round, "saved/more.json");
    char *saved = path_in(&round, "saved"), *joined = path_in(&round, "joined");
    char *other = path_in(&round, "other");
    assert_int_equal(mkdir(from, 0777), 0);
    assert_int_equal(mkdir(sub, 0777), 0);
    folder_write(config, "{\"head_dim\": 64}");
    folder_write(inner, "template");
    folder_write(large, "");
    assert_int_equal(truncate(large, 20000), 0);
    ranks_run(RANKS, save_with_small_files, &round);
    assert_int_equal(folder_entries(*state), 2);
    expect_text(saved, "config.json", "{\"head_dim\": 64}");
    expect_text(saved, "sub/t.jinja", "template");
    /* config.json, large.txt, sub, the index and a folder a rank */
    assert_int_equal(folder_entries(saved), 4 + RANKS);

    folder_write(index, "added");
    CHECK_OK(banyan_checkpoint_join(saved, joined, NULL));
    expect_text(joined, "more.json", "added");
    expect_text(joined, "sub/t.jinja", "template");
    expect_text(joined, "banyan.index.json", NULL);
    assert_int_equal(folder_entries(joined), 5);
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    options.small_files_from = from;
    CHECK_OK(banyan_checkpoint_join(saved, other, &options));
    expect_text(other, "more.json", NULL);
    expect_text(other, "config.json", "{\"head_dim\": 64}");
    banyan_model *model;
    CHECK_OK(banyan_model_load(other, &model));
    CHECK(strcmp(model_fact(model, "head_dim"), "64") == 0);
    banyan_model_destroy(model);
    char *const paths[] = {from, sub, config, large, inner, index, saved, joined, other};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        free(paths[i]);
}

/* A tensor of 4 KiB on each rank, all equal except for `dtype`. */
static banyan_layout *simple_layout(DLDataType dtype, banyan_tensors **tensors)
{
    banyan_layout *layout;
    int64_t shape[2] = {16, 4096 / 16 / (int64_t)banyan_dtype_bytes(dtype)};
    banyan_mesh mesh = {.ndim = 1, .extent = {1}};
    banyan_placement placement = {BANYAN_REPLICATE, 0};
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_sharded(layout, "w", dtype, 2, shape, &mesh, &placement, 0);
    CHECK_OK(banyan_tensors_alloc(layout, NULL, tensors));
    return layout;
}

static void die_on_rank_1(void *context, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    if (*(int *)context == 1)
        raise(SIGKILL);
}

static void save_while_a_rank_is_killed(int rank, int count, const banyan_unique_id *id,
                                        void *context)
{
    const struct round *round = context;
    banyan_world_options joining = BANYAN_WORLD_OPTIONS_INIT;
    joining.rank = rank;
    joining.world_size = count;
    joining.unique_id = id;
    banyan_world *world;
    CHECK_OK(banyan_world_open(&joining, &world));
    banyan_tensors *tensors;
    banyan_layout *layout = simple_layout(BANYAN_F32, &tensors);
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    options.progress = die_on_rank_1;
    options.progress_context = &rank;
    char *saved = path_in(round, "saved");
    CHECK_FAILS(banyan_checkpoint_save(saved, layout, tensors, world, &options),
                BANYAN_ERR_PEER_LOST, "rank 1");
    banyan_world_close(world);
}

static bool has_unnamed_files(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void a_rank_that_is_killed_leaves_no_folder(void **state)
{
    struct round round = {*state, 0};
    int statuses[RANKS];
    ranks_fork(RANKS, save_while_a_rank_is_killed, &round, statuses);
    for (int rank = 0; rank < RANKS; rank++) {
        if (rank == 1)
            assert_true(WIFSIGNALED(statuses[rank]) && WTERMSIG(statuses[rank]) == SIGKILL);
        else
            assert_int_equal(statuses[rank], 0);
    }
    char *saved = path_in(&round, "saved");
    assert_int_not_equal(access(saved, F_OK), 0);
    if (has_unnamed_files(*state))
        assert_int_equal(folder_entries(*state), 0);
    free(saved);
}

static void save_in_bad_ways(banyan_world *world, void *context)
{
    const struct round *round = context;
    int rank = banyan_world_rank(world);
    banyan_tensors *tensors, *others;
    banyan_layout *layout = simple_layout(BANYAN_F32, &tensors);
    banyan_layout *other = simple_layout(rank == 1 ? BANYAN_BF16 : BANYAN_F32, &others);
    char *taken = path_in(round, "taken"), *saved = path_in(round, "saved");
    char *lost = path_in(round, "none/saved");
    CHECK_FAILS(banyan_checkpoint_save(taken, layout, tensors, world, NULL), BANYAN_ERR_INVALID,
                "taken exists already");
    CHECK_FAILS(banyan_checkpoint_save(lost, layout, tensors, world, NULL), BANYAN_ERR_NOT_FOUND,
                "none");
    CHECK_FAILS(banyan_checkpoint_save(saved, other, others, world, NULL), BANYAN_ERR_MISMATCH,
                "tensor w in different types");
    CHECK_FAILS(banyan_checkpoint_save(saved, layout, rank == 2 ? NULL : tensors, world, NULL),
                BANYAN_ERR_INVALID, "together with its tensors");
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    if (rank == 1) {
        signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){2048, limit.rlim_max}) == 0);
    }
    CHECK_FAILS(banyan_checkpoint_save(saved, layout, tensors, world, NULL), BANYAN_ERR_SYSTEM,
                "saved/rank-00001/model.safetensors");
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_OK(banyan_world_barrier(world));
    CHECK(folder_entries(round->folder) == 1);
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_checkpoint_save(saved, layout, tensors, world, NULL));
    banyan_tensors_destroy(tensors);
    banyan_tensors_destroy(others);
    banyan_layout_destroy(layout);
    banyan_layout_destroy(other);
    free(taken);
    free(saved);
    free(lost);
}

static void a_failure_of_one_rank_comes_to_all_and_leaves_nothing(void **state)
{
    struct round round = {*state, 0};
    char *taken = path_in(&round, "taken");
    FILE *file = fopen(taken, "w");
    assert_non_null(file);
    fclose(file);
    free(taken);
    ranks_run(RANKS, save_in_bad_ways, &round);
    assert_int_equal(folder_entries(*state), 2);
}

static void save_twice(banyan_world *world, void *context)
{
    banyan_tensors *tensors;
    banyan_layout *layout = simple_layout(BANYAN_F32, &tensors);
    CHECK_OK(banyan_checkpoint_save(context, layout, tensors, world, NULL));
    CHECK_FAILS(banyan_checkpoint_save(context, layout, tensors, world, NULL), BANYAN_ERR_INVALID,
                "saved exists already");
    banyan_tensors_destroy(tensors);
    banyan_layout_destroy(layout);
}

static void an_empty_folder_is_saved_into_and_a_full_one_is_not(void **state)
{
    char *saved = folder_path(*state, "saved");
    assert_int_equal(mkdir(saved, 0777), 0);
    ranks_run(2, save_twice, saved);
    free(saved);
}

/* A hidden folder for folder/saved with a rank's file in it, as between writing and naming. */
static char *leave_hidden(const char *folder, int *lock)
{
    char *saved = folder_path(folder, "saved"), *hidden;
    assert_int_equal(new_folder_make(saved, &hidden, lock), BANYAN_OK);
    char *rank = folder_path(hidden, "rank-00000"), *file = folder_path(rank, "model.safetensors");
    assert_int_equal(mkdir(rank, 0777), 0);
    int fd = open(file, O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0);
    close(fd);
    free(saved);
    free(rank);
    free(file);
    return hidden;
}

static void leftovers_of_a_killed_writer_go_with_the_next_of_that_name(void **state)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int lock;
        leave_hidden(*state, &lock);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(folder_entries(*state), 1);
    char *other = folder_path(*state, "other"), *saved = folder_path(*state, "saved");
    assert_int_equal(new_folder_check(other), BANYAN_OK);
    assert_int_equal(folder_entries(*state), 1);
    assert_int_equal(new_folder_check(saved), BANYAN_OK);
    assert_int_equal(folder_entries(*state), 0);
    free(other);
    free(saved);
}

static void the_folder_of_a_running_writer_stays(void **state)
{
    int lock;
    char *hidden = leave_hidden(*state, &lock), *saved = folder_path(*state, "saved");
    assert_true(lock >= 0);
    int second = new_folder_lock(hidden);
    assert_true(second >= 0);
    close(lock);
    assert_int_equal(new_folder_check(saved), BANYAN_OK);
    assert_int_equal(folder_entries(hidden), 1);
    close(second);
    free(hidden);
    free(saved);
}

#define PIECE(local, tensor, start, extent, local_start, dim_map)                                  \
    "{\"local\":\"" local "\",\"tensor\":\"" tensor "\",\"start\":" start ",\"extent\":" extent    \
    ",\"local_start\":" local_start ",\"dim_map\":" dim_map "}"
#define INDEX(file, pieces)                                                                        \
    "{\"format\":\"banyan.checkpoint\",\"version\":1,\"tensors\":{\"w\":{\"dtype\":\"F32\","       \
    "\"shape\":[4,6]}},\"files\":[{\"file\":\"" file "\",\"pieces\":[" pieces "]}]}"
#define GOOD "rank-00000/model.safetensors"

static void indexes_that_lie_are_refused_with_their_place(void **state)
{
    static const struct {
        const char *index, *part;
        banyan_status status;
    } cases[] = {
        {"", "banyan.index.json:1:", BANYAN_ERR_FORMAT},
        {"[]", "no \"format\"", BANYAN_ERR_FORMAT},
        {"{\"format\":\"banyan.checkpoint\",\"version\":1,\"tensors\":{},\"facts\":{\"a\":[]}}",
         "facts.a is not a number", BANYAN_ERR_FORMAT},
        {"{\"format\":\"banyan.checkpoint\",\"version\":1,\"tensors\":{},\"facts\":7}",
         "facts is not an object", BANYAN_ERR_FORMAT},
        {"{\"format\":\"x\"}", "format \"x\"", BANYAN_ERR_FORMAT},
        {"{\"format\":\"banyan.checkpoint\",\"version\":2}", "version is 2", BANYAN_ERR_FORMAT},
        {INDEX("../m", ""), "files[0] has file \"../m\"", BANYAN_ERR_FORMAT},
        {INDEX("/m", ""), "not in this folder", BANYAN_ERR_FORMAT},
        {INDEX("a//m", ""), "not in this folder", BANYAN_ERR_FORMAT},
        {INDEX("a/..", ""), "not in this folder", BANYAN_ERR_FORMAT},
        {INDEX("none", ""), "none", BANYAN_ERR_NOT_FOUND},
        {INDEX(GOOD, ""), "no file has box [0:4, 0:6] of tensor w", BANYAN_ERR_INVALID},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,5]", "[0,0]", "[0,1]")),
         "no file has box [0:4, 5:6] of tensor w", BANYAN_ERR_INVALID},
        {INDEX(GOOD, PIECE("l", "v", "[0,0]", "[4,6]", "[0,0]", "[0,1]")),
         "files[0].pieces[0] is of tensor v", BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("x", "w", "[0,0]", "[4,6]", "[0,0]", "[0,1]")), "has no tensor x",
         BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,7]", "[0,0]", "[0,1]")),
         "box [0:4, 0:7], out of tensor w of shape [4, 6]", BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[1,0]", "[9223372036854775807,6]", "[0,0]", "[0,1]")),
         "out of tensor w", BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,6]", "[0,1]", "[0,1]")),
         "does not lie in tensor l", BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,6]", "[0,9223372036854775807]", "[0,1]")),
         "does not lie in tensor l", BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,6]", "[0]", "[0,1]")), "dim_map[1] is 1",
         BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,6]", "[0,0,0]", "[0,1]")),
         "does not lie in tensor l", BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,6]", "[0,0]", "[1,1]")),
         "maps two dimensions to local dimension 1", BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,6]", "[0,0]", "[-1,1]")),
         "maps dimension 0 to none, and the box has 4 elements along it, not 1", BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,6]", "[0,0]", "[-2,1]")), "dim_map[0] is -2",
         BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("l", "w", "[0,0]", "[4,6]", "[0,0]", "[0]")), "must have 2",
         BANYAN_ERR_FORMAT},
        {INDEX(GOOD, PIECE("b", "w", "[0,0]", "[4,6]", "[0,0]", "[0,1]")), "b in " GOOD " is BF16",
         BANYAN_ERR_FORMAT},
    };
    struct round round = {*state, 0};
    char *rank = path_in(&round, "rank-00000"), *joined = path_in(&round, "joined");
    char *file = path_in(&round, GOOD), *index = path_in(&round, "banyan.index.json");
    const char *const locals[2] = {"l", "b"};
    int64_t shape[2] = {4, 6};
    float memory[24] = {0};
    DLTensor tensors[2] = {
        {.data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = BANYAN_F32, .shape = shape},
        {.data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = BANYAN_BF16, .shape = shape}};
    assert_int_equal(mkdir(rank, 0777), 0);
    CHECK_OK(banyan_checkpoint_write(file, locals, tensors, 2, NULL));
    CHECK_FAILS(banyan_checkpoint_join(*state, joined, NULL), BANYAN_ERR_NOT_FOUND,
                "banyan.index.json");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *text = fopen(index, "w");
        fputs(cases[i].index, text);
        fclose(text);
        CHECK_FAILS(banyan_checkpoint_join(*state, joined, NULL), cases[i].status, cases[i].part);
        assert_int_equal(folder_entries(*state), 2);
    }
    free(rank);
    free(joined);
    free(file);
    free(index);
}

static void tensors_that_a_checkpoint_lacks_cannot_be_loaded(void **state)
{
    char *path = folder_path(*state, "model.safetensors");
    const char *name = "w";
    int64_t shape[2] = {16, 64};
    float memory[16 * 64] = {0};
    DLTensor tensor = {
        .data = memory, .device = {kDLCPU, 0}, .ndim = 2, .dtype = BANYAN_F32, .shape = shape};
    banyan_tensors *tensors;
    banyan_layout *layout = simple_layout(BANYAN_F32, &tensors);
    banyan_checkpoint *checkpoint;
    const struct {
        const char *name;
        DLDataType dtype;
        int64_t cols;
        banyan_status status;
        const char *part;
    } cases[] = {
        {"w", BANYAN_F32, 64, BANYAN_OK, ""},
        {"v", BANYAN_F32, 64, BANYAN_ERR_NOT_FOUND, "has no tensor w"},
        {"w", {kDLInt, 32, 1}, 64, BANYAN_ERR_MISMATCH, "w is I32 in the checkpoint and F32"},
        {"w", BANYAN_F32, 63, BANYAN_ERR_MISMATCH, "[16, 63] in the checkpoint and [16, 64]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        name = cases[i].name;
        tensor.dtype = cases[i].dtype;
        shape[1] = cases[i].cols;
        CHECK_OK(banyan_checkpoint_write(path, &name, &tensor, 1, NULL));
        CHECK_OK(banyan_checkpoint_open(path, &checkpoint));
        if (cases[i].status == BANYAN_OK)
            CHECK_OK(banyan_checkpoint_load(checkpoint, layout, tensors, NULL));
        else
            CHECK_FAILS(banyan_checkpoint_load(checkpoint, layout, tensors, NULL), cases[i].status,
                        cases[i].part);
        banyan_checkpoint_close(checkpoint);
    }
    banyan_tensors_destroy(tensors);
    banyan_layout_destroy(layout);
    free(path);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(saved_layouts_join_and_load),
        IN_FOLDER(tensors_larger_than_the_buffer_are_joined),
        IN_FOLDER(facts_of_layouts_are_saved_and_read_back),
        IN_FOLDER(small_files_go_with_a_save_and_a_join_whole_or_not_at_all),
        IN_FOLDER(a_rank_that_is_killed_leaves_no_folder),
        IN_FOLDER(leftovers_of_a_killed_writer_go_with_the_next_of_that_name),
        IN_FOLDER(the_folder_of_a_running_writer_stays),
        IN_FOLDER(a_failure_of_one_rank_comes_to_all_and_leaves_nothing),
        IN_FOLDER(an_empty_folder_is_saved_into_and_a_full_one_is_not),
        IN_FOLDER(indexes_that_lie_are_refused_with_their_place),
        IN_FOLDER(tensors_that_a_checkpoint_lacks_cannot_be_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
