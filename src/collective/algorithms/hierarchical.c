/* Over nodes: memory channels within a node, port channels between nodes. Rank = node ×
 * ranks_per_node + local rank. The ranks with one local rank on all nodes process one block. */
#include "collective/algorithms/algorithm.h"

enum { MESH_ARRIVED, MESH_WHOLE };

typedef struct node_place {
    int rank, node, local; /* the rank, its node, and its local rank */
    int nodes, locals;     /* number of nodes, and of ranks on each node */
} node_place;

static node_place hierarchical_place_of(const algorithm *a, int rank)
{
    return (node_place){.rank = rank,
                        .node = rank / a->ranks_per_node,
                        .local = rank % a->ranks_per_node,
                        .nodes = a->ranks / a->ranks_per_node,
                        .locals = a->ranks_per_node};
}

static int hierarchical_rank_at(const node_place *p, int node, int local)
{
    return node * p->locals + local;
}

/* EACH_LOCAL: the other ranks of the node. EACH_NODE: the ranks with this local rank on other
 * nodes. */
#define EACH_LOCAL(p, local_)                                                                      \
    for (int local_##_step = 1, local_ = ((p)->local + 1) % (p)->locals;                           \
         local_##_step < (p)->locals; local_ = ((p)->local + ++local_##_step) % (p)->locals)
#define EACH_NODE(p, node_)                                                                        \
    for (int node_##_step = 1, node_ = ((p)->node + 1) % (p)->nodes; node_##_step < (p)->nodes;    \
         node_ = ((p)->node + ++node_##_step) % (p)->nodes)

static void barrier_in_node(algorithm *a, const node_place *p, int mesh)
{
    EACH_LOCAL(p, local)
    mesh_signal(a, mesh, p->rank, hierarchical_rank_at(p, p->node, local), 0);
    EACH_LOCAL(p, local)
    mesh_wait(a, mesh, p->rank, hierarchical_rank_at(p, p->node, local), 0);
}

static void send_to_node(algorithm *a, const node_place *p, int node, uint64_t to, uint64_t from)
{
    int peer = hierarchical_rank_at(p, node, p->local);
    banyan_program_port_put_with_signal(port_between(a, p->rank, peer), slot_at(a, peer, to),
                                        slot_at(a, p->rank, from), 0);
}

static void wait_nodes(algorithm *a, const node_place *p)
{
    EACH_NODE(p, node)
    banyan_program_port_wait(port_between(a, p->rank, hierarchical_rank_at(p, node, p->local)), 0,
                             BANYAN_SYNC_BOTH);
}

static void flush_nodes(algorithm *a, const node_place *p)
{
    EACH_NODE(p, node)
    banyan_program_port_flush(port_between(a, p->rank, hierarchical_rank_at(p, node, p->local)), 0,
                              BANYAN_SYNC_BOTH);
}

/* Reduce the block of the local rank over the node. The block has one chunk for each node. */
static void reduce_in_node(algorithm *a, const node_place *p, uint64_t arrived,
                           banyan_chunk destination)
{
    int size = p->nodes;
    uint64_t mine = arrived + (uint64_t)(p->local * size);
    EACH_LOCAL(p, local)
    remote_put(a, slot_range(a, hierarchical_rank_at(p, p->node, local), mine, size),
               input_range(a, p->rank, local * size, (local + 1) * size), 0);
    barrier_in_node(a, p, MESH_ARRIVED);
    for (int local = 0; local < p->locals; local++)
        a->parts[local] = slot_range(a, p->rank, arrived + (uint64_t)(local * size), size);
    a->parts[p->local] = input_range(a, p->rank, p->local * size, (p->local + 1) * size);
    local_reduce_parts(a, p->locals, destination, 0);
}

/* Each node reduces its own chunk of the block, and all nodes receive all chunks. `sums` holds the
 * node's sums, `arrived` receives the other nodes', `whole` receives the result. */
static void allreduce_nodes(algorithm *a, const node_place *p, uint64_t sums, uint64_t arrived,
                            uint64_t whole)
{
    uint64_t own = (uint64_t)p->node;
    EACH_NODE(p, node)
    send_to_node(a, p, node, arrived + own, sums + (uint64_t)node);
    wait_nodes(a, p);
    for (int node = 0; node < p->nodes; node++)
        a->parts[node] = slot_at(a, p->rank, arrived + (uint64_t)node);
    a->parts[p->node] = slot_at(a, p->rank, sums + own);
    local_reduce_parts(a, p->nodes, slot_at(a, p->rank, whole + own), 0);
    EACH_NODE(p, node)
    send_to_node(a, p, node, whole + own, whole + own);
    wait_nodes(a, p);
    flush_nodes(a, p);
}

/* Reduce-scatter within the nodes, all-reduce between them, all-gather within the nodes. */
void allreduce_hierarchical(algorithm *a)
{
    int size = a->ranks / a->ranks_per_node;
    uint64_t in_node = slots_take(a, a->ranks), sums = slots_take(a, size);
    uint64_t between = slots_take(a, size), whole = slots_take(a, size);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        reduce_in_node(a, &p, in_node, slot_range(a, rank, sums, size));
        allreduce_nodes(a, &p, sums, between, whole);
        barrier_in_node(a, &p, MESH_WHOLE);
        local_copy(a, output_range(a, rank, p.local * size, (p.local + 1) * size),
                   slot_range(a, rank, whole, size), 0);
        EACH_LOCAL(&p, local)
        remote_get(a, output_range(a, rank, local * size, (local + 1) * size),
                   slot_range(a, hierarchical_rank_at(&p, p.node, local), whole, size), 0);
    }
}

/* Gather between the nodes first, so that each byte enters a node once, then within the nodes. */
void allgather_hierarchical(algorithm *a)
{
    int nodes = a->ranks / a->ranks_per_node;
    uint64_t slots = slots_take(a, nodes);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        uint64_t own = slots + (uint64_t)p.node;
        local_copy(a, slot_at(a, rank, own), input_at(a, rank, 0), 0);
        EACH_NODE(&p, node)
        send_to_node(a, &p, node, own, own);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, 0), 0);
        wait_nodes(a, &p);
        barrier_in_node(a, &p, MESH_ARRIVED);
        EACH_NODE(&p, node)
        local_copy(a, output_at(a, rank, hierarchical_rank_at(&p, node, p.local)),
                   slot_at(a, rank, slots + (uint64_t)node), 0);
        EACH_LOCAL(&p, local)
        for (int node = 0; node < nodes; node++)
            remote_get(a, output_at(a, rank, hierarchical_rank_at(&p, node, local)),
                       slot_at(a, hierarchical_rank_at(&p, p.node, local), slots + (uint64_t)node),
                       0);
        flush_nodes(a, &p);
    }
}

/* The receiver signals first that it has begun, which implies that its previous run is over. The
 * sender waits for that signal before it ends, so it is never two runs ahead. */
void sendrecv_port(algorithm *a)
{
    uint64_t slot = slots_take(a, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        int to = algorithm_rank(a, rank + a->shift);
        int from = algorithm_rank(a, rank - a->shift);
        mesh_signal(a, MESH_ARRIVED, rank, from, 0);
        banyan_program_port_put_with_signal_and_flush(
            port_between(a, rank, to), slot_at(a, to, slot), input_at(a, rank, 0), 0);
        banyan_program_port_wait(port_between(a, rank, from), 0, BANYAN_SYNC_BOTH);
        local_copy(a, output_at(a, rank, 0), slot_at(a, rank, slot), 0);
        mesh_wait(a, MESH_ARRIVED, rank, to, 0);
    }
}
