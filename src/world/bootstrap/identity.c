#include "world/bootstrap/rendezvous.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/module.h"

#define UNSET (-1)

/* The variables in which a launcher passes a process its rank and the job's size. */
struct source {
    const char *rank, *world_size, *local_rank, *local_size;
};

static const struct source banyan_launch = {"BANYAN_RANK", "BANYAN_WORLD_SIZE", "BANYAN_LOCAL_RANK",
                                            "BANYAN_LOCAL_SIZE"};
static const struct source torchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

/* Read a variable's number; UNSET when the variable is not set. */
static banyan_status identity_read_number(const char *name, int low, int high, int *number)
{
    const char *text = getenv(name);
    if (!text) {
        *number = UNSET;
        return BANYAN_OK;
    }
    char *end = NULL;
    errno = 0;
    long value = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : UNSET;
    if (!end || *end || errno != 0 || value < low || value > high)
        return error_set(BANYAN_ERR_INVALID, "%s is \"%s\", not a number from %d to %d", name, text,
                         low, high);
    *number = (int)value;
    return BANYAN_OK;
}

static banyan_status identity_contradiction(const char *name, const char *other)
{
    return error_set(BANYAN_ERR_INVALID, "%s is \"%s\", but %s is \"%s\"", name, getenv(name),
                     other, getenv(other));
}

/* Read two numbers that are meaningful only together: an index and a count. */
static banyan_status read_pair(const char *which_name, const char *count_name, int *which,
                               int *count)
{
    RETURN_IF_FAILED(identity_read_number(which_name, 0, INT_MAX - 1, which));
    RETURN_IF_FAILED(identity_read_number(count_name, 1, INT_MAX, count));
    if ((*which == UNSET) != (*count == UNSET)) {
        const char *set = *which == UNSET ? count_name : which_name;
        const char *missing = *which == UNSET ? which_name : count_name;
        return error_set(BANYAN_ERR_INVALID, "%s is \"%s\", but %s is not set", set, getenv(set),
                         missing);
    }
    if (*which != UNSET && *which >= *count)
        return identity_contradiction(which_name, count_name);
    return BANYAN_OK;
}

/* Read a text, at most `bytes` long, from the options or a variable; empty when neither is set. */
static banyan_status identity_read_text(const char *given, const char *name, char *text,
                                        size_t bytes)
{
    const char *found = given ? given : getenv(name);
    if (found && strlen(found) >= bytes)
        return error_set(BANYAN_ERR_INVALID, "%s has %zu characters, more than %zu", name,
                         strlen(found), bytes - 1);
    snprintf(text, bytes, "%s", found ? found : "");
    return BANYAN_OK;
}

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The message does not contain the given text, which may be most of a secret. */
static banyan_status read_secret(const char *given, struct identity *found)
{
    const char *text = given ? given : getenv("BANYAN_SECRET");
    if (!text)
        return BANYAN_OK;
    size_t digits = 0;
    for (; hex_digit(text[digits]) >= 0; digits++) {
        if (digits >= 2 * IDENTITY_SECRET_BYTES)
            break;
        unsigned char *byte = &found->secret[digits / 2];
        *byte = (unsigned char)(*byte << 4 | hex_digit(text[digits]));
    }
    if (digits != 2 * IDENTITY_SECRET_BYTES || text[digits])
        return error_set(BANYAN_ERR_INVALID,
                         "%s is not %d hexadecimal digits: it has %zu characters, and the one at "
                         "%zu is wrong",
                         given ? "the secret in the options" : "BANYAN_SECRET",
                         2 * IDENTITY_SECRET_BYTES, strlen(text), digits);
    found->has_secret = true;
    return BANYAN_OK;
}

static banyan_status read_source(const struct source *source, struct identity *found)
{
    RETURN_IF_FAILED(read_pair(source->rank, source->world_size, &found->rank, &found->world_size));
    if (found->rank == UNSET)
        return BANYAN_OK;
    RETURN_IF_FAILED(
        read_pair(source->local_rank, source->local_size, &found->local_rank, &found->local_size));
    if (found->local_size > found->world_size)
        return identity_contradiction(source->local_size, source->world_size);
    return BANYAN_OK;
}

static const char *variable_or(const char *name, const char *otherwise)
{
    const char *text = getenv(name);
    return text ? text : otherwise;
}

/* A node has only one PyTorch store at an address and port at a time; a restarted job has a new
 * restart count. */
static banyan_status read_torchrun(struct identity *found)
{
    RETURN_IF_FAILED(read_source(&torchrun, found));
    if (found->rank == UNSET || !getenv("MASTER_ADDR") || !getenv("MASTER_PORT"))
        return BANYAN_OK;
    int bytes =
        snprintf(found->job, sizeof found->job, "torchrun:%s:%s:%s:%s", getenv("MASTER_ADDR"),
                 getenv("MASTER_PORT"), variable_or("TORCHELASTIC_RUN_ID", ""),
                 variable_or("TORCHELASTIC_RESTART_COUNT", ""));
    if ((size_t)bytes >= sizeof found->job)
        return error_set(BANYAN_ERR_INVALID,
                         "MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RUN_ID have %d characters "
                         "together, more than %zu",
                         bytes, sizeof found->job - 1);
    return BANYAN_OK;
}

static banyan_status read_pmix(struct identity *found, const module_identity_ops **manager)
{
    if (!getenv("PMIX_RANK") && !getenv("PMIX_NAMESPACE"))
        return BANYAN_OK;
    const module_tables *tables;
    module_identity identity;
    RETURN_IF_FAILED(module_load("pmix", &tables));
    RETURN_IF_FAILED(tables->identity->open(&identity));
    if (identity.world_size < 1 || identity.rank < 0 || identity.rank >= identity.world_size)
        return error_set(BANYAN_ERR_INVALID, "PMIx says that this is rank %d of %d in job %s",
                         identity.rank, identity.world_size, identity.job);
    found->rank = identity.rank;
    found->world_size = identity.world_size;
    found->local_rank = identity.local_rank;
    found->local_size = identity.local_size;
    *manager = tables->identity;
    return BANYAN_OK;
}

/* Read the first source that has this process's rank. `*manager` is set if that source can also
 * send bytes between the ranks. */
static banyan_status identity_read_sources(struct identity *found,
                                           const module_identity_ops **manager)
{
    RETURN_IF_FAILED(read_source(&banyan_launch, found));
    if (found->rank == UNSET)
        RETURN_IF_FAILED(read_torchrun(found));
    if (found->rank == UNSET)
        RETURN_IF_FAILED(read_pmix(found, manager));
    if (!*manager && getenv("BANYAN_JOB"))
        return identity_read_text(NULL, "BANYAN_JOB", found->job, sizeof found->job);
    return BANYAN_OK;
}

/* The options take precedence. If the environment describes another process, its rendezvous does
 * not apply. */
static banyan_status apply_ranks(const banyan_world_options *options, struct identity *found,
                                 const module_identity_ops **manager)
{
    if (options->rank < UNSET || options->world_size < UNSET)
        return error_set(BANYAN_ERR_INVALID, "the options say rank %d of %d", options->rank,
                         options->world_size);
    int rank = options->rank >= 0 ? options->rank : found->rank;
    int world_size = options->world_size >= 0 ? options->world_size : found->world_size;
    if (rank == UNSET && world_size == UNSET)
        return BANYAN_OK;
    if (rank == UNSET || world_size == UNSET)
        return error_set(BANYAN_ERR_INVALID, "the options give %s %d, but nothing gives %s",
                         rank == UNSET ? "the world size" : "rank",
                         rank == UNSET ? world_size : rank,
                         rank == UNSET ? "the rank" : "the world size");
    if (world_size < 1 || rank >= world_size)
        return error_set(BANYAN_ERR_INVALID, "rank %d does not exist in a world of %d", rank,
                         world_size);
    if (rank != found->rank || world_size != found->world_size) {
        found->local_rank = found->local_size = UNSET;
        found->job[0] = '\0';
        *manager = NULL;
    }
    found->rank = rank;
    found->world_size = world_size;
    return BANYAN_OK;
}

/* True if the options leave nothing to read from the environment. */
static bool say_all(const banyan_world_options *options)
{
    return options->rank >= 0 && options->world_size >= 0 &&
           (options->unique_id || options->world_size == 1);
}

/* Rank 0 makes the unique id of the rendezvous. The first byte shows whether it succeeded: the
 * other ranks receive the bytes in both cases. */
static banyan_status share_unique_id(const module_identity_ops *manager, struct identity *found)
{
    unsigned char bytes[1 + BANYAN_UNIQUE_ID_BYTES] = {0};
    banyan_unique_id id = {{0}};
    banyan_status made = found->rank == 0 ? banyan_unique_id_create(&id) : BANYAN_OK;
    bytes[0] = made == BANYAN_OK;
    memcpy(bytes + 1, id.bytes, sizeof id.bytes);
    banyan_status passed = manager->broadcast_from_zero(bytes, sizeof bytes);
    RETURN_IF_FAILED(made);
    RETURN_IF_FAILED(passed);
    if (!bytes[0])
        return error_set(BANYAN_ERR_SYSTEM, "rank %d: rank 0 could not make a unique id",
                         found->rank);
    memcpy(found->unique_id.bytes, bytes + 1, sizeof found->unique_id.bytes);
    found->has_unique_id = true;
    return BANYAN_OK;
}

static banyan_status check_rendezvous(const struct identity *found)
{
    bool one_node = found->local_size == found->world_size;
    if (found->has_unique_id || found->world_size == 1 || (one_node && found->job[0]) ||
        (found->address[0] && found->port > 0))
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d of %d cannot find the others: it has no unique id, %s, and %s for "
                     "the address of rank 0",
                     found->rank, found->world_size,
                     !found->job[0] ? "no name of the job (BANYAN_JOB)"
                                    : "its node is not known to have all ranks",
                     found->address[0] ? "no BANYAN_PORT" : "no MASTER_ADDR");
}

banyan_status identity_discover(const banyan_world_options *options, struct identity *identity)
{
    static const banyan_world_options no_options = BANYAN_WORLD_OPTIONS_INIT;
    const module_identity_ops *manager = NULL;
    struct identity found = {
        .rank = UNSET, .world_size = UNSET, .local_rank = UNSET, .local_size = UNSET};
    options = options ? options : &no_options;
    if (!say_all(options))
        RETURN_IF_FAILED(identity_read_sources(&found, &manager));
    RETURN_IF_FAILED(apply_ranks(options, &found, &manager));
    if (found.rank == UNSET) {
        found.rank = 0;
        found.world_size = 1;
    }
    RETURN_IF_FAILED(read_secret(options->secret, &found));
    RETURN_IF_FAILED(
        identity_read_text(options->address, "MASTER_ADDR", found.address, sizeof found.address));
    RETURN_IF_FAILED(identity_read_number("BANYAN_PORT", 1, UINT16_MAX, &found.port));
    if (options->port < 0 || options->port > UINT16_MAX)
        return error_set(BANYAN_ERR_INVALID, "the options say port %d", options->port);
    if (options->port > 0 || found.port == UNSET)
        found.port = options->port;
    if (options->unique_id) {
        found.has_unique_id = true;
        found.unique_id = *options->unique_id;
    } else if (manager && found.world_size > 1) {
        RETURN_IF_FAILED(share_unique_id(manager, &found));
    }
    RETURN_IF_FAILED(check_rendezvous(&found));
    *identity = found;
    return BANYAN_OK;
}
