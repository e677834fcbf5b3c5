#include "layout/traffic_links.h"

#include <stdio.h>

#include "cli/text.h"

static void print_load(const char *what, const banyan_traffic_load *load)
{
    char text[TEXT_NUMBER_BYTES];
    uint64_t mean = load->links > 0 ? load->bytes / load->links : 0;
    printf("%-24s%8s", what, text_count(load->links, text));
    printf("%12s", text_bytes(load->most, text));
    printf("%12s", text_bytes(load->least, text));
    printf("%12s", text_bytes(mean, text));
    printf("%12s\n", text_bytes(load->bytes, text));
}

void traffic_links_print(const banyan_traffic_links *links)
{
    char text[TEXT_NUMBER_BYTES];
    if (links->nodes < 2)
        return;
    printf("\n%-24s%8s%12s%12s%12s%12s\n", "bytes across", "links", "most", "least", "mean", "all");
    print_load("cards, outwards", &links->out);
    print_load("cards, inwards", &links->in);
    print_load("node to node", &links->pairs);
    print_load("rank to rank, in a node", &links->inside);
    if (links->least_bytes > 0)
        printf("%s crosses the network at least: each element once to each node that needs it\n",
               text_bytes(links->least_bytes, text));
    if (links->turns > 0)
        printf("a run goes in %s waves, the last one inside nodes only\n",
               text_count(links->turns + 1, text));
}

static json_t *load_links(const banyan_traffic_load *load)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "links", (json_int_t)load->links, "most",
                     (json_int_t)load->most, "least", (json_int_t)load->least, "bytes",
                     (json_int_t)load->bytes);
}

json_t *traffic_links_json(const banyan_traffic_links *links)
{
    return json_pack("{s:i, s:I, s:o, s:o, s:o, s:o, s:I}", "nodes", links->nodes, "turns",
                     (json_int_t)links->turns, "out", load_links(&links->out), "in",
                     load_links(&links->in), "node_pairs", load_links(&links->pairs), "inside",
                     load_links(&links->inside), "least_network_bytes",
                     (json_int_t)links->least_bytes);
}
