/* Over nodes: memory channels within a node, port channels between nodes. Rank = node ×
 * ranks_per_node + local rank. The ranks with one local rank on all nodes process one block. */
#include "collective/algorithms/algorithm.h"

enum { MESH_ARRIVED, MESH_WHOLE, MESH_BEGUN };

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

/* Put into slots of the rank with this local rank on another node. */
static void send_to_node(algorithm *a, const node_place *p, int node, uint64_t to,
                         banyan_chunk from)
{
    int peer = hierarchical_rank_at(p, node, p->local);
    port_put_and_signal(a, slot_range(a, peer, to, (int)from.size), from);
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
    send_to_node(a, p, node, arrived + own, slot_at(a, p->rank, sums + (uint64_t)node));
    wait_nodes(a, p);
    for (int node = 0; node < p->nodes; node++)
        a->parts[node] = slot_at(a, p->rank, arrived + (uint64_t)node);
    a->parts[p->node] = slot_at(a, p->rank, sums + own);
    local_reduce_parts(a, p->nodes, slot_at(a, p->rank, whole + own), 0);
    EACH_NODE(p, node)
    send_to_node(a, p, node, whole + own, slot_at(a, p->rank, whole + own));
    wait_nodes(a, p);
    flush_nodes(a, p);
}

/* Each rank has its block in its slots: gather the node's blocks into the outputs. */
static void gather_blocks_of_node(algorithm *a, const node_place *p, uint64_t whole)
{
    int size = p->nodes;
    barrier_in_node(a, p, MESH_WHOLE);
    local_copy(a, output_range(a, p->rank, p->local * size, (p->local + 1) * size),
               slot_range(a, p->rank, whole, size), 0);
    EACH_LOCAL(p, local)
    remote_get(a, output_range(a, p->rank, local * size, (local + 1) * size),
               slot_range(a, hierarchical_rank_at(p, p->node, local), whole, size), 0);
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
        gather_blocks_of_node(a, &p, whole);
    }
}

/* As allreduce_hierarchical, with one message between two nodes: every node receives all sums of
 * the other nodes. */
void allreduce_hierarchical_oneshot(algorithm *a)
{
    int size = a->ranks / a->ranks_per_node;
    uint64_t in_node = slots_take(a, a->ranks), sums = slots_take(a, size * size);
    uint64_t whole = slots_take(a, size);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        uint64_t own = sums + (uint64_t)(p.node * size);
        reduce_in_node(a, &p, in_node, slot_range(a, rank, own, size));
        EACH_NODE(&p, node)
        send_to_node(a, &p, node, own, slot_range(a, rank, own, size));
        wait_nodes(a, &p);
        for (int node = 0; node < size; node++)
            a->parts[node] = slot_range(a, rank, sums + (uint64_t)(node * size), size);
        local_reduce_parts(a, size, slot_range(a, rank, whole, size), 0);
        gather_blocks_of_node(a, &p, whole);
        flush_nodes(a, &p);
    }
}

static int hierarchical_leader(const node_place *p)
{
    return hierarchical_rank_at(p, p->node, 0);
}

/* Put a chunk into the rank's slot at its leader, and get the leader's result. */
static void follow_leader(algorithm *a, const node_place *p, uint64_t mine, banyan_chunk input,
                          banyan_chunk result, banyan_chunk output)
{
    int leader = hierarchical_leader(p);
    remote_put(a, slot_range(a, leader, mine, (int)input.size), input, 0);
    mesh_signal(a, MESH_ARRIVED, p->rank, leader, 0);
    mesh_wait(a, MESH_WHOLE, p->rank, leader, 0);
    remote_get(a, output, result, 0);
}

/* The first rank of each node reduces whole vectors: two nodes exchange one message each way,
 * whatever the number of their ranks. */
void allreduce_hierarchical_leaders(algorithm *a)
{
    int size = (int)a->input_chunks, nodes = a->ranks / a->ranks_per_node;
    uint64_t in_node = slots_take(a, a->ranks_per_node * size);
    uint64_t sums = slots_take(a, nodes * size), whole = slots_take(a, size);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        uint64_t own = sums + (uint64_t)(p.node * size);
        bool is_alone = p.locals == 1;
        banyan_chunk output = output_range(a, rank, 0, size);
        banyan_chunk sum = is_alone ? input_all(a, rank) : slot_range(a, rank, own, size);
        banyan_chunk result = is_alone ? output : slot_range(a, rank, whole, size);
        if (p.local > 0) {
            follow_leader(a, &p, in_node + (uint64_t)(p.local * size), input_all(a, rank),
                          slot_range(a, hierarchical_leader(&p), whole, size), output);
            continue;
        }
        a->parts[0] = input_all(a, rank);
        EACH_LOCAL(&p, local)
        {
            mesh_wait(a, MESH_ARRIVED, rank, hierarchical_rank_at(&p, p.node, local), 0);
            a->parts[local] = slot_range(a, rank, in_node + (uint64_t)(local * size), size);
        }
        if (!is_alone)
            local_reduce_parts(a, p.locals, sum, 0);
        EACH_NODE(&p, node)
        send_to_node(a, &p, node, own, sum);
        wait_nodes(a, &p);
        bool overwrites = is_alone && a->in_place; /* the input, which is sent */
        if (overwrites)
            flush_nodes(a, &p);
        for (int node = 0; node < nodes; node++)
            a->parts[node] = slot_range(a, rank, sums + (uint64_t)(node * size), size);
        a->parts[p.node] = sum;
        local_reduce_parts(a, nodes, result, 0);
        EACH_LOCAL(&p, local)
        mesh_signal(a, MESH_WHOLE, rank, hierarchical_rank_at(&p, p.node, local), 0);
        if (!is_alone)
            local_copy(a, output, result, 0);
        if (!overwrites)
            flush_nodes(a, &p);
    }
}

/* The first rank of each node gathers: one message each way between two nodes. */
void allgather_hierarchical_leaders(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        uint64_t own = slots + (uint64_t)(p.node * p.locals);
        banyan_chunk output = output_range(a, rank, 0, a->ranks);
        if (p.local > 0) {
            follow_leader(a, &p, slots + (uint64_t)rank, input_at(a, rank, 0),
                          slot_range(a, hierarchical_leader(&p), slots, a->ranks), output);
            continue;
        }
        local_copy(a, slot_at(a, rank, own), input_at(a, rank, 0), 0);
        EACH_LOCAL(&p, local)
        mesh_wait(a, MESH_ARRIVED, rank, hierarchical_rank_at(&p, p.node, local), 0);
        EACH_NODE(&p, node)
        send_to_node(a, &p, node, own, slot_range(a, rank, own, p.locals));
        wait_nodes(a, &p);
        EACH_LOCAL(&p, local)
        mesh_signal(a, MESH_WHOLE, rank, hierarchical_rank_at(&p, p.node, local), 0);
        local_copy(a, output, slot_range(a, rank, slots, a->ranks), 0);
        flush_nodes(a, &p);
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
        EACH_NODE(&p, node)
        send_to_node(a, &p, node, own, input_at(a, rank, 0));
        if (p.locals > 1)
            local_copy(a, slot_at(a, rank, own), input_at(a, rank, 0), 0);
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

/* As allgather_hierarchical, straight into the outputs, from which the ranks of a node read. */
void allgather_hierarchical_direct(algorithm *a)
{
    int nodes = a->ranks / a->ranks_per_node;
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        EACH_NODE(&p, node)
        mesh_signal_relaxed(a, MESH_BEGUN, rank, hierarchical_rank_at(&p, node, p.local), 0);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, 0), 0);
        EACH_NODE(&p, node)
        {
            int peer = hierarchical_rank_at(&p, node, p.local);
            mesh_wait_relaxed(a, MESH_BEGUN, rank, peer, 0);
            port_put_and_signal(a, output_at(a, peer, rank), input_at(a, rank, 0));
        }
        wait_nodes(a, &p);
        barrier_in_node(a, &p, MESH_ARRIVED);
        EACH_LOCAL(&p, local)
        for (int node = 0; node < nodes; node++) {
            int source = hierarchical_rank_at(&p, node, local);
            remote_get(a, output_at(a, rank, source),
                       output_at(a, hierarchical_rank_at(&p, p.node, local), source), 0);
        }
        flush_nodes(a, &p);
        barrier_in_node(a, &p, MESH_WHOLE); /* until then the others read this rank's output */
    }
}

/* Reduce within the node first, so that each node sends one chunk to each rank of the others. */
void reducescatter_hierarchical(algorithm *a)
{
    int nodes = a->ranks / a->ranks_per_node;
    uint64_t in_node = slots_take(a, a->ranks), sums = slots_take(a, nodes);
    uint64_t between = slots_take(a, nodes);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        EACH_LOCAL(&p, local)
        for (int node = 0; node < nodes; node++)
            remote_put(a,
                       slot_at(a, hierarchical_rank_at(&p, p.node, local),
                               in_node + (uint64_t)(p.local * nodes + node)),
                       input_at(a, rank, hierarchical_rank_at(&p, node, local)), 0);
        barrier_in_node(a, &p, MESH_ARRIVED);
        for (int node = 0; node < nodes; node++) {
            for (int local = 0; local < p.locals; local++)
                a->parts[local] = slot_at(a, rank, in_node + (uint64_t)(local * nodes + node));
            a->parts[p.local] = input_at(a, rank, hierarchical_rank_at(&p, node, p.local));
            local_reduce_parts(a, p.locals, slot_at(a, rank, sums + (uint64_t)node), 0);
        }
        EACH_NODE(&p, node)
        send_to_node(a, &p, node, between + (uint64_t)p.node,
                     slot_at(a, rank, sums + (uint64_t)node));
        wait_nodes(a, &p);
        for (int node = 0; node < nodes; node++)
            a->parts[node] = slot_at(a, rank, between + (uint64_t)node);
        a->parts[p.node] = slot_at(a, rank, sums + (uint64_t)p.node);
        local_reduce_parts(a, nodes, output_at(a, rank, 0), 0);
        flush_nodes(a, &p);
    }
}

/* Each rank collects its node's blocks for the ranks with its own local rank, so that two nodes
 * exchange one message for each local rank. */
void alltoall_hierarchical(algorithm *a)
{
    int nodes = a->ranks / a->ranks_per_node, locals = a->ranks_per_node;
    uint64_t in_node = slots_take(a, a->ranks), between = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        for (int node = 0; node < nodes; node++) {
            uint64_t place = in_node + (uint64_t)(node * locals + p.local);
            EACH_LOCAL(&p, local)
            remote_put(a, slot_at(a, hierarchical_rank_at(&p, p.node, local), place),
                       input_at(a, rank, hierarchical_rank_at(&p, node, local)), 0);
            if (node != p.node && locals > 1)
                local_copy(a, slot_at(a, rank, place),
                           input_at(a, rank, hierarchical_rank_at(&p, node, p.local)), 0);
        }
        barrier_in_node(a, &p, MESH_ARRIVED);
        EACH_NODE(&p, node)
        send_to_node(a, &p, node, between + (uint64_t)(p.node * locals),
                     locals > 1 ? slot_range(a, rank, in_node + (uint64_t)(node * locals), locals)
                                : input_at(a, rank, node));
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, rank), 0);
        EACH_LOCAL(&p, local)
        local_copy(a, output_at(a, rank, hierarchical_rank_at(&p, p.node, local)),
                   slot_at(a, rank, in_node + (uint64_t)(p.node * locals + local)), 0);
        wait_nodes(a, &p);
        bool overwrites = locals == 1 && a->in_place; /* the input, which is sent */
        if (overwrites)
            flush_nodes(a, &p);
        EACH_NODE(&p, node)
        local_copy(a, output_range(a, rank, node * locals, (node + 1) * locals),
                   slot_range(a, rank, between + (uint64_t)(node * locals), locals), 0);
        if (!overwrites)
            flush_nodes(a, &p);
    }
}

/* EACH_RANK_BEYOND: the ranks of other nodes, beginning with this local rank of the next node. No
 * two ranks begin with one rank. */
#define EACH_RANK_BEYOND(p, peer_, direction)                                                      \
    for (int peer_##_step = 0, peer_ = hierarchical_rank_beyond(p, 0, direction);                  \
         peer_##_step < ((p)->nodes - 1) * (p)->locals;                                            \
         peer_ = hierarchical_rank_beyond(p, ++peer_##_step, direction))

static int hierarchical_rank_beyond(const node_place *p, int step, int direction)
{
    int nodes = 1 + step / p->locals, locals = step % p->locals;
    return hierarchical_rank_at(p, (p->node + direction * nodes + p->nodes * p->nodes) % p->nodes,
                                (p->local + direction * locals + p->locals) % p->locals);
}

static void flush_beyond(algorithm *a, const node_place *p)
{
    EACH_RANK_BEYOND(p, peer, 1)
    banyan_program_port_flush(port_between(a, p->rank, peer), 0, BANYAN_SYNC_BOTH);
}

/* Each block goes straight to its owner: more messages than in alltoall_hierarchical, and fewer
 * copies. */
void alltoall_hierarchical_pairs(algorithm *a)
{
    uint64_t slots = slots_take(a, a->ranks);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        EACH_RANK_BEYOND(&p, peer, 1)
        port_put_and_signal(a, slot_at(a, peer, slots + (uint64_t)rank), input_at(a, rank, peer));
        EACH_LOCAL(&p, local)
        {
            int peer = hierarchical_rank_at(&p, p.node, local);
            remote_put(a, slot_at(a, peer, slots + (uint64_t)rank), input_at(a, rank, peer), 0);
            mesh_signal(a, MESH_ARRIVED, rank, peer, 0);
        }
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, rank), 0);
        EACH_LOCAL(&p, local)
        {
            int peer = hierarchical_rank_at(&p, p.node, local);
            mesh_wait(a, MESH_ARRIVED, rank, peer, 0);
            local_copy(a, output_at(a, rank, peer), slot_at(a, rank, slots + (uint64_t)peer), 0);
        }
        if (a->in_place) /* the outputs overwrite blocks that are sent */
            flush_beyond(a, &p);
        EACH_RANK_BEYOND(&p, peer, -1)
        {
            banyan_program_port_wait(port_between(a, rank, peer), 0, BANYAN_SYNC_BOTH);
            local_copy(a, output_at(a, rank, peer), slot_at(a, rank, slots + (uint64_t)peer), 0);
        }
        if (!a->in_place)
            flush_beyond(a, &p);
    }
}

/* Each block goes straight to its place, after its owner has signalled that it has begun. */
void alltoall_hierarchical_direct(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        EACH_RANK_BEYOND(&p, peer, -1)
        mesh_signal_relaxed(a, MESH_BEGUN, rank, peer, 0);
        EACH_LOCAL(&p, local)
        mesh_signal_relaxed(a, MESH_BEGUN, rank, hierarchical_rank_at(&p, p.node, local), 0);
        local_keep(a, output_at(a, rank, rank), input_at(a, rank, rank), 0);
        EACH_RANK_BEYOND(&p, peer, 1)
        {
            mesh_wait_relaxed(a, MESH_BEGUN, rank, peer, 0);
            port_put_and_signal(a, output_at(a, peer, rank), input_at(a, rank, peer));
        }
        EACH_LOCAL(&p, local)
        {
            int peer = hierarchical_rank_at(&p, p.node, local);
            mesh_wait_relaxed(a, MESH_BEGUN, rank, peer, 0);
            remote_put(a, output_at(a, peer, rank), input_at(a, rank, peer), 0);
            mesh_signal(a, MESH_ARRIVED, rank, peer, 0);
        }
        EACH_LOCAL(&p, local)
        mesh_wait(a, MESH_ARRIVED, rank, hierarchical_rank_at(&p, p.node, local), 0);
        EACH_RANK_BEYOND(&p, peer, -1)
        banyan_program_port_wait(port_between(a, rank, peer), 0, BANYAN_SYNC_BOTH);
        flush_beyond(a, &p);
    }
}

/* Nodes as a binary tree, numbered from the root's: v has the children 2v + 1 and 2v + 2. */
static int tree_node(const algorithm *a, const node_place *p, int v)
{
    return (a->root / a->ranks_per_node + v) % p->nodes;
}

static int tree_place(const algorithm *a, const node_place *p)
{
    return (p->node - a->root / a->ranks_per_node + p->nodes) % p->nodes;
}

/* The root deals out blocks to its node. Each block goes down the tree between ranks of one local
 * rank. All gather the blocks of their node. A rank signals first that it has begun, so that its
 * slots may be written. */
void broadcast_hierarchical(algorithm *a)
{
    int size = a->ranks / a->ranks_per_node;
    uint64_t block = slots_take(a, size);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        int v = tree_place(a, &p);
        int source =
            v > 0 ? hierarchical_rank_at(&p, tree_node(a, &p, (v - 1) / 2), p.local) : a->root;
        if (rank != a->root)
            mesh_signal_relaxed(a, MESH_BEGUN, rank, source, 0);
        if (rank == a->root) {
            local_copy(a, slot_range(a, rank, block, size),
                       input_range(a, rank, p.local * size, (p.local + 1) * size), 0);
            EACH_LOCAL(&p, local)
            {
                int peer = hierarchical_rank_at(&p, p.node, local);
                mesh_wait_relaxed(a, MESH_BEGUN, rank, peer, 0);
                remote_put(a, slot_range(a, peer, block, size),
                           input_range(a, rank, local * size, (local + 1) * size), 0);
                mesh_signal(a, MESH_ARRIVED, rank, peer, 0);
            }
        } else if (v == 0) {
            mesh_wait(a, MESH_ARRIVED, rank, source, 0);
        } else {
            banyan_program_port_wait(port_between(a, rank, source), 0, BANYAN_SYNC_BOTH);
        }
        for (int child = 2 * v + 1; child <= 2 * v + 2 && child < p.nodes; child++) {
            int node = tree_node(a, &p, child);
            mesh_wait_relaxed(a, MESH_BEGUN, rank, hierarchical_rank_at(&p, node, p.local), 0);
            send_to_node(a, &p, node, block, slot_range(a, rank, block, size));
        }
        if (rank == a->root) {
            barrier_in_node(a, &p, MESH_WHOLE);
            local_keep(a, output_range(a, rank, 0, a->ranks), input_all(a, rank), 0);
        } else {
            gather_blocks_of_node(a, &p, block);
        }
        for (int child = 2 * v + 1; child <= 2 * v + 2 && child < p.nodes; child++)
            banyan_program_port_flush(
                port_between(a, rank, hierarchical_rank_at(&p, tree_node(a, &p, child), p.local)),
                0, BANYAN_SYNC_BOTH);
    }
}

/* Reduce a block in each rank of a node, then over the nodes in the ranks of the root's node, from
 * which the root reads. These signal first that they have begun. */
void reduce_hierarchical(algorithm *a)
{
    int size = a->ranks / a->ranks_per_node, root_node = a->root / a->ranks_per_node;
    uint64_t in_node = slots_take(a, a->ranks), sums = slots_take(a, size * size);
    uint64_t whole = slots_take(a, size);
    for (int rank = 0; rank < a->ranks; rank++) {
        node_place p = hierarchical_place_of(a, rank);
        uint64_t own = sums + (uint64_t)(p.node * size);
        int first = p.local * size, end = first + size;
        if (p.node == root_node)
            EACH_NODE(&p, node)
        mesh_signal_relaxed(a, MESH_BEGUN, rank, hierarchical_rank_at(&p, node, p.local), 0);
        reduce_in_node(a, &p, in_node, slot_range(a, rank, own, size));
        if (p.node != root_node) {
            int peer = hierarchical_rank_at(&p, root_node, p.local);
            mesh_wait_relaxed(a, MESH_BEGUN, rank, peer, 0);
            send_to_node(a, &p, root_node, own, slot_range(a, rank, own, size));
            banyan_program_port_flush(port_between(a, rank, peer), 0, BANYAN_SYNC_BOTH);
            continue;
        }
        wait_nodes(a, &p);
        for (int node = 0; node < size; node++)
            a->parts[node] = slot_range(a, rank, sums + (uint64_t)(node * size), size);
        if (rank != a->root) {
            local_reduce_parts(a, size, slot_range(a, rank, whole, size), 0);
            mesh_signal(a, MESH_WHOLE, rank, a->root, 0);
            continue;
        }
        local_reduce_parts(a, size, output_range(a, rank, first, end), 0);
        EACH_LOCAL(&p, local)
        {
            int peer = hierarchical_rank_at(&p, p.node, local);
            mesh_wait(a, MESH_WHOLE, rank, peer, 0);
            remote_get(a, output_range(a, rank, local * size, (local + 1) * size),
                       slot_range(a, peer, whole, size), 0);
        }
    }
}

/* The receiver signals first that it has begun, which implies that its previous run is over. The
 * sender waits for that signal before it ends, so it is never two runs ahead. */
static void write_sendrecv(algorithm *a, bool by_ports_alone)
{
    uint64_t slot = slots_take(a, 1);
    for (int rank = 0; rank < a->ranks; rank++) {
        int to = algorithm_rank(a, rank + a->shift), from = algorithm_rank(a, rank - a->shift);
        int node = rank / a->ranks_per_node;
        mesh_signal(a, MESH_BEGUN, rank, from, 0);
        if (!by_ports_alone && to / a->ranks_per_node == node) {
            remote_put(a, slot_at(a, to, slot), input_at(a, rank, 0), 0);
            mesh_signal(a, MESH_ARRIVED, rank, to, 0);
        } else {
            banyan_program_port_put_with_signal_and_flush(
                port_between(a, rank, to), slot_at(a, to, slot), input_at(a, rank, 0), 0);
        }
        if (!by_ports_alone && from / a->ranks_per_node == node)
            mesh_wait(a, MESH_ARRIVED, rank, from, 0);
        else
            banyan_program_port_wait(port_between(a, rank, from), 0, BANYAN_SYNC_BOTH);
        local_copy(a, output_at(a, rank, 0), slot_at(a, rank, slot), 0);
        mesh_wait(a, MESH_BEGUN, rank, to, 0);
    }
}

void sendrecv_port(algorithm *a)
{
    write_sendrecv(a, true);
}

void sendrecv_hierarchical(algorithm *a)
{
    write_sendrecv(a, false);
}
