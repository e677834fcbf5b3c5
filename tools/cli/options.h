/* Command-line options: a table describes them; this reads them and prints the help. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* Exit code of every command that was called wrongly. */
#define EXIT_USAGE 2

typedef enum option_kind {
    OPTION_FLAG,        /* bool; takes no value */
    OPTION_TEXT,        /* const char * */
    OPTION_FILE,        /* const char *; a file written beside what goes to stdout: not "-" */
    OPTION_COUNT,       /* int, low ≤ value ≤ high */
    OPTION_SECONDS,     /* double, more than 0 */
    OPTION_BYTES,       /* uint64_t, more than 0; "64K" */
    OPTION_BYTES_RANGE, /* two sizes, ascending; "1K:64M", or one for both */
    OPTION_ROWS_RANGE,  /* two numbers of rows, ascending: "1:4096" */
    OPTION_CHOICE       /* const char *, one of `argument`: "direct|pipeline" */
} option_kind;

typedef struct option_entry {
    const char *name; /* without the dashes */
    char letter;      /* '\0': no short form */
    option_kind kind;
    void *value;
    const char *argument; /* how the help names the value, by which shells complete it */
    const char *help;
    int low, high;
} option_entry;

typedef struct option_table {
    const char *command; /* "banyan launch" */
    const char *usage;   /* arguments after the command; shells complete operands by it */
    const char *about;   /* a few lines, ends with a newline */
    const option_entry *entries;
    size_t count;
} option_table;

typedef enum options_result {
    OPTIONS_OK,
    OPTIONS_HELP, /* --help, or the candidates of a completion, are printed */
    OPTIONS_WRONG /* a message was printed */
} options_result;

/* Read argv[1] up to the first argument that is not an option, or up to "--"; `*rest` is the index
 * behind. */
options_result options_parse(const option_table *table, int argc, char **argv, int *rest);

/* Read options before, between and behind other arguments, which are moved to argv[*rest] and on.
 */
options_result options_parse_anywhere(const option_table *table, int argc, char **argv, int *rest);

/* Read options of a command that takes one other argument. The error names it when it is missing or
 * repeated: "which plan: PLAN.json". */
options_result options_parse_one(const option_table *table, int argc, char **argv,
                                 const char *wanted, const char **given);

/* Read options of a command that refuses other arguments. */
options_result options_parse_only(const option_table *table, int argc, char **argv);

/* Find the option that an argument names: "-n", "-n4", "--name" or "--name=value". `*value` points
 * behind the name if the value is in the same argument. NULL if there is none. */
const option_entry *options_find(const option_table *table, const char *argument,
                                 const char **value);

/* Return the exit code of a command that must stop here. */
int options_exit_code(options_result result);

/* Return the exit code if the command must stop here. */
#define RETURN_UNLESS_PARSED(parsed)                                                               \
    do {                                                                                           \
        options_result result_ = (parsed);                                                         \
        if (result_ != OPTIONS_OK)                                                                 \
            return options_exit_code(result_);                                                     \
    } while (0)

/* Print "banyan launch: <message>" on stderr; returns EXIT_USAGE. */
int options_refuse(const option_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
