#include "forecast/traffic.h"

static void load_add(banyan_traffic_load *load, uint64_t bytes)
{
    if (bytes == 0)
        return;
    load->least = load->links == 0 || bytes < load->least ? bytes : load->least;
    load->most = bytes > load->most ? bytes : load->most;
    load->bytes += bytes;
    load->links++;
}

/* Bytes by rank, and by pair of nodes. */
typedef struct link_bytes {
    uint64_t *out, *in, *inside, *pairs;
} link_bytes;

static void add_rank(const banyan_traffic *traffic, int rank, int nodes, const link_bytes *bytes,
                     banyan_traffic_links *links)
{
    const traffic_rank *of = &traffic->ranks[rank];
    int each = traffic->ranks_per_node > 0 ? traffic->ranks_per_node : traffic->info.ranks;
    for (size_t i = 0; i < of->task_count; i++) {
        int peer = of->tasks[i].peer, from = rank / each, to = peer / each;
        uint64_t moved = traffic_task_bytes(&of->tasks[i]);
        if (from == to) {
            bytes->inside[peer] += moved;
            continue;
        }
        bytes->out[rank] += moved;
        bytes->in[peer] += moved;
        bytes->pairs[(size_t)from * (size_t)nodes + (size_t)to] += moved;
    }
    for (int peer = rank / each * each; peer < traffic->info.ranks && peer / each == rank / each;
         peer++) {
        load_add(&links->inside, bytes->inside[peer]);
        bytes->inside[peer] = 0;
    }
}

banyan_status banyan_traffic_describe_links(const banyan_traffic *traffic,
                                            banyan_traffic_links *links)
{
    size_t ranks = (size_t)traffic->info.ranks;
    size_t each = traffic->ranks_per_node > 0 ? (size_t)traffic->ranks_per_node : ranks;
    size_t nodes = (ranks + each - 1) / each;
    uint64_t *memory = alloc_zeroed(3 * ranks + nodes * nodes, sizeof *memory, "loads of links");
    RETURN_IF_NO_MEMORY(memory);
    link_bytes bytes = {memory, memory + ranks, memory + 2 * ranks, memory + 3 * ranks};
    banyan_traffic_links found = {
        .nodes = (int)nodes, .turns = traffic->turns, .least_bytes = traffic->least_bytes};
    for (size_t r = 0; r < ranks; r++)
        add_rank(traffic, (int)r, (int)nodes, &bytes, &found);
    for (size_t r = 0; r < ranks; r++) {
        load_add(&found.out, bytes.out[r]);
        load_add(&found.in, bytes.in[r]);
    }
    for (size_t p = 0; p < nodes * nodes; p++)
        load_add(&found.pairs, bytes.pairs[p]);
    free(memory);
    *links = found;
    return BANYAN_OK;
}
