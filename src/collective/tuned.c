/* Look up an algorithm's parameters in a tuning table, without a communicator. */
#include <stdio.h>
#include <stdlib.h>

#include <banyan/collective.h>

#include "collective/algorithms/algorithms.h"
#include "collective/tuning.h"
#include "core/error.h"
#include "core/files/file.h"

/* Rows for any number of ranks were measured with few. A plan with their many instances for more
 * ranks than this is too large to compile. */
#define ANY_RANKS_MOST 16

/* Load the built-in table, then a file's rows over it. */
static banyan_status tuned_load_table(const char *path, tuning *table)
{
    char *text;
    size_t bytes;
    RETURN_IF_FAILED(tuning_default(table));
    path = path ? path : getenv("BANYAN_TUNING");
    if (!path || path[0] == '\0')
        return BANYAN_OK;
    RETURN_IF_FAILED(file_read(path, TUNING_FILE_MAX, &text, &bytes));
    banyan_status status = tuning_parse(table, path, text, bytes);
    free(text);
    return status;
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
    banyan_status status = tuned_load_table(tuning_path, &table);
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
