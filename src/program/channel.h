/* Code shared by memory and port channels. */
#ifndef PROGRAM_CHANNEL_H
#define PROGRAM_CHANNEL_H

#include "program/builder.h"

/* Check the ends and add the channel to the source's list. */
bool channel_make(banyan_program *program, plan_channel_type type, int destination, int source,
                  program_channel *made);

/* Add a signal, wait or flush. `channel` NULL: do nothing. */
void channel_add_sync(const program_channel *channel, const char *operation, plan_op_kind kind,
                      int thread_block, banyan_sync sync);

/* Add a put: `local` at the source to `remote` at the destination. */
void channel_add_put(const program_channel *channel, const char *operation, plan_op_kind kind,
                     banyan_chunk remote, banyan_chunk local, banyan_program_by by);

/* Memory channels only. Get: `remote` at the destination to `local` at the source. Reduce: `local`
 * and `remote` chunks to a chunk of the source. */
void channel_add_get(const program_channel *channel, banyan_chunk local, banyan_chunk remote,
                     banyan_program_by by);
void channel_add_reduce(const program_channel *channel, banyan_chunk local,
                        const banyan_chunk *remote, int count, banyan_chunk destination,
                        banyan_reduce_op reduce_op, banyan_program_by by);

#endif
