/* Check that a box crosses the network once to each node. */
#include <string.h>

#include "reshard/layout/box.h"
#include "reshard/verify/check.h"

/* A box that a node receives over the network. */
typedef struct node_receive {
    int node, rank;
    const banyan_transfer *transfer;
} node_receive;

typedef struct node_receives {
    ARRAY(node_receive) list;
    banyan_box *boxes; /* scratch space for as many */
} node_receives;

/* Boxes of one tensor serve each other if they are stored with equal bytes. */
static int nodes_compare_tensors(const node_receive *a, const node_receive *b)
{
    RETURN_IF_UNEQUAL(a->node, b->node);
    int order = strcmp(a->transfer->name, b->transfer->name);
    if (order != 0)
        return order;
    RETURN_IF_UNEQUAL(a->transfer->value_map, b->transfer->value_map);
    return memcmp(&a->transfer->destination_dtype, &b->transfer->destination_dtype,
                  sizeof a->transfer->destination_dtype);
}

static int nodes_compare_in_qsort(const void *left, const void *right)
{
    const node_receive *a = left, *b = right;
    int order = nodes_compare_tensors(a, b);
    return order != 0 ? order : COMPARE(a->rank, b->rank);
}

static banyan_status nodes_collect(const check_rank *all, int count, int ranks_per_node,
                                   node_receives *receives)
{
    for (int r = 0; r < count; r++)
        for (size_t i = 0; i < all[r].transfers->recv_count; i++) {
            const banyan_transfer *transfer = &all[r].transfers->recvs[i];
            int node = r / ranks_per_node;
            if (transfer->source_rank / ranks_per_node == node)
                continue;
            node_receive made = {node, r, transfer};
            RETURN_IF_NO_MEMORY(array_push(&receives->list, made));
        }
    return BANYAN_OK;
}

/* Check the boxes of one tensor at one node. */
static banyan_status nodes_check_tensor(const node_receives *receives, size_t first, size_t end,
                                        banyan_reshard_report *report)
{
    bool found;
    size_t a, b;
    for (size_t i = first; i < end; i++)
        receives->boxes[i - first] = receives->list.data[i].transfer->box;
    RETURN_IF_FAILED(boxes_find_overlap(receives->boxes, end - first, &found, &a, &b));
    if (!found)
        return BANYAN_OK;
    banyan_box both = {0};
    char text[BOX_TEXT_BYTES];
    const node_receive *one = &receives->list.data[first + (a < b ? a : b)];
    const node_receive *other = &receives->list.data[first + (a < b ? b : a)];
    banyan_box_intersect(&one->transfer->box, &other->transfer->box, &both);
    return check_report_add(report, BANYAN_RESHARD_AGAIN, other->rank,
                            "%s of \"%s\" crosses the network to node %d for this rank and for "
                            "rank %d",
                            banyan_box_format(&both, text, sizeof text), one->transfer->name,
                            one->node, one->rank);
}

static banyan_status nodes_check_receives(node_receives *receives, banyan_reshard_report *report)
{
    size_t count = receives->list.count;
    const node_receive *list = receives->list.data;
    RETURN_IF_NO_MEMORY(receives->boxes = alloc_zeroed(count + 1, sizeof *receives->boxes,
                                                       "the check of a plan's nodes"));
    sort_elements(receives->list.data, count, sizeof *list, nodes_compare_in_qsort);
    for (size_t first = 0, i = 1; i <= count; i++) {
        if (i < count && nodes_compare_tensors(&list[first], &list[i]) == 0)
            continue;
        RETURN_IF_FAILED(nodes_check_tensor(receives, first, i, report));
        first = i;
    }
    return BANYAN_OK;
}

banyan_status check_nodes(const check_rank *all, int count, int ranks_per_node,
                          banyan_reshard_report *report)
{
    node_receives receives = {0};
    banyan_status status = nodes_collect(all, count, ranks_per_node, &receives);
    if (status == BANYAN_OK)
        status = nodes_check_receives(&receives, report);
    free(receives.boxes);
    array_free(&receives.list);
    return status;
}
