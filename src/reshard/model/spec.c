/* Parse parallel layouts: "tp=2,pp=2,packing=vllm". */
#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "reshard/model/spec.h"

/* Values that the text gives; 0 (the vocabulary: -1) if it does not. */
struct spec_values {
    int64_t tp, pp, dp, fsdp, ep, etp, world;
    int64_t vocab_multiple, head;
    const char *packing;
    size_t packing_bytes;
};

static const struct number_key {
    const char *name;
    size_t offset;
    int64_t low, high;
} number_keys[] = {
    {"tp", offsetof(struct spec_values, tp), 1, INT_MAX},
    {"pp", offsetof(struct spec_values, pp), 1, INT_MAX},
    {"dp", offsetof(struct spec_values, dp), 1, INT_MAX},
    {"fsdp", offsetof(struct spec_values, fsdp), 1, INT_MAX},
    {"ep", offsetof(struct spec_values, ep), 1, INT_MAX},
    {"etp", offsetof(struct spec_values, etp), 1, INT_MAX},
    {"world", offsetof(struct spec_values, world), 1, INT_MAX},
    {"vocab_multiple", offsetof(struct spec_values, vocab_multiple), 0, INT_MAX},
    {"head", offsetof(struct spec_values, head), 1, INT_MAX},
};

/* One "key=value" of the text. */
struct item {
    const char *text; /* the whole spec */
    const char *key, *value;
    size_t key_bytes, value_bytes;
};

static banyan_status fail_at(const struct item *item, const char *at, size_t bytes,
                             const char *problem)
{
    return error_set(BANYAN_ERR_INVALID, "spec \"%s\": \"%.*s\" at character %zu %s", item->text,
                     (int)bytes, at, (size_t)(at - item->text) + 1, problem);
}

static banyan_status spec_read_number(const struct item *item, const struct number_key *key,
                                      int64_t *value)
{
    char problem[96];
    snprintf(problem, sizeof problem, "is not a number from %" PRId64 " to %" PRId64, key->low,
             key->high);
    int64_t number = 0;
    for (size_t i = 0; i < item->value_bytes; i++) {
        if (!isdigit((unsigned char)item->value[i]) || number > key->high / 10)
            return fail_at(item, item->value, item->value_bytes, problem);
        number = number * 10 + (item->value[i] - '0');
    }
    if (item->value_bytes == 0 || number < key->low || number > key->high)
        return fail_at(item, item->value, item->value_bytes, problem);
    *value = number;
    return BANYAN_OK;
}

static banyan_status spec_read_packing(const struct item *item, struct spec_values *given)
{
    bool word = item->value_bytes > 0;
    for (size_t i = 0; i < item->value_bytes; i++)
        word = word && (isalnum((unsigned char)item->value[i]) || item->value[i] == '_');
    if (!word || item->value_bytes >= sizeof((banyan_spec){0}).packing)
        return fail_at(item, item->value, item->value_bytes, "is not a packing's name");
    given->packing = item->value;
    given->packing_bytes = item->value_bytes;
    return BANYAN_OK;
}

static bool key_is(const struct item *item, const char *name)
{
    return strlen(name) == item->key_bytes && memcmp(item->key, name, item->key_bytes) == 0;
}

static banyan_status read_item(const struct item *item, struct spec_values *given, uint32_t *seen)
{
    const size_t keys = sizeof number_keys / sizeof *number_keys;
    size_t k = 0;
    while (k < keys && !key_is(item, number_keys[k].name))
        k++;
    if (k == keys && !key_is(item, "packing"))
        return fail_at(item, item->key, item->key_bytes,
                       "is not a key: there are tp, pp, dp, fsdp, ep, etp, world, packing, "
                       "vocab_multiple and head");
    if (*seen & 1U << k)
        return fail_at(item, item->key, item->key_bytes, "is there twice");
    *seen |= 1U << k;
    if (k == keys)
        return spec_read_packing(item, given);
    return spec_read_number(item, &number_keys[k],
                            (int64_t *)((char *)given + number_keys[k].offset));
}

static banyan_status spec_read_all(const char *text, struct spec_values *given)
{
    uint32_t seen = 0;
    for (const char *at = text; *at;) {
        struct item item = {.text = text, .key = at};
        size_t bytes = strcspn(at, ",");
        const char *equals = memchr(at, '=', bytes);
        if (!equals)
            return fail_at(&item, at, bytes, "is not key=value");
        item.key_bytes = (size_t)(equals - at);
        item.value = equals + 1;
        item.value_bytes = bytes - item.key_bytes - 1;
        RETURN_IF_FAILED(read_item(&item, given, &seen));
        at += bytes;
        if (*at == ',' && *++at == '\0')
            return fail_at(&item, at - 1, 1, "ends the text");
    }
    return BANYAN_OK;
}

static int64_t or_one(int64_t value)
{
    return value > 0 ? value : 1;
}

/* Derive dp from the world's size, if that is given. */
static banyan_status derive_dp(const char *text, struct spec_values *given)
{
    int64_t others;
    if (__builtin_mul_overflow(given->tp, given->pp, &others) ||
        __builtin_mul_overflow(others, given->fsdp, &others) || others > INT_MAX)
        return error_set(BANYAN_ERR_INVALID, "spec \"%s\": more than %d ranks", text, INT_MAX);
    if (given->world == 0) {
        given->dp = or_one(given->dp);
        return BANYAN_OK;
    }
    if (given->world % others != 0)
        return error_set(BANYAN_ERR_INVALID,
                         "spec \"%s\": world=%" PRId64 " is not a multiple of tp × pp × fsdp = "
                         "%" PRId64,
                         text, given->world, others);
    int64_t dp = given->world / others;
    if (given->dp > 0 && given->dp != dp)
        return error_set(BANYAN_ERR_INVALID,
                         "spec \"%s\": world=%" PRId64 " leaves dp=%" PRId64 ", not %" PRId64, text,
                         given->world, dp, given->dp);
    given->dp = dp;
    return BANYAN_OK;
}

banyan_status spec_check(const banyan_spec *spec, const char *text)
{
    const int parts[] = {spec->tp, spec->pp, spec->dp, spec->fsdp, spec->ep, spec->etp};
    int64_t ranks = 1, experts = (int64_t)spec->ep * spec->etp;
    for (int i = 0; i < 6; i++) {
        if (parts[i] < 1)
            return error_set(BANYAN_ERR_INVALID, "spec \"%s\": a part of %d ranks", text, parts[i]);
        if (i < 4)
            ranks *= parts[i];
        if (ranks > INT_MAX)
            return error_set(BANYAN_ERR_INVALID, "spec \"%s\": more than %d ranks", text, INT_MAX);
    }
    if (spec->head < 0)
        return error_set(BANYAN_ERR_INVALID, "spec \"%s\": heads of %" PRId64 " elements", text,
                         spec->head);
    int64_t stage = ranks / spec->pp;
    if (stage % experts != 0)
        return error_set(BANYAN_ERR_INVALID,
                         "spec \"%s\": the %" PRId64 " ranks of a stage (tp=%d × fsdp=%d × dp=%d) "
                         "do not divide by etp=%d × ep=%d",
                         text, stage, spec->tp, spec->fsdp, spec->dp, spec->etp, spec->ep);
    return BANYAN_OK;
}

banyan_status banyan_spec_parse(const char *text, banyan_spec *spec)
{
    struct spec_values given = {.vocab_multiple = -1, .packing = "hf", .packing_bytes = 2};
    RETURN_IF_FAILED(spec_read_all(text, &given));
    given.tp = or_one(given.tp);
    given.pp = or_one(given.pp);
    given.fsdp = or_one(given.fsdp);
    RETURN_IF_FAILED(derive_dp(text, &given));
    if (given.etp == 0)
        given.etp = given.ep > 0 ? 1 : given.tp;
    banyan_spec parsed = {
        .tp = (int)given.tp,
        .pp = (int)given.pp,
        .dp = (int)given.dp,
        .fsdp = (int)given.fsdp,
        .ep = (int)or_one(given.ep),
        .etp = (int)given.etp,
        .vocab_multiple = given.vocab_multiple,
        .head = given.head,
    };
    memcpy(parsed.packing, given.packing, given.packing_bytes);
    RETURN_IF_FAILED(spec_check(&parsed, text));
    *spec = parsed;
    return BANYAN_OK;
}

int banyan_spec_world_size(const banyan_spec *spec)
{
    return spec->tp * spec->pp * spec->dp * spec->fsdp;
}

static int spec_gcd(int a, int b)
{
    return b == 0 ? a : spec_gcd(b, a % b);
}

spec_place spec_place_of(const banyan_spec *spec, int rank)
{
    int stage_ranks = spec->tp * spec->fsdp * spec->dp;
    int in_stage = rank % stage_ranks;
    int replicas = stage_ranks / (spec->etp * spec->ep);
    int rows = spec_gcd(replicas, spec->fsdp);
    spec_place place = {
        .rank = rank,
        .stage_ranks = stage_ranks,
        .stage = {rank / stage_ranks, spec->pp, stage_ranks},
    };
    place.dense.shard = (spec_axis){in_stage % spec->tp, spec->tp, 1};
    place.dense.rows = (spec_axis){in_stage / spec->tp % spec->fsdp, spec->fsdp, spec->tp};
    place.dense.replicas =
        (spec_axis){in_stage / (spec->tp * spec->fsdp), spec->dp, spec->tp * spec->fsdp};
    int expert_ranks = spec->etp * spec->ep;
    place.expert.shard = (spec_axis){in_stage % spec->etp, spec->etp, 1};
    place.expert_owner = (spec_axis){in_stage / spec->etp % spec->ep, spec->ep, spec->etp};
    place.expert.rows = (spec_axis){in_stage / expert_ranks % rows, rows, expert_ranks};
    place.expert.replicas =
        (spec_axis){in_stage / (expert_ranks * rows), replicas / rows, expert_ranks * rows};
    return place;
}
