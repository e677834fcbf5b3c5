#include "publish/session.h"

#include <inttypes.h>

#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "world/control.h"

static banyan_status check_transfer(const banyan_transfer *transfer)
{
    char box[BOX_TEXT_BYTES];
    if (!transfer->value_map &&
        banyan_dtype_equal(transfer->source_dtype, transfer->destination_dtype))
        return BANYAN_OK;
    return error_set(
        BANYAN_ERR_UNSUPPORTED,
        "%s of \"%s\" is published in %s and subscribed to in %s%s: the format changes "
        "at the trainer alone, by options.published of the publication",
        banyan_box_format(&transfer->box, box, sizeof box), transfer->name,
        banyan_dtype_name(transfer->source_dtype), banyan_dtype_name(transfer->destination_dtype),
        transfer->value_map ? ", as a function of its value" : "");
}

static banyan_status check_transfers(const banyan_reshard_plan *plan)
{
    for (size_t i = 0; i < banyan_reshard_plan_recv_count(plan); i++)
        RETURN_IF_FAILED(check_transfer(banyan_reshard_plan_recv(plan, i)));
    return BANYAN_OK;
}

/* Plan. The ranks that the subscription's layout names are those of its own world. */
static banyan_status session_plan(struct session *session, const banyan_layout *source,
                                  const banyan_layout *destination)
{
    banyan_world *joined = session->joined;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_layout *shifted = NULL;
    options.checksums = session->hello.verify != 0;
    options.each_rank_fetches = true;
    banyan_status status = destination ? banyan_layout_create(&shifted) : BANYAN_OK;
    if (status == BANYAN_OK && shifted) {
        layout_add_layout(shifted, destination, banyan_world_listening_size(joined));
        status = banyan_layout_status(shifted);
    }
    status = control_agree(joined, status);
    if (status == BANYAN_OK)
        status = banyan_reshard_plan_create(source, shifted, joined, &options, &session->plan);
    error_kept kept = error_keep(status);
    banyan_layout_destroy(shifted);
    return error_again(&kept);
}

banyan_status session_open(struct session *session, const banyan_layout *source,
                           const banyan_layout *destination)
{
    banyan_world *joined = session->joined;
    int first = banyan_world_listening_size(joined);
    RETURN_IF_FAILED(banyan_world_broadcast(joined, &session->hello, sizeof session->hello, first));
    RETURN_IF_FAILED(banyan_world_broadcast(joined, &session->welcome, sizeof session->welcome, 0));
    RETURN_IF_FAILED(session_plan(session, source, destination));
    RETURN_IF_FAILED(control_agree(joined, check_transfers(session->plan)));
    return banyan_copy_service_open(joined, NULL, NULL, &session->service);
}

banyan_status session_fail_pause(uint64_t version)
{
    return error_set(BANYAN_ERR_ABORTED,
                     "the publication has failed or ends before all elements of version %" PRIu64
                     " are fetched",
                     version);
}

banyan_status session_pause(struct session *session)
{
    struct session_turn turn = {0};
    do {
        RETURN_IF_FAILED(banyan_world_broadcast(session->joined, &turn, sizeof turn, 0));
    } while (turn.kind == TURN_WAIT);
    return turn.kind == TURN_FETCH ? BANYAN_OK : session_fail_pause(turn.version);
}

void session_close(struct session *session)
{
    banyan_reshard_plan_destroy(session->plan);
    banyan_copy_service_close(session->service);
    (void)banyan_world_close(session->joined);
    *session = (struct session){0};
}
