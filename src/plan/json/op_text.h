/* Operations as one line of text each. */
#ifndef PLAN_JSON_OP_TEXT_H
#define PLAN_JSON_OP_TEXT_H

#include "core/text/text.h"
#include "plan/plan.h"

/* Append "put memory i[0..2) -> s[4..6)@1": buffers of this rank, and of others after @. For a
 * pipeline only its head, without its operations. */
void op_text_add(bytes_writer *text, const banyan_plan *plan, int rank,
                 const plan_thread_block *block, const plan_op *op);

#endif
