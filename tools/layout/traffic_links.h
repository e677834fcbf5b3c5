/* Print the bytes that cross links in a planned reshard. */
#ifndef TOOLS_LAYOUT_TRAFFIC_LINKS_H
#define TOOLS_LAYOUT_TRAFFIC_LINKS_H

#include <banyan/forecast.h>
#include <jansson.h>

/* Prints nothing for one node. */
void traffic_links_print(const banyan_traffic_links *links);
json_t *traffic_links_json(const banyan_traffic_links *links);

#endif
