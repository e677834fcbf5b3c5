/* Peers on other nodes, which port channels reach through the world's transport.
 *
 * Bytes for a peer travel in messages. Each message goes through a slot of pinned memory at the
 * sender and the slot of the same number at the receiver. The sender's device copies into the
 * first, and the transport puts it into the second. From there the receiver's device copies it to
 * its place. Several slots are on their way at once. Signals are messages of 8 bytes, the new value
 * of a counter. So one stream at the receiver keeps the order. A transport that reaches memory of
 * GPUs itself (BANYAN_TRANSPORT_CUDA) puts data straight to its place; signals still are messages.
 */
#ifndef CUDA_EXECUTE_REMOTE_H
#define CUDA_EXECUTE_REMOTE_H

#include "cuda/driver.h"
#include "execute/device/engine.h"

typedef struct remote_peers remote_peers;

/* Find the device address of a range of this rank's memory; 0: no loaded plan has it. */
typedef CUdeviceptr (*remote_find)(void *context, uint64_t memory, uint64_t offset, uint64_t bytes);

/* Connect to all ranks of other nodes. `*opened` is NULL if there are none. Collective. */
banyan_status remote_open(banyan_world *world, int device, remote_peers **opened);
/* NULL is ignored. */
void remote_close(remote_peers *of);

/* The following functions are called with the device entered, one at a time. */

/* Start to copy `bytes` from the device (or from this process, `is_value`) to a remote address
 * (engine_remote). `*passed` counts the bytes of it that earlier calls have started. True: all are;
 * false: slots are lacking, so call it again later. */
bool remote_put(remote_peers *of, int peer, const void *destination, const void *source,
                uint64_t bytes, bool is_value, uint64_t *passed);
/* The stream that reads the sources of puts. */
CUstream remote_stream(const remote_peers *of);
/* True if the peer's transport still reads the sources of some puts itself. */
bool remote_reads_sources(const remote_peers *of, int peer);
/* Pass messages on, and take those that have arrived. False: there was nothing to do. */
bool remote_serve(remote_peers *of, remote_find find, void *context);
/* True if all messages have arrived at their places. */
bool remote_is_idle(const remote_peers *of);
/* The caller stops to call remote_serve for a while. */
void remote_rest(const remote_peers *of);

#endif
