/* Banyan: layouts, the pieces of a model's tensors that a rank holds.
 *
 * A layout lists the tensors in a rank's memory (local tensors) and the pieces of the model's
 * tensors (global tensors) in each of them. A piece is a box of one global tensor and its place in
 * a local tensor. Sharding, packing, stacking and transposing are all expressed as pieces; the
 * planner (reshard.h) knows nothing else. docs/layouts.md has examples.
 *
 * - Errors. The functions that add to a layout return no status. The layout keeps the first error,
 *   with its names and numbers; banyan_layout_check and the planner report it. Later additions are
 *   ignored.
 * - Indices. An index `i` must be below the count that belongs to it.
 * - Threads. Building a layout is local, and one thread at a time may do it. Several threads may
 *   read a finished layout. Loaded models, rules, cases and layout files do not change: several
 *   threads may use them at the same time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_LAYOUT_H
#define BANYAN_LAYOUT_H

#include <banyan/copy.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- boxes ---- */

/* The operations on boxes cannot fail. Any thread may call them. Two boxes that are intersected or
 * subtracted have the same number of dimensions. */

/* The elements with start[d] ≤ i[d] < start[d] + extent[d] in every dimension. A box of zero
 * dimensions is a scalar and has one element. */
typedef struct banyan_box {
    int ndim; /* number of dimensions */
    int64_t start[BANYAN_MAX_DIMS];
    int64_t extent[BANYAN_MAX_DIMS];
} banyan_box;

/* Return the number of elements. The box must lie in a tensor that fits in memory, so the number
 * does not overflow. */
BANYAN_API uint64_t banyan_box_elems(const banyan_box *box);

/* True if dimensions, starts and extents are equal. */
BANYAN_API bool banyan_box_equal(const banyan_box *a, const banyan_box *b);

/* Set `*out` to the common elements and return true. Return false, and leave `*out` unchanged, if
 * there are none. */
BANYAN_API bool banyan_box_intersect(const banyan_box *a, const banyan_box *b, banyan_box *out);

/* Write to `out` the elements of `a` that are not in `b`, as at most 2 × ndim disjoint boxes.
 * Return the number of boxes. */
BANYAN_API int banyan_box_subtract(const banyan_box *a, const banyan_box *b,
                                   banyan_box out[2 * BANYAN_MAX_DIMS]);

/* Write a box as "[0:48, 16:32]" to `text`, cut to `bytes` bytes, and return `text`. */
BANYAN_API const char *banyan_box_format(const banyan_box *box, char *text, size_t bytes);

/* ---- layouts ---- */

enum {
    /* The type of the source counts. A destination declares a persistent buffer (a running mean, an
     * expert bias) in any type; it receives the buffer in the source's type. */
    BANYAN_PIECE_PERSISTENT_BUFFER = 1 << 0,
    /* A value map. Each local element is -exp(x) of the global tensor's element x: some engines
     * compute it once, when they load the weights. A run computes it in float32, within half a unit
     * in the last place, and rounds it to the local type. Both types are F32, F16 or BF16. If the
     * source also holds the tensor under the map, elements move unchanged. A run cannot undo a map:
     * a source with the map and a destination without it are a MISMATCH. */
    BANYAN_PIECE_NEGATIVE_EXP = 1 << 1
};

/* In a dim_map: the local tensor does not have this dimension. */
#define BANYAN_NO_DIM (-1)

/* A piece. The element with global index g lies at local index l: l[k] = local_start[k] in every
 * local dimension k, plus g[d] - box.start[d] in the local dimension dim_map[d]. Two global
 * dimensions must not map to one local dimension. Where dim_map[d] is BANYAN_NO_DIM, the box has
 * extent 1 in dimension d: for example, one expert of a tensor that stacks all experts. */
typedef struct banyan_piece {
    int tensor;       /* the local tensor, as returned by banyan_layout_add_tensor */
    const char *name; /* of the global tensor; copied */
    /* In a destination: the global tensor, of the same shape, that fills this piece if no source
     * has `name`. For example, the embedding fills an output layer that is tied to it. NULL: none.
     * Copied. */
    const char *fallback_name;
    int ndim;                             /* of the global tensor */
    int64_t shape[BANYAN_MAX_DIMS];       /* of the global tensor */
    banyan_box box;                       /* elements of the global tensor */
    int64_t local_start[BANYAN_MAX_DIMS]; /* one for each dimension of the local tensor */
    int dim_map[BANYAN_MAX_DIMS];         /* local dimension of each global one, or BANYAN_NO_DIM */
    uint32_t flags;                       /* BANYAN_PIECE_… */
    /* Ranks that hold the same box of this tensor on this side, including this rank. Each of them
     * gives the same set. Empty: unknown. If all ranks give their sets, the cost of planning does
     * not depend on the number of replicas. */
    banyan_rank_set replicas;
} banyan_piece;

/* A tensor in a rank's memory. */
typedef struct banyan_local_tensor {
    const char *name;               /* unique in the layout */
    DLDataType dtype;               /* of its elements */
    int ndim;                       /* number of dimensions */
    int64_t shape[BANYAN_MAX_DIMS]; /* in elements */
} banyan_local_tensor;

/* The local tensors of a rank and their pieces. */
typedef struct banyan_layout banyan_layout;

/* Create an empty layout. Errors: NO_MEMORY. */
BANYAN_API banyan_status banyan_layout_create(banyan_layout **layout);

/* Destroy a layout. NULL is ignored. */
BANYAN_API void banyan_layout_destroy(banyan_layout *layout);

/* Add a local tensor. The name must be unique in the layout; it is copied. Extents may be 0. Return
 * the tensor's number, or -1 if the layout has an error. */
BANYAN_API int banyan_layout_add_tensor(banyan_layout *layout, const char *name, DLDataType dtype,
                                        int ndim, const int64_t *shape);

/* Add a piece of a global tensor to a local tensor. An empty box adds nothing. */
BANYAN_API void banyan_layout_add_piece(banyan_layout *layout, const banyan_piece *piece);

/* Declare elements of a local tensor as padding: they belong to no piece, and every run fills them
 * with zeros in a destination. An empty box adds nothing. */
BANYAN_API void banyan_layout_add_padding(banyan_layout *layout, int tensor, const banyan_box *box);

/* Largest element, in bytes, with which padding can be filled. Larger ones are filled with zeros
 * only. */
#define BANYAN_MAX_FILL_BYTES 16

/* Declare padding that runs fill with the element at `fill`, of the tensor's type; it is copied.
 * NULL means zeros. */
BANYAN_API void banyan_layout_add_filled_padding(banyan_layout *layout, int tensor,
                                                 const banyan_box *box, const void *fill);

/* Declare elements of a local tensor that belong to no piece and that runs do not change, because
 * the program uses them otherwise. An empty box adds nothing. */
BANYAN_API void banyan_layout_leave_alone(banyan_layout *layout, int tensor, const banyan_box *box);

/* Return BANYAN_OK, or the first error of an addition. Unlike banyan_layout_check, this compares no
 * pieces and takes no time. */
BANYAN_API banyan_status banyan_layout_status(const banyan_layout *layout);

/* Check a layout. Errors: INVALID (the first error of an addition; pieces, padding or elements left
 * alone that overlap in a local tensor; pieces that give a global tensor two shapes), NO_MEMORY. */
BANYAN_API banyan_status banyan_layout_check(const banyan_layout *layout);

/* Side of a reshard. */
typedef enum banyan_side { BANYAN_SOURCE = 0, BANYAN_DESTINATION } banyan_side;

/* Check a layout as one side of a reshard, as banyan_layout_check does. In a destination, every
 * element of a local tensor must also belong to a piece, be padding or be left alone. Otherwise
 * INVALID names the tensor and a box of other elements. A source may have such elements. The time
 * is n log n in the number of pieces. */
BANYAN_API banyan_status banyan_layout_check_as(const banyan_layout *layout, banyan_side side);

/* ---- reading a layout ---- */

/* The functions below return the additions in their order, even if the layout has an error.
 * Pointers are valid until the next addition. */

/* Return the number of local tensors. */
BANYAN_API size_t banyan_layout_tensor_count(const banyan_layout *layout);

/* Return local tensor `i`. */
BANYAN_API const banyan_local_tensor *banyan_layout_tensor(const banyan_layout *layout, size_t i);

/* Return the number of pieces. */
BANYAN_API size_t banyan_layout_piece_count(const banyan_layout *layout);

/* Return piece `i`. */
BANYAN_API const banyan_piece *banyan_layout_piece(const banyan_layout *layout, size_t i);

/* Return the number of boxes of padding. */
BANYAN_API size_t banyan_layout_padding_count(const banyan_layout *layout);

/* Return box `i` of the padding, and set `*tensor` to the number of its local tensor. */
BANYAN_API const banyan_box *banyan_layout_padding(const banyan_layout *layout, size_t i,
                                                   int *tensor);

/* Return the element that fills box `i` of the padding, in the tensor's type, or NULL for zeros. */
BANYAN_API const void *banyan_layout_padding_fill(const banyan_layout *layout, size_t i);

/* Return the number of boxes that are left alone. */
BANYAN_API size_t banyan_layout_left_alone_count(const banyan_layout *layout);

/* Return box `i` that is left alone, and set `*tensor` to the number of its local tensor. */
BANYAN_API const banyan_box *banyan_layout_left_alone(const banyan_layout *layout, size_t i,
                                                      int *tensor);

/* Return the bytes of all local tensors, dense. */
BANYAN_API uint64_t banyan_layout_bytes(const banyan_layout *layout);

/* ---- builder: device meshes and placements, as in PyTorch's DTensor ---- */

/* The ranks first_rank + Σ i[k]·stride[k] for 0 ≤ i[k] < extent[k]. If all strides are 0, the mesh
 * is row-major over consecutive ranks. */
typedef struct banyan_mesh {
    int ndim; /* number of axes */
    int extent[BANYAN_RANK_SET_LEVELS];
    int stride[BANYAN_RANK_SET_LEVELS];
    int first_rank;
} banyan_mesh;

/* Kind of a placement. */
typedef enum banyan_placement_kind {
    BANYAN_REPLICATE = 0,
    BANYAN_SHARD,
    /* Split after all axes with BANYAN_SHARD. FSDP2 does this: its data-parallel axis comes first
     * in the mesh, but splits the shard that tensor parallelism leaves. DTensor calls it
     * _StridedShard. */
    BANYAN_SHARD_STRIDED
} banyan_placement_kind;

/* Placement of a tensor along one mesh axis: split or replicated. */
typedef struct banyan_placement {
    banyan_placement_kind kind; /* split, or replicated */
    int dim;                    /* dimension of the tensor to split; not for BANYAN_REPLICATE */
} banyan_placement;

/* Add the shard of a global tensor that `rank` holds. There is one placement for each mesh axis.
 * They apply in order; each splits the result of the axes before it, by torch.chunk's rule: chunks
 * of ⌈size ÷ n⌉, of which the last ones may be smaller or empty. The local tensor has the name of
 * the global one. Its replicas are the ranks along the axes that replicate. A rank outside the mesh
 * adds nothing. */
BANYAN_API void banyan_layout_add_sharded(banyan_layout *layout, const char *name, DLDataType dtype,
                                          int ndim, const int64_t *shape, const banyan_mesh *mesh,
                                          const banyan_placement *placements, int rank);

/* ---- builder: Megatron-Core's metadata ---- */

/* One local parameter as Megatron-Core describes it (ParameterMetadata of its resharding planner).
 * Ranks are the job's. */
typedef struct banyan_megatron_tensor {
    const char *name;               /* local */
    const char *resolved_name;      /* in the whole model: with global layer and expert numbers */
    DLDataType dtype;               /* of its elements */
    int ndim;                       /* number of dimensions */
    int64_t shape[BANYAN_MAX_DIMS]; /* local */
    bool is_tp;                     /* sharded over the tensor-parallel group along partition_dim */
    int partition_dim;              /* with is_tp: the dimension that is sharded */
    int partition_stride; /* s segments; segment k of rank t of T is global segment k·T + t */
    /* Sizes of the local blocks that are packed along partition_dim. Each block is sharded by
     * itself. */
    const int64_t *partition_sizes;
    int partition_size_count;
    const int *tp_ranks; /* the tensor-parallel group in order; for experts, their own group */
    int tp_rank_count;
    const int
        *dp_ranks; /* the data-parallel group: the replicas. Without it the planner finds them */
    int dp_rank_count;
    /* The tensor belongs to one expert. Its replicas are not its data-parallel group; the planner
     * finds them. */
    bool is_ep;
    bool persistent_buffer; /* as BANYAN_PIECE_PERSISTENT_BUFFER */
} banyan_megatron_tensor;

/* Add a tensor as `rank` holds it, under its local name. It has one piece of the global tensor
 * `resolved_name`, or one for each segment or block. `rank_offset` is added to the ranks of the
 * replica set, for a job that numbers its ranks from 0. An output layer ("output_layer.weight")
 * falls back to the embedding beside it ("embedding.word_embeddings.weight"), for models with tied
 * weights. */
BANYAN_API void banyan_layout_add_megatron(banyan_layout *layout,
                                           const banyan_megatron_tensor *tensor, int rank,
                                           int rank_offset);

/* A test case for planners: the tensors of each rank on both sides, in Megatron-Core's terms, and
 * the transfers of Megatron-Core's planner. docs/layouts.md describes the JSON format. */
typedef struct banyan_megatron_case banyan_megatron_case;

/* A transfer of Megatron-Core's planner. */
typedef struct banyan_megatron_transfer {
    uint64_t task_id;                           /* as Megatron-Core numbers the transfer */
    int source_rank, destination_rank;          /* in the case's world */
    const char *source_name, *destination_name; /* local tensors */
    banyan_box source_slice, destination_slice; /* of the local tensors; equally many elements */
} banyan_megatron_transfer;

/* Load a case. The caller owns it. The transfers name tensors that exist and slices inside them.
 * Errors: FORMAT, NOT_FOUND, INVALID, SYSTEM, NO_MEMORY. A FORMAT message has the file, the place
 * and the mistake. The place is a line and column for broken JSON, and otherwise a path such as
 * "ranks[2].src[0].shape". */
BANYAN_API banyan_status banyan_megatron_case_load(const char *path, banyan_megatron_case **loaded);

/* Destroy a case. NULL is ignored. */
BANYAN_API void banyan_megatron_case_destroy(banyan_megatron_case *loaded);

/* ---- reading a case ---- */

/* The results of the functions below live as long as the case. */

/* Return the name of the case. */
BANYAN_API const char *banyan_megatron_case_name(const banyan_megatron_case *loaded);

/* Return the number of ranks. */
BANYAN_API int banyan_megatron_case_world_size(const banyan_megatron_case *loaded);

/* Return the `*count` tensors of `rank`, which must be a rank of the case, on one side. The count
 * is 0 if the rank takes no part in this side. */
BANYAN_API const banyan_megatron_tensor *
banyan_megatron_case_tensors(const banyan_megatron_case *loaded, int rank, banyan_side side,
                             size_t *count);

/* Return the number of transfers. */
BANYAN_API size_t banyan_megatron_case_transfer_count(const banyan_megatron_case *loaded);

/* Return transfer `i`. */
BANYAN_API const banyan_megatron_transfer *
banyan_megatron_case_transfer(const banyan_megatron_case *loaded, size_t i);

/* ---- builder: a model's tensor list, rules and a parallel spec ---- */

/* Names, shapes and types of a model's global tensors, in file order. */
typedef struct banyan_model banyan_model;

/* Load a model's tensor list. The caller owns it. `path` is a JSON file `{"name": {"shape": [...],
 * "dtype": "BF16"}, ...}`, in which a member "config.json" is the model's configuration. Or it is
 * anything that banyan_checkpoint_open accepts: a Hugging Face folder with its config.json, a
 * folder that ranks saved, or one safetensors file. Errors: FORMAT (with file, position and
 * tensor), NOT_FOUND, INVALID, SYSTEM, NO_MEMORY. */
BANYAN_API banyan_status banyan_model_load(const char *path, banyan_model **model);

/* Destroy a model. NULL is ignored. */
BANYAN_API void banyan_model_destroy(banyan_model *model);

/* Read a config.json for a model that was loaded without one. Rules take the size of attention
 * heads and other numbers from it (docs/layouts.md). Call it before layouts are built from the
 * model, from one thread. Errors: MISMATCH (it contradicts the model; the message has both values),
 * FORMAT, NOT_FOUND, NO_MEMORY. */
BANYAN_API banyan_status banyan_model_add_config(banyan_model *model, const char *path);

/* Omit the tensors whose names match a pattern from all layouts that are built from the model
 * later. Rules are not applied to them. In the pattern, `*` matches any characters except a dot,
 * and `**` any characters. `*count` is the number of matches. Call it before layouts are built from
 * the model, from one thread. Errors: INVALID (not a pattern), NO_MEMORY. */
BANYAN_API banyan_status banyan_model_skip(banyan_model *model, const char *pattern, size_t *count);

/* Return the number of tensors. */
BANYAN_API size_t banyan_model_tensor_count(const banyan_model *model);

/* Return tensor `i`. It lives as long as the model. */
BANYAN_API const banyan_local_tensor *banyan_model_tensor(const banyan_model *model, size_t i);

/* Return the bytes of all tensors. */
BANYAN_API uint64_t banyan_model_bytes(const banyan_model *model);

/* A parallel layout as on a command line: "tp=2,pp=2,dp=1,ep=4,etp=1,fsdp=8,packing=vllm".
 * docs/layouts.md describes every key and the numbering of ranks, docs/rules.md rule files. */
typedef struct banyan_spec {
    int tp, pp, dp;   /* tensor parallel, pipeline parallel, data parallel (replicas) */
    int fsdp;         /* ranks over which the rows of each replica are sharded */
    int ep, etp;      /* of experts, over the same tp × fsdp × dp ranks of a stage */
    char packing[24]; /* "hf" (none), "megatron", "megatron_grouped", "vllm", … */
    int64_t
        vocab_multiple; /* pad the vocabulary to a multiple; 0: do not; -1: as the packing does */
    int64_t head; /* elements of an attention head, if the model does not state it; 0: not given */
} banyan_spec;

/* Parse a spec. Missing keys are 1, except: dp is what world=N leaves, etp is tp if ep is missing,
 * and packing is hf. Errors: INVALID (with the key and its place in the text). Any thread. */
BANYAN_API banyan_status banyan_spec_parse(const char *text, banyan_spec *spec);

/* Return the number of ranks, tp × pp × dp × fsdp. Any thread. */
BANYAN_API int banyan_spec_world_size(const banyan_spec *spec);

/* Rules that map tensor names, by glob patterns, to the dimension to split and the packing. */
typedef struct banyan_rules banyan_rules;

/* Load a rule file; NULL loads the built-in rules, which cover the models in docs/models.md. The
 * caller owns the rules. Errors: FORMAT (with file, line and word), NOT_FOUND (with the file),
 * INVALID, SYSTEM, NO_MEMORY. */
BANYAN_API banyan_status banyan_rules_load(const char *path, banyan_rules **rules);

/* Destroy rules. NULL is ignored. */
BANYAN_API void banyan_rules_destroy(banyan_rules *rules);

/* Add everything that `rank` (from 0 to the world size of the spec - 1) of a job with this spec
 * holds of the model. `rank_offset` is added to replica sets. The layout keeps errors, with tensor,
 * rule and numbers: for example, no rule matches a tensor, or a size is not divisible. */
BANYAN_API void banyan_layout_add_model(banyan_layout *layout, const banyan_model *model,
                                        const banyan_rules *rules, const banyan_spec *spec,
                                        int rank, int rank_offset);

/* ---- builder: layout files ---- */

/* The layouts of all ranks of a job, as in a JSON file. docs/layouts.md and
 * share/banyan/layout.schema.json describe the format. Ranks with equal layouts form a group, which
 * is kept and written once. One thread at a time may add ranks; several may read afterwards. */
typedef struct banyan_layout_file banyan_layout_file;

/* Create an empty layout file. Errors: NO_MEMORY. */
BANYAN_API banyan_status banyan_layout_file_create(banyan_layout_file **file);

/* Load a layout file. The caller owns it. Errors: FORMAT, NOT_FOUND, INVALID (the path is not a
 * file), SYSTEM, NO_MEMORY. A FORMAT message has the file, the place and the mistake. The place is
 * a line and column for broken JSON, and otherwise a path such as
 * "ranks[2].tensors[0].pieces[1].extent". Unknown keys are mistakes. */
BANYAN_API banyan_status banyan_layout_file_load(const char *path, banyan_layout_file **file);

/* Destroy a layout file. NULL is ignored. */
BANYAN_API void banyan_layout_file_destroy(banyan_layout_file *file);

/* Add a copy of the layout of `rank`. Errors: the layout's own; INVALID (the rank is already there,
 * or is not from 0 to BANYAN_MAX_RANKS - 1), NO_MEMORY. */
BANYAN_API banyan_status banyan_layout_file_add(banyan_layout_file *file, int rank,
                                                const banyan_layout *layout);

/* Write the file. It appears at `path`, or replaces an old one, only when it is complete. Loading
 * it gives equal layouts. Errors: INVALID (a tensor's name is not UTF-8, or its type has no name in
 * files), SYSTEM, NO_MEMORY. */
BANYAN_API banyan_status banyan_layout_file_save(const banyan_layout_file *file, const char *path);

/* Return the highest rank in the file + 1. A missing rank below it holds nothing. */
BANYAN_API int banyan_layout_file_rank_count(const banyan_layout_file *file);

/* Return the number of groups of ranks with equal layouts. */
BANYAN_API size_t banyan_layout_file_group_count(const banyan_layout_file *file);

/* Return the `*count` ranks of group `i`, in ascending order. They are valid until the next rank is
 * added. */
BANYAN_API const int *banyan_layout_file_group_ranks(const banyan_layout_file *file, size_t i,
                                                     size_t *count);

/* Return the layout of group `i`. It is valid until the next rank is added. */
BANYAN_API const banyan_layout *banyan_layout_file_group_layout(const banyan_layout_file *file,
                                                                size_t i);

/* Check the layouts of all ranks together, as one side of a reshard. Each layout must pass
 * banyan_layout_check_as. All ranks must give a global tensor the same shape, and in a source the
 * same type. A replica set must contain the ranks that give it. Errors: INVALID, MISMATCH (between
 * ranks), with the rank. */
BANYAN_API banyan_status banyan_layout_file_check(const banyan_layout_file *file, banyan_side side);

/* Add everything that `rank` of a layout file holds. `rank_offset` is added to replica sets. */
BANYAN_API void banyan_layout_add_file(banyan_layout *layout, const banyan_layout_file *file,
                                       int rank, int rank_offset);

#ifdef __cplusplus
}
#endif
#endif
