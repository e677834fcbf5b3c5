/* The copy backend "pipeline". */
#ifndef COPY_PIPELINE_BACKEND_H
#define COPY_PIPELINE_BACKEND_H

#include <banyan/copy.h>

extern const banyan_copy_backend copy_backend_pipeline;

/* Open the backend over a transport that the caller has opened; the backend owns it then, on
 * failure too. Collective. */
banyan_status pipeline_open_over(banyan_world *world, banyan_transport *transport,
                                 const banyan_copy_options *options, void **state);

#endif
