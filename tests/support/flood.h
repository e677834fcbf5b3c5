/* Thousands of connections that do not belong to the job: a process that holds connections to
 * every listening TCP port of its network. Bounded in count and time. */
#ifndef TESTS_SUPPORT_FLOOD_H
#define TESTS_SUPPORT_FLOOD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum flood_kind {
    FLOOD_IDLE,    /* say nothing */
    FLOOD_GARBAGE, /* send random bytes, longer than a hello */
    FLOOD_HALF,    /* send half a hello */
    FLOOD_HELLO,   /* send a whole hello, without knowing the key */
    FLOOD_KINDS
};

#define FLOOD_PORTS 16

/* In memory that the flooder and the ranks share. */
struct flood {
    enum flood_kind kind;
    _Atomic bool stop;
    _Atomic int full_ports; /* ports with as many connections made as `held` demands */
    _Atomic long connects;  /* in total */
    int held;               /* connections to hold at each port */
};

const char *flood_name(enum flood_kind kind);

/* Enter a network of its own. */
bool flood_enter_network(void);

/* Fork the flooder. It ends with its parent, when `stop` is set, and after 60 s. */
pid_t flood_start(struct flood *flood);
void flood_end(struct flood *flood, pid_t pid);

#endif
