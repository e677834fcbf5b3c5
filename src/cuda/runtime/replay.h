/* Work that is recorded once and replayed for a measurement, without any host work. */
#ifndef CUDA_RUNTIME_REPLAY_H
#define CUDA_RUNTIME_REPLAY_H

#include <banyan/core.h>

/* Capture `times` calls of `queue` in a stream into a graph. */
banyan_status replay_record(int device, banyan_status (*queue)(void *context, void *stream),
                            void *context, uint32_t times, void **recorded);
/* Return the time of the whole graph, by the device's clock. */
banyan_status replay_play(void *recorded, uint64_t *ns);
/* Replay it once before the measurement, so that ranks that wait for each other in it begin
 * together, however late some of them come. */
banyan_status replay_play_together(void *recorded, uint64_t *ns);
/* Ignores NULL. */
void replay_forget(void *recorded);

#endif
