/* The cost of planning at one rank when thousands take part: Qwen3-235B from a training layout to
 * an inference layout on as many other ranks, then with twice the ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <banyan/reshard.h>

#include "core/deadline.h"

#define SAMPLED 32
#define RANKS_PER_NODE 8
#define LIMIT_SECONDS 0.5
#define LIMIT_BYTES ((uint64_t)200 << 20)
#define LIMIT_RATIO 1.3

/* Qwen3-235B-A22B. */
enum { LAYERS = 94, EXPERTS = 128, HIDDEN = 4096, HEADS = 64, KV_HEADS = 4, HEAD = 128 };
enum { EXPERT_WIDTH = 1536, VOCABULARY = 151936 };

static void write_tensor(FILE *file, const char *name, int rows, int columns)
{
    static bool more;
    fprintf(file, "%s\"%s\": {\"shape\": [", more ? ",\n" : "{", name);
    more = true;
    if (columns > 0)
        fprintf(file, "%d, %d", rows, columns);
    else
        fprintf(file, "%d", rows);
    fprintf(file, "], \"dtype\": \"BF16\"}");
}

static void write_layer(FILE *file, int layer)
{
    const struct {
        const char *name;
        int rows, columns;
    } tensors[] = {
        {"input_layernorm.weight", HIDDEN, 0},
        {"post_attention_layernorm.weight", HIDDEN, 0},
        {"self_attn.q_norm.weight", HEAD, 0},
        {"self_attn.k_norm.weight", HEAD, 0},
        {"self_attn.q_proj.weight", HEADS * HEAD, HIDDEN},
        {"self_attn.k_proj.weight", KV_HEADS * HEAD, HIDDEN},
        {"self_attn.v_proj.weight", KV_HEADS * HEAD, HIDDEN},
        {"self_attn.o_proj.weight", HIDDEN, HEADS * HEAD},
        {"mlp.gate.weight", EXPERTS, HIDDEN},
    };
    char name[128];
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, tensors[i].name);
        write_tensor(file, name, tensors[i].rows, tensors[i].columns);
    }
    for (int expert = 0; expert < EXPERTS; expert++) {
        static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
        for (int p = 0; p < 3; p++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, expert,
                     projections[p]);
            write_tensor(file, name, p < 2 ? EXPERT_WIDTH : HIDDEN, p < 2 ? HIDDEN : EXPERT_WIDTH);
        }
    }
}

static banyan_status make_model(banyan_model **model)
{
    FILE *file = tmpfile();
    if (!file)
        return banyan_error_set(BANYAN_ERR_SYSTEM, "no temporary file for the model's list");
    write_tensor(file, "model.embed_tokens.weight", VOCABULARY, HIDDEN);
    for (int layer = 0; layer < LAYERS; layer++)
        write_layer(file, layer);
    write_tensor(file, "model.norm.weight", HIDDEN, 0);
    write_tensor(file, "lm_head.weight", VOCABULARY, HIDDEN);
    fputs("}\n", file);
    fflush(file);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
    banyan_status status = banyan_model_load(path, model);
    fclose(file);
    return status;
}

struct scene {
    const banyan_model *model;
    const banyan_rules *rules;
    banyan_spec from, to;
    int source_ranks;
};

static banyan_status rank_layouts(void *context, int rank, banyan_layout *source,
                                  banyan_layout *destination)
{
    const struct scene *scene = context;
    if (rank < scene->source_ranks)
        banyan_layout_add_model(source, scene->model, scene->rules, &scene->from, rank, 0);
    else
        banyan_layout_add_model(destination, scene->model, scene->rules, &scene->to,
                                rank - scene->source_ranks, scene->source_ranks);
    return BANYAN_OK;
}

struct result {
    int world_size;
    double slowest_s, mean_s, slowest_owner_s, slowest_proof_s;
    uint64_t most_bytes;
};

static banyan_status measure(struct scene *scene, const char *from, const char *to,
                             struct result *result)
{
    banyan_status status = banyan_spec_parse(from, &scene->from);
    if (status == BANYAN_OK)
        status = banyan_spec_parse(to, &scene->to);
    if (status != BANYAN_OK)
        return status;
    scene->source_ranks = banyan_spec_world_size(&scene->from);
    banyan_reshard_sample_world world = {
        .world_size = scene->source_ranks + banyan_spec_world_size(&scene->to),
        .ranks_per_node = RANKS_PER_NODE,
        .layouts = rank_layouts,
        .context = scene,
    };
    int ranks[SAMPLED];
    for (int i = 0; i < SAMPLED; i++)
        ranks[i] = i * (world.world_size - 1) / (SAMPLED - 1);
    banyan_reshard_plan_cost costs[SAMPLED];
    status = banyan_reshard_plan_sample(&world, NULL, ranks, SAMPLED, costs);
    if (status != BANYAN_OK)
        return status;
    *result = (struct result){.world_size = world.world_size};
    for (int i = 0; i < SAMPLED; i++) {
        if (costs[i].seconds > result->slowest_s)
            result->slowest_s = costs[i].seconds;
        if (costs[i].owner_seconds > result->slowest_owner_s)
            result->slowest_owner_s = costs[i].owner_seconds;
        if (costs[i].prove_seconds > result->slowest_proof_s)
            result->slowest_proof_s = costs[i].prove_seconds;
        if (costs[i].bytes > result->most_bytes)
            result->most_bytes = costs[i].bytes;
        result->mean_s += costs[i].seconds / SAMPLED;
    }
    return BANYAN_OK;
}

static int verdict(bool good)
{
    puts(good ? "  ok" : "  MISSED");
    return good ? 0 : 1;
}

static int report(const struct result *once, const struct result *twice)
{
    int missed = 0;
    const struct result *results[] = {once, twice};
    for (int i = 0; i < 2; i++) {
        printf("%5d ranks, slowest rank   %8.1f ms   limit %.0f ms", results[i]->world_size,
               results[i]->slowest_s * 1e3, LIMIT_SECONDS * 1e3);
        missed += verdict(results[i]->slowest_s < LIMIT_SECONDS);
        printf("%5d ranks, slowest owner  %8.1f ms   of directory entries, for all that ask\n",
               results[i]->world_size, results[i]->slowest_owner_s * 1e3);
        printf("%5d ranks, slowest proof  %8.1f ms   besides, once before the first run\n",
               results[i]->world_size, results[i]->slowest_proof_s * 1e3);
        printf("%5d ranks, most memory    %8.1f MiB  limit %.0f MiB", results[i]->world_size,
               (double)results[i]->most_bytes / (1 << 20), (double)LIMIT_BYTES / (1 << 20));
        missed += verdict(results[i]->most_bytes < LIMIT_BYTES);
    }
    const double ratios[] = {twice->mean_s / once->mean_s, twice->slowest_s / once->slowest_s};
    for (int i = 0; i < 2; i++) {
        printf("twice the ranks, %-12s %8.2f times limit %.1f times",
               i == 0 ? "mean rank" : "slowest rank", ratios[i], LIMIT_RATIO);
        missed += verdict(ratios[i] <= LIMIT_RATIO);
    }
    return missed;
}

int main(void)
{
    struct scene scene = {0};
    banyan_model *model = NULL;
    banyan_rules *rules = NULL;
    struct result once, twice;
    banyan_status status = make_model(&model);
    if (status == BANYAN_OK)
        status = banyan_rules_load(NULL, &rules);
    if (status == BANYAN_OK) {
        scene.model = model;
        scene.rules = rules;
        printf("planning Qwen3-235B (%zu tensors), tp=8,pp=8,ep=16 to tp=8,ep=64 on as many other "
               "ranks, %d ranks measured, a core each\n",
               banyan_model_tensor_count(model), SAMPLED);
        fflush(stdout);
        status = measure(&scene, "tp=8,pp=8,dp=16,ep=16", "tp=8,dp=128,ep=64", &once);
    }
    if (status == BANYAN_OK)
        status = measure(&scene, "tp=8,pp=8,dp=32,ep=16", "tp=8,dp=256,ep=64", &twice);
    int missed = 1;
    if (status == BANYAN_OK)
        missed = report(&once, &twice);
    else
        fprintf(stderr, "bench_plan: %s\n", banyan_last_error());
    banyan_rules_destroy(rules);
    banyan_model_destroy(model);
    return missed != 0;
}
