/* Operations in a line of words each. */
#ifndef PLAN_JSON_OP_TEXT_H
#define PLAN_JSON_OP_TEXT_H

#include "core/text/text.h"
#include "plan/plan.h"

/* "put memory i[0..2) -> s[4..6)@1": a rank's own buffers, and with @ those of others. For a
 * pipeline its head, without the operations in it. */
void op_text_add(bytes_writer *text, const banyan_plan *plan, int rank,
                 const plan_thread_block *block, const plan_op *op);

#endif
