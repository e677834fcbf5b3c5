/* Worlds for tests: ranks as processes or as threads of this one. */
#ifndef TESTS_SUPPORT_RANKS_H
#define TESTS_SUPPORT_RANKS_H

#include <banyan/banyan.h>

typedef void (*ranks_fn)(banyan_world *world, void *context);

/* Fork `count` processes that open one world, call fn, and close it; fails the test unless all end
 * well. */
void ranks_run(int count, ranks_fn fn, void *context);

/* Like ranks_run with one thread for each rank, each with its own world: for the thread
 * sanitizer. */
void ranks_run_threads(int count, ranks_fn fn, void *context);

/* Fork `count` processes with a rank and a unique id, which open the world themselves. statuses[i]
 * receives waitpid's status of rank i. */
typedef void (*ranks_raw_fn)(int rank, int count, const banyan_unique_id *id, void *context);
void ranks_fork(int count, ranks_raw_fn fn, void *context, int *statuses);
/* Fork two such ranks: rank 0 must succeed, and rank 1 must end by a signal. */
void ranks_fork_and_lose_one(ranks_raw_fn fn, void *context);

/* Return the number of network namespaces for the ranks (BANYAN_TEST_NETWORK); 0: they stay in this
 * one. */
int ranks_networks(void);

/* Call fn in a process of its own that has made network namespaces for `nodes` nodes (0: none),
 * which end with it (nodes.h); the test fails if the process does. Where that is not allowed, the
 * test's process prints the reason and exits with 77. */
void ranks_in_networks(int nodes, void (*fn)(void *context), void *context);

/* Open the world in such a rank; timeout_ns as in banyan_world_options. */
banyan_world *ranks_open_world(int rank, int count, const banyan_unique_id *id,
                               uint64_t timeout_ns);

/* Select how later worlds access peers' ordinary memory (BANYAN_USER_MEMORY); NULL: the default. */
void ranks_force_user_memory(const char *path);

/* End the calling rank as failed; in the test's own process, fail the test. */
void ranks_fail(void) __attribute__((noreturn));

/* Call it first in a process that a test forks: failing checks, and crashes, end it. */
void ranks_become_child(void);

/* True in such a process. */
extern bool ranks_in_child;

#endif
