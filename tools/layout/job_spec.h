/* A model and the two layouts that it moves between, as named on a command line. */
#ifndef TOOLS_JOB_SPEC_H
#define TOOLS_JOB_SPEC_H

#include <banyan/checkpoint.h>

typedef struct job_spec {
    const char *model_path, *rules_path, *from_text, *to_text;
    const char *config_path; /* the model's config.json; NULL: beside the weights, if there */
    const char *skip;        /* patterns of tensors to leave out, separated by commas; or NULL */
    bool disjoint;
    bool partial_source; /* allow source elements that no destination holds */
    /* A folder saved by ranks, which source ranks hold unchanged where from_text is NULL. */
    const banyan_checkpoint *saved;

    banyan_model *model;
    banyan_rules *rules;
    banyan_spec from, to;                    /* from: where from_text is given */
    banyan_layout_file *from_file, *to_file; /* in place of a spec; else NULL */
    int from_ranks, to_ranks;
    int to_first; /* the first rank that holds the destination */
    int ranks;
} job_spec;

/* Return the missing option, or NULL. Two layout files need no model. */
const char *job_spec_missing(const job_spec *spec);

/* Read the named files and specs, or print why they cannot be used. */
bool job_spec_read(job_spec *spec, const char *who);
void job_spec_free(job_spec *spec);

/* Add the tensors of `rank` to two empty layouts. */
void job_spec_layouts(const job_spec *spec, int rank, banyan_layout *source,
                      banyan_layout *destination);

/* The model file's name without folder and ending. */
const char *job_spec_name(const job_spec *spec, char text[256]);

/* The source's layout in words: "as saved" without a spec. */
const char *job_spec_from(const job_spec *spec);

/* "qwen3: tp=2 on 2 ranks to tp=4 on 4 others" */
#define JOB_SPEC_TITLE_BYTES 1024
const char *job_spec_title(const job_spec *spec, char text[JOB_SPEC_TITLE_BYTES]);

/* Count the model's tensors that the destination leaves out: those of --skip, and those that its
 * packing does not have. `*first` is the name of one of them. */
banyan_status job_spec_left_out(const job_spec *spec, size_t *count, const char **first);

/* Print a line about them, if there are any. */
banyan_status job_spec_print_left_out(const job_spec *spec);

/* Leave out the tensors that fit one of the patterns, which commas separate. INVALID for a pattern
 * that no tensor fits: it is probably misspelt. */
banyan_status skip_tensors(banyan_model *model, const char *patterns);

#endif
