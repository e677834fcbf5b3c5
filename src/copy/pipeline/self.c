/* Moves within a rank: no slots, one copy. */
#include <stdlib.h>

#include "copy/pipeline/executor.h"
#include "core/error.h"

banyan_status pipeline_move_pairs(const banyan_pipeline *pipeline, const banyan_send_op *sends,
                                  const banyan_recv_op *recvs, const banyan_copy_pair *pairs,
                                  size_t count)
{
    const banyan_pipeline_launcher *launcher = pipeline->launcher;
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++)
        status = launcher->copy(launcher->context, pipeline->copy_stream,
                                &recvs[pairs[i].recv].tensor, &sends[pairs[i].send].tensor);
    if (!pipeline->copy_stream)
        return status;
    banyan_status end = launcher->synchronize(launcher->context, pipeline->copy_stream);
    return status != BANYAN_OK ? status : end;
}

banyan_status banyan_pipeline_self_moves(banyan_pipeline *pipeline, const banyan_send_op *sends,
                                         size_t send_count, const banyan_recv_op *recvs,
                                         size_t recv_count)
{
    size_t most = send_count < recv_count ? send_count : recv_count, count;
    banyan_copy_pair *pairs = calloc(most ? most : 1, sizeof *pairs);
    if (!pairs)
        return error_no_memory(most * sizeof *pairs, "moves of a rank to itself");
    banyan_status status = banyan_copy_match_local("pipeline", pipeline->rank, sends, send_count,
                                                   recvs, recv_count, pairs, &count);
    if (status == BANYAN_OK)
        status = pipeline_move_pairs(pipeline, sends, recvs, pairs, count);
    free(pairs);
    return status;
}
