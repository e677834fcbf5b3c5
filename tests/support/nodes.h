/* Machines on one machine: network namespaces, joined by a bridge. */
#ifndef TESTS_SUPPORT_NODES_H
#define TESTS_SUPPORT_NODES_H

#include <stdbool.h>

#define NODES_MAX 8
/* Room for a node's address. */
#define NODES_ADDRESS_BYTES 32

/* Make `count` nodes, in a network of the calling process. They end with that process. Returns
 * NULL, or why this machine does not allow it. Call it in a process that a test has forked. */
const char *nodes_make(int count);

/* Move the calling process to a node. */
void nodes_enter(int node);

/* Cut a node off, or connect it again. For the process that made the nodes. */
void nodes_connect(int node, bool yes);

/* Write the address of a node, for banyan_world_options. */
void nodes_address(int node, char address[NODES_ADDRESS_BYTES]);

#endif
