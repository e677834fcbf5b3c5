/* The differences of two checkpoints. */
#ifndef TOOLS_DIFF_H
#define TOOLS_DIFF_H

#include <banyan/checkpoint.h>
#include <banyan/publish.h>

/* A tensor of either checkpoint. */
typedef struct diff_tensor {
    const banyan_local_tensor *before, *after; /* NULL: this one lacks it */
    size_t before_index, after_index;
    bool comparable;        /* both have it, with one type and shape */
    banyan_delta_size size; /* if comparable */
    uint64_t bytes;         /* of the tensor; of `after`, if both have it */
} diff_tensor;

typedef struct diff {
    const char *before_path, *after_path;
    banyan_checkpoint *before, *after;
    diff_tensor *tensors; /* in the order of `before`, then those of `after` alone */
    size_t count;
} diff;

/* Sums over the tensors that can be compared. */
typedef struct diff_total {
    banyan_delta_size size;
    uint64_t bytes;
    size_t compared, changed; /* tensors */
    size_t only_before, only_after, different;
} diff_total;

/* Open both checkpoints and compare their tensors bit by bit. Free the result in either case. */
banyan_status diff_make(diff *made, const char *before, const char *after);
void diff_free(diff *made);

diff_total diff_sum(const diff *made);

/* Return the share of changed elements; 0 for a tensor without elements. */
double diff_share(const banyan_delta_size *size);

/* "BF16 [4, 16]" */
#define DIFF_TYPE_BYTES 256
const char *diff_type(const banyan_local_tensor *tensor, char text[DIFF_TYPE_BYTES]);

/* Draw the share of changed elements by kind of tensor and layer. False with errno. */
bool diff_draw(const diff *made, const char *path);

#endif
