/* Publications and subscriptions, with a fault at one rank. Each call opens them, uses them and
 * closes them, since a fault in one of their threads ends them alone. */
#include "faults/job.h"

#include "core/status.h"

#define SECRET "0f1e2d3c4b5a69788796a5b4c3d2e1f0"

/* A rank's tensors. */
struct holding {
    banyan_layout *layout;
    banyan_tensors *tensors;
};

static void have_tensors(job_rank *r)
{
    struct holding *holding = calloc(1, sizeof *holding);
    banyan_piece piece = {.name = "matrix",
                          .ndim = 2,
                          .shape = {r->count, 100},
                          .dim_map = {0, 1},
                          .box = {.ndim = 2, .start = {r->rank, 0}, .extent = {1, 100}}};
    CHECK(holding != NULL);
    CHECK_OK(banyan_layout_create(&holding->layout));
    piece.tensor =
        banyan_layout_add_tensor(holding->layout, "matrix", BANYAN_F32, 2, (int64_t[]){1, 100});
    banyan_layout_add_piece(holding->layout, &piece);
    CHECK_OK(banyan_tensors_alloc(holding->layout, NULL, &holding->tensors));
    r->things = holding;
}

static void free_tensors(job_rank *r)
{
    struct holding *holding = r->things;
    banyan_tensors_destroy(holding->tensors);
    banyan_layout_destroy(holding->layout);
    free(holding);
    r->things = NULL;
}

static banyan_status publish_twice(job_rank *r)
{
    struct holding *holding = r->things;
    banyan_publication *publication;
    banyan_publish_report report = {0};
    RETURN_IF_FAILED(banyan_publication_open(r->world, holding->layout, "127.0.0.1:0", SECRET, NULL,
                                             &publication));
    banyan_status status = banyan_publication_publish(publication, holding->tensors, 1, &report);
    CHECK(status != BANYAN_OK || report.elems == 100);
    if (status == BANYAN_OK)
        status = banyan_publication_publish(publication, holding->tensors, 2, &report);
    CHECK(status != BANYAN_OK || report.changed == 0);
    error_kept kept = error_keep(status);
    banyan_publication_close(publication);
    return error_again(&kept);
}

/* Nobody publishes at port 1 of this machine. */
static banyan_status subscribe_in_vain(job_rank *r)
{
    struct holding *holding = r->things;
    banyan_subscription *subscription;
    uint64_t version = 7;
    RETURN_IF_FAILED(banyan_subscription_open(r->world, holding->layout, holding->tensors,
                                              "127.0.0.1:1", SECRET, NULL, &subscription));
    banyan_status status = banyan_subscription_commit(subscription, &version);
    CHECK(status != BANYAN_OK || version == 0);
    if (status == BANYAN_OK) {
        status = banyan_subscription_rollback(subscription, &version);
        CHECK(status != BANYAN_OK);
        if (status == BANYAN_ERR_NOT_FOUND)
            status = BANYAN_OK;
    }
    error_kept kept = error_keep(status);
    banyan_subscription_close(subscription);
    return error_again(&kept);
}

static const job_case cases[] = {
    {.name = "publish_twice",
     .prepare = have_tensors,
     .call = publish_twice,
     .finish = free_tensors},
    {.name = "subscribe_in_vain",
     .prepare = have_tensors,
     .call = subscribe_in_vain,
     .finish = free_tensors},
};

int main(void)
{
    return job_main(cases, sizeof cases / sizeof *cases, 10);
}
