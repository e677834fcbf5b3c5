/* Load a tuning table, and look up an algorithm's parameters in one. */
#include <stdio.h>
#include <stdlib.h>

#include <banyan/collective.h>

#include "collective/algorithms/algorithms.h"
#include "collective/tuning.h"
#include "core/error.h"
#include "core/files/file.h"
#include "world/control.h"

/* Rows for any number of ranks were measured with few. A plan with their many instances for more
 * ranks than this is too large to compile. */
#define ANY_RANKS_MOST 16

/* Give all ranks rank 0's text, which is NULL if there is none. Collective. */
static banyan_status tuned_share_text(banyan_world *world, banyan_status status, char **text,
                                      size_t *bytes)
{
    bool is_mine = banyan_world_rank(world) == 0;
    uint64_t room = *text ? *bytes + 1 : 0;
    RETURN_IF_FAILED(control_agree(world, status));
    RETURN_IF_FAILED(banyan_world_broadcast(world, &room, sizeof room, 0));
    if (room == 0)
        return BANYAN_OK;
    *bytes = (size_t)room - 1;
    if (!is_mine && !(*text = malloc((size_t)room)))
        status = error_no_memory((size_t)room, "the tuning table");
    RETURN_IF_FAILED(control_agree(world, status));
    return banyan_world_broadcast(world, *text, *bytes, 0);
}

banyan_status tuning_load(tuning *table, banyan_world *world, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    banyan_status status = tuning_default(table);
    path = path ? path : getenv("BANYAN_TUNING");
    bool has_path = path && path[0] != '\0';
    if (status == BANYAN_OK && has_path && (!world || banyan_world_rank(world) == 0))
        status = file_read(path, TUNING_FILE_MAX, &text, &bytes);
    if (world)
        status = tuned_share_text(world, status, &text, &bytes);
    if (status == BANYAN_OK && text)
        status = tuning_parse(table, has_path ? path : "rank 0's tuning table", text, bytes);
    free(text);
    return world ? control_agree(world, status) : status;
}

banyan_status banyan_algorithm_tuned(const char *name, const char *tuning_path, DLDevice device,
                                     DLDataType dtype, uint64_t message_bytes,
                                     banyan_algorithm_params *params)
{
    const algorithm_entry *entry = NULL;
    tuning table = {0};
    RETURN_IF_FAILED(algorithm_find(name, &entry));
    tuning_row wanted = {.kind = entry->info.collective,
                         .on_gpu = device.device_type == kDLCUDA,
                         .ranks = params->ranks,
                         .ranks_per_node =
                             params->ranks_per_node ? params->ranks_per_node : params->ranks,
                         .dtype = dtype,
                         .registered = entry->info.reaches_peers_buffers,
                         .up_to_bytes = message_bytes};
    snprintf(wanted.algorithm, sizeof wanted.algorithm, "%s", name);
    banyan_status status = tuning_load(&table, NULL, tuning_path);
    const tuning_row *row = NULL;
    if (status == BANYAN_OK)
        row = tuning_find_algorithm(&table, &wanted, ANY_RANKS_MOST);
    /* Algorithms that need no registered memory may have rows for registered memory only. */
    wanted.registered = true;
    if (status == BANYAN_OK && !row)
        row = tuning_find_algorithm(&table, &wanted, ANY_RANKS_MOST);
    if (row && params->instances == 0)
        params->instances = row->instances;
    if (row && params->unit_bytes == 0)
        params->unit_bytes = row->unit_bytes;
    tuning_free(&table);
    return status;
}
