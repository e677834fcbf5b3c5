/* A command whose first argument names another command. */
#ifndef TOOLS_COMMAND_SET_H
#define TOOLS_COMMAND_SET_H

#include <stddef.h>

typedef struct command_entry {
    const char *name;
    const char *arguments; /* shown behind the name in the help; may be "" */
    const char *about;
    int (*run)(int argc, char **argv); /* takes its own name as argv[0]; returns the exit code */
} command_entry;

typedef struct command_set {
    const char *command; /* "banyan plan" */
    const char *usage;   /* arguments after the command */
    const char *about;   /* lines in front of the list, end with a newline; or "" */
    const char *more;    /* lines behind the list; or "" */
    const command_entry *entries;
    size_t count;
    /* Run when argv[1] names no command; NULL: refuse. Its help replaces usage and about. */
    int (*otherwise)(int argc, char **argv);
} command_set;

/* Run the command that argv[1] names. "help NAME" is "NAME --help"; "help" and "--help" list the
 * commands, behind the help of `otherwise`. */
int command_set_run(const command_set *set, int argc, char **argv);

#endif
