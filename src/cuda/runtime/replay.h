/* Work that is recorded once and played again for a measurement, with nothing of the host in it. */
#ifndef CUDA_RUNTIME_REPLAY_H
#define CUDA_RUNTIME_REPLAY_H

#include <banyan/core.h>

/* `queue` is called `times` times while its stream is captured into a graph. */
banyan_status replay_record(int device, banyan_status (*queue)(void *context, void *stream),
                            void *context, uint32_t times, void **recorded);
/* Of the whole graph, by the device's clock. */
banyan_status replay_play(void *recorded, uint64_t *ns);
/* It is played once more before that, so that ranks that wait for each other in it begin together,
 * however late some of them come. */
banyan_status replay_play_together(void *recorded, uint64_t *ns);
/* NULL is ignored. */
void replay_forget(void *recorded);

#endif
