/* Banyan: layouts, which pieces of a model's tensors a rank holds and where.
 *
 * A layout lists the tensors in this rank's memory (local tensors) and, for each, the pieces of the
 * model's tensors (global tensors) that lie in it. A piece is a box of one global tensor and the
 * place of that box inside a local tensor. Sharding, packing, stacking and transposing are all just
 * pieces: the planner knows nothing else.
 *
 * A layout is a builder: calls that add to it do not fail one by one. It keeps the first error,
 * with the names and numbers, and banyan_layout_check or the planner reports it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_LAYOUT_H
#define BANYAN_LAYOUT_H

#include <banyan/copy.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Elements start[d] ≤ i[d] < start[d] + extent[d]. Zero dimensions: a scalar, one element. */
typedef struct banyan_box {
    int ndim;
    int64_t start[BANYAN_MAX_DIMS];
    int64_t extent[BANYAN_MAX_DIMS];
} banyan_box;

/* Arithmetic of boxes: it cannot fail, and any thread may do it. Boxes that are intersected
 * or cut have equally many dimensions. */

/* Elements of a box that lies in a tensor of some memory: they do not overflow. */
BANYAN_API uint64_t banyan_box_elems(const banyan_box *box);
/* The same start and extent in every dimension. */
BANYAN_API bool banyan_box_equal(const banyan_box *a, const banyan_box *b);
/* False, and `out` is untouched, when they have no element in common. */
BANYAN_API bool banyan_box_intersect(const banyan_box *a, const banyan_box *b, banyan_box *out);
/* Cut `b` out of `a`: up to 2 × ndim disjoint boxes that cover the rest. Returns their number. */
BANYAN_API int banyan_box_subtract(const banyan_box *a, const banyan_box *b,
                                   banyan_box out[2 * BANYAN_MAX_DIMS]);
/* "[0:48, 16:32]" into `text`, cut to `bytes`. Returns `text`. */
BANYAN_API const char *banyan_box_format(const banyan_box *box, char *text, size_t bytes);

enum {
    /* The source's dtype wins: a persistent buffer (a running mean, an expert bias) that the
     * destination declares in another type takes the type it is sent in. */
    BANYAN_PIECE_PERSISTENT_BUFFER = 1 << 0,
    /* A value map: each local element is -exp(x) of the global tensor's element x, as an engine
     * keeps that computes it once, when it loads. A run computes it in float32, within half a unit
     * in the last place, and rounds to the local type; both types are F32, F16 or BF16. Where the
     * source keeps a tensor under the map, too, elements move as they are. Nothing undoes a map: a
     * destination that has none of a source that has one is MISMATCH. */
    BANYAN_PIECE_NEGATIVE_EXP = 1 << 1
};

/* In a dim_map: the local tensor has no such dimension. */
#define BANYAN_NO_DIM (-1)

/* Global index g of the box lies at local index l, with l[k] = local_start[k] for every local
 * dimension k, plus g[d] - box.start[d] in dimension dim_map[d]. A local dimension may be the image
 * of at most one global one. Where dim_map[d] is BANYAN_NO_DIM, the box has extent 1 in dimension
 * d: one expert, say, of a tensor that stacks all of them. */
typedef struct banyan_piece {
    int tensor;       /* the local tensor, as returned by banyan_layout_add_tensor */
    const char *name; /* of the global tensor; copied */
    /* In a destination, the global tensor of the same shape that fills this piece when no source
     * has `name`: the embedding, for an output layer that is tied to it. NULL: none. Copied. */
    const char *fallback_name;
    int ndim;                       /* of the global tensor */
    int64_t shape[BANYAN_MAX_DIMS]; /* of the global tensor */
    banyan_box box;
    int64_t local_start[BANYAN_MAX_DIMS]; /* as many as the local tensor has dimensions */
    int dim_map[BANYAN_MAX_DIMS];         /* local dimension of each global one, or none */
    uint32_t flags;                       /* BANYAN_PIECE_… */
    /* Ranks that hold this very box of this tensor on this side, this rank among them, each giving
     * this same set; empty when the caller knows none. Knowing all of them keeps planning
     * independent of their number. */
    banyan_rank_set replicas;
} banyan_piece;

typedef struct banyan_local_tensor {
    const char *name;
    DLDataType dtype;
    int ndim;
    int64_t shape[BANYAN_MAX_DIMS];
} banyan_local_tensor;

typedef struct banyan_layout banyan_layout;

/* An empty layout. NO_MEMORY only. A layout belongs to one thread at a time; NULL may be destroyed.
 */
BANYAN_API banyan_status banyan_layout_create(banyan_layout **layout);
BANYAN_API void banyan_layout_destroy(banyan_layout *layout);

/* Add a local tensor; returns its number, or -1 once the layout has an error. Names must be unique;
 * extents may be 0. */
BANYAN_API int banyan_layout_add_tensor(banyan_layout *layout, const char *name, DLDataType dtype,
                                        int ndim, const int64_t *shape);
/* An empty box adds nothing. */
BANYAN_API void banyan_layout_add_piece(banyan_layout *layout, const banyan_piece *piece);

/* Padding: elements of a local tensor that belong to no piece. In a destination every run fills
 * them, with zeros. An empty box adds nothing. */
BANYAN_API void banyan_layout_add_padding(banyan_layout *layout, int tensor, const banyan_box *box);
/* Padding that runs fill with another value: `fill` is one element of the tensor's type. Copied.
 * Elements of more than BANYAN_MAX_FILL_BYTES can be filled with zeros only. NULL: zeros. */
#define BANYAN_MAX_FILL_BYTES 16
BANYAN_API void banyan_layout_add_filled_padding(banyan_layout *layout, int tensor,
                                                 const banyan_box *box, const void *fill);
/* Elements of a local tensor that belong to no piece and that runs leave as they are: something
 * else, outside the model, owns them. An empty box adds nothing. */
BANYAN_API void banyan_layout_leave_alone(banyan_layout *layout, int tensor, const banyan_box *box);

/* The first error of a builder call, else that of the whole: pieces, padding and what is left alone
 * of one local tensor that overlap in memory, pieces that give one global tensor two shapes.
 * INVALID, or NO_MEMORY. */
BANYAN_API banyan_status banyan_layout_check(const banyan_layout *layout);

typedef enum banyan_side { BANYAN_SOURCE = 0, BANYAN_DESTINATION } banyan_side;

/* Check a layout that is to be one side of a move, as banyan_layout_check does. In a destination
 * every element of a local tensor must belong to a piece, be padding or be left alone: INVALID
 * names the tensor and a box of elements that are none of these. A source may have such elements. n
 * log n in the pieces. */
BANYAN_API banyan_status banyan_layout_check_as(const banyan_layout *layout, banyan_side side);

/* What was added, in order, errors or not. `i` is below the count. Pointers are valid until the
 * next call that adds. */

BANYAN_API size_t banyan_layout_tensor_count(const banyan_layout *layout);
BANYAN_API const banyan_local_tensor *banyan_layout_tensor(const banyan_layout *layout, size_t i);
BANYAN_API size_t banyan_layout_piece_count(const banyan_layout *layout);
BANYAN_API const banyan_piece *banyan_layout_piece(const banyan_layout *layout, size_t i);
BANYAN_API size_t banyan_layout_padding_count(const banyan_layout *layout);
BANYAN_API const banyan_box *banyan_layout_padding(const banyan_layout *layout, size_t i,
                                                   int *tensor);
/* One element of the tensor's type, as it was given; NULL: zeros. */
BANYAN_API const void *banyan_layout_padding_fill(const banyan_layout *layout, size_t i);
BANYAN_API size_t banyan_layout_left_alone_count(const banyan_layout *layout);
BANYAN_API const banyan_box *banyan_layout_left_alone(const banyan_layout *layout, size_t i,
                                                      int *tensor);
/* Bytes of all local tensors, dense. */
BANYAN_API uint64_t banyan_layout_bytes(const banyan_layout *layout);

/* ---- builder: a mesh of ranks and placements, as PyTorch's DTensor has them ---- */

/* Ranks first_rank + Σ i[k]·stride[k]; strides all 0 means row-major over consecutive ranks. */
typedef struct banyan_mesh {
    int ndim;
    int extent[BANYAN_RANK_SET_LEVELS];
    int stride[BANYAN_RANK_SET_LEVELS];
    int first_rank;
} banyan_mesh;

typedef enum banyan_placement_kind {
    BANYAN_REPLICATE = 0,
    BANYAN_SHARD,
    /* Cuts after all axes that shard plainly have cut: what FSDP2 does, on the data-parallel axis
     * that comes first in its mesh, to the shard that tensor parallelism left. (DTensor writes it
     * as _StridedShard.) */
    BANYAN_SHARD_STRIDED
} banyan_placement_kind;

typedef struct banyan_placement {
    banyan_placement_kind kind;
    int dim; /* of the tensor, when sharded */
} banyan_placement;

/* The shard of a global tensor at `rank`: one placement a mesh axis, applied in order, each cutting
 * what the axes before it left, by torch.chunk's rule (pieces of ⌈size ÷ n⌉, the last ones smaller
 * or empty). A rank outside the mesh adds nothing. The local tensor has the global one's name; its
 * replicas are the ranks along the axes that replicate. */
BANYAN_API void banyan_layout_add_sharded(banyan_layout *layout, const char *name, DLDataType dtype,
                                          int ndim, const int64_t *shape, const banyan_mesh *mesh,
                                          const banyan_placement *placements, int rank);

/* ---- builder: Megatron-Core's metadata ---- */

/* One local parameter as Megatron-Core describes it (ParameterMetadata of its resharding planner).
 * Ranks are numbered as the job numbers them. */
typedef struct banyan_megatron_tensor {
    const char *name;          /* local */
    const char *resolved_name; /* in the whole model: global layer and expert numbers */
    DLDataType dtype;
    int ndim;
    int64_t shape[BANYAN_MAX_DIMS]; /* local */
    bool is_tp;                     /* sharded over the tensor-parallel group along partition_dim */
    int partition_dim;
    int partition_stride; /* s segments; segment k of rank t of T is global segment k·T + t */
    /* Sizes of the local blocks that are packed along partition_dim, each sharded by itself. */
    const int64_t *partition_sizes;
    int partition_size_count;
    const int *tp_ranks; /* the tensor-parallel group, in order; for experts, theirs */
    int tp_rank_count;
    const int *dp_ranks; /* the data-parallel group: the replicas. None: the planner finds them */
    int dp_rank_count;
    /* One expert's tensor, whose replicas are not its data-parallel group: the planner finds them.
     */
    bool is_ep;
    bool persistent_buffer;
} banyan_megatron_tensor;

/* Add the tensor as `rank` holds it, under its local name, with a piece (or one a segment or block)
 * of the global tensor `resolved_name`. rank_offset is added to the ranks of the replica set, for a
 * job that numbers its own from 0. An output layer ("output_layer.weight") falls back to the
 * embedding beside it ("embedding.word_embeddings.weight"), for models that tie them. */
BANYAN_API void banyan_layout_add_megatron(banyan_layout *layout,
                                           const banyan_megatron_tensor *tensor, int rank,
                                           int rank_offset);

/* A case for testing planners: what each rank holds on both sides, in Megatron-Core's terms, and
 * the transfers its planner makes of it. docs/layouts.md has the JSON format. */
typedef struct banyan_megatron_case banyan_megatron_case;

typedef struct banyan_megatron_transfer {
    uint64_t task_id;
    int source_rank, destination_rank;
    const char *source_name, *destination_name; /* local tensors */
    banyan_box source_slice, destination_slice; /* of the local tensors; equally many elements */
} banyan_megatron_transfer;

/* FORMAT names the file, the place and what is wrong: line and column for broken JSON, a path
 * ("ranks[2].src[0].shape") for the rest. Transfers name tensors that exist and slices in them. */
BANYAN_API banyan_status banyan_megatron_case_load(const char *path, banyan_megatron_case **loaded);
/* NULL is ignored. */
BANYAN_API void banyan_megatron_case_destroy(banyan_megatron_case *loaded);
/* What was read: as long as the case lives, from any thread. `i` is below the count. */
BANYAN_API const char *banyan_megatron_case_name(const banyan_megatron_case *loaded);
BANYAN_API int banyan_megatron_case_world_size(const banyan_megatron_case *loaded);
/* What `rank`, one of the case's, holds on one side: `count` tensors, none where it takes no part.
 */
BANYAN_API const banyan_megatron_tensor *
banyan_megatron_case_tensors(const banyan_megatron_case *loaded, int rank, banyan_side side,
                             size_t *count);
BANYAN_API size_t banyan_megatron_case_transfer_count(const banyan_megatron_case *loaded);
BANYAN_API const banyan_megatron_transfer *
banyan_megatron_case_transfer(const banyan_megatron_case *loaded, size_t i);

/* ---- builder: a model's tensor list, rules and a parallel spec ---- */

/* Names, shapes and types of a model's global tensors, in file order. */
typedef struct banyan_model banyan_model;

/* From `{"name": {"shape": [...], "dtype": "BF16"}, ...}`, in which a member "config.json" is the
 * model's configuration, or whatever banyan_checkpoint_open takes: a Hugging Face folder with its
 * config.json, a folder that ranks saved, or one safetensors file. FORMAT names file, position and
 * tensor. */
BANYAN_API banyan_status banyan_model_load(const char *path, banyan_model **model);
/* NULL is ignored. */
BANYAN_API void banyan_model_destroy(banyan_model *model);
/* Read a config.json for a model that came without one: rules take sizes of heads and more from it
 * (docs/layouts.md). MISMATCH, with both values, when it contradicts what the model already knows;
 * FORMAT, NOT_FOUND. Before layouts are made of the model, by one thread. */
BANYAN_API banyan_status banyan_model_add_config(banyan_model *model, const char *path);
/* Leave the tensors whose names fit a pattern (`*`: any run of characters without a dot; `**`: any
 * run) out of all layouts that are made of the model from now on. Rules are not asked about them.
 * `count` is how many fit. INVALID: no pattern. Before layouts are made, by one thread. */
BANYAN_API banyan_status banyan_model_skip(banyan_model *model, const char *pattern, size_t *count);
/* What was read: as long as the model lives, from any thread. `i` is below the count; the bytes are
 * those of all tensors. */
BANYAN_API size_t banyan_model_tensor_count(const banyan_model *model);
BANYAN_API const banyan_local_tensor *banyan_model_tensor(const banyan_model *model, size_t i);
BANYAN_API uint64_t banyan_model_bytes(const banyan_model *model);

/* A parallel layout as a command line writes it: "tp=2,pp=2,dp=1,ep=4,etp=1,fsdp=8,packing=vllm".
 * docs/layouts.md has every key, how ranks are numbered, and the rule file's format. */
typedef struct banyan_spec {
    int tp, pp, dp;         /* tensor, pipeline, data (replicas) */
    int fsdp;               /* ranks that each replica's rows are spread over */
    int ep, etp;            /* of experts, over the same tp × fsdp × dp ranks of a stage */
    char packing[24];       /* "hf" (none), "megatron", "megatron_grouped", "vllm", … */
    int64_t vocab_multiple; /* the vocabulary is padded to a multiple; 0: not; -1: as packed */
    int64_t head; /* elements of an attention head, where the model does not tell; 0: not given */
} banyan_spec;

/* Keys that are not given are 1; dp is what world=N leaves; etp is tp where ep is not given;
 * packing is hf. INVALID names the key and the place in the text. */
BANYAN_API banyan_status banyan_spec_parse(const char *text, banyan_spec *spec);
/* tp × pp × dp × fsdp. */
BANYAN_API int banyan_spec_world_size(const banyan_spec *spec);

/* Glob → dimension and packing. */
typedef struct banyan_rules banyan_rules;

/* From a rule file; `path` NULL: the built-in rules, which know the models in docs/layouts.md.
 * FORMAT names file, line and word; NOT_FOUND the file. */
BANYAN_API banyan_status banyan_rules_load(const char *path, banyan_rules **rules);
/* NULL is ignored. */
BANYAN_API void banyan_rules_destroy(banyan_rules *rules);

/* Everything that `rank` (0 … world size of the spec - 1) of a job with this spec holds of the
 * model. Replica sets get rank_offset added. Errors, kept in the layout, name tensor, rule and
 * numbers: a tensor that no rule matches, a size that does not divide. */
BANYAN_API void banyan_layout_add_model(banyan_layout *layout, const banyan_model *model,
                                        const banyan_rules *rules, const banyan_spec *spec,
                                        int rank, int rank_offset);

/* ---- builder: layout files ---- */

/* The layouts of all ranks of a job, as a file has them: JSON, described in docs/layouts.md and in
 * share/banyan/layout.schema.json. Ranks with equal layouts are kept, and written, once. It belongs
 * to one thread at a time while ranks are added; any number may read it afterwards. */
typedef struct banyan_layout_file banyan_layout_file;

/* An empty one, to add ranks to. NO_MEMORY only. */
BANYAN_API banyan_status banyan_layout_file_create(banyan_layout_file **file);
/* FORMAT names the file, the place and the mistake: line and column for broken JSON, a path
 * ("ranks[2].tensors[0].pieces[1].extent") for the rest. Keys that the format does not have are
 * errors. NOT_FOUND: there is no such file. */
BANYAN_API banyan_status banyan_layout_file_load(const char *path, banyan_layout_file **file);
/* NULL is ignored. */
BANYAN_API void banyan_layout_file_destroy(banyan_layout_file *file);

/* Add a copy of what `rank` holds. Errors: the layout's own; INVALID for a rank that is there
 * already or is not one of 0 … BANYAN_MAX_RANKS - 1. */
BANYAN_API banyan_status banyan_layout_file_add(banyan_layout_file *file, int rank,
                                                const banyan_layout *layout);
/* Write the file; it appears when it is whole. INVALID names a tensor whose name is no UTF-8 or
 * whose type has no name in files; SYSTEM. Loading it again gives equal layouts. */
BANYAN_API banyan_status banyan_layout_file_save(const banyan_layout_file *file, const char *path);

/* The highest rank that it has, and one. A rank between that it does not have holds nothing. */
BANYAN_API int banyan_layout_file_rank_count(const banyan_layout_file *file);
/* Ranks of one group have equal layouts. A group (`i` is below the count)
 * gives its ranks in ascending order, and their layout. Valid until the next rank is added. */
BANYAN_API size_t banyan_layout_file_group_count(const banyan_layout_file *file);
BANYAN_API const int *banyan_layout_file_group_ranks(const banyan_layout_file *file, size_t i,
                                                     size_t *count);
BANYAN_API const banyan_layout *banyan_layout_file_group_layout(const banyan_layout_file *file,
                                                                size_t i);

/* Check all ranks together, as one side of a move: banyan_layout_check_as of each layout;
 * every rank gives a global tensor the same shape, and in a source the same type; a set of replicas
 * includes the ranks that name it. INVALID, or MISMATCH between ranks, with the rank. */
BANYAN_API banyan_status banyan_layout_file_check(const banyan_layout_file *file, banyan_side side);

/* Add everything that `rank` holds. Replica sets get rank_offset added. */
BANYAN_API void banyan_layout_add_file(banyan_layout *layout, const banyan_layout_file *file,
                                       int rank, int rank_offset);

#ifdef __cplusplus
}
#endif
#endif
