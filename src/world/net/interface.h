/* The network interfaces that BANYAN_IFNAME selects: names or prefixes of names, separated by
 * commas; after ^, those that are not used; after =, whole names. */
#ifndef WORLD_NET_INTERFACE_H
#define WORLD_NET_INTERFACE_H

#include "world/net/address.h"

/* True if the interface may be used; every one may if BANYAN_IFNAME is not set. */
bool interface_is_selected(const char *name);

/* Check that an interface with an address is selected, and let UCX use the same ones, unless
 * UCX_NET_DEVICES is set. INVALID, with a list of the interfaces, when none is. */
banyan_status interface_check(void);

/* Get the first address of the selected interfaces, with a port. No address when BANYAN_IFNAME is
 * not set. */
struct address interface_address(int port);

#endif
