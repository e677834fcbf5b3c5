/* The command line's commands: each takes its own name as argv[0] and returns the exit code. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stddef.h>

int launch_command(int argc, char **argv);
int world_command(int argc, char **argv);
int reshard_command(int argc, char **argv);
int verify_command(int argc, char **argv); /* of `banyan reshard` */
int publish_command(int argc, char **argv);
int subscribe_command(int argc, char **argv);
int diff_command(int argc, char **argv);
int layout_command(int argc, char **argv);
int plan_command(int argc, char **argv);
int plan_scale_command(int argc, char **argv);
int check_command(int argc, char **argv);
int run_command(int argc, char **argv);
int algo_command(int argc, char **argv);
int tune_command(int argc, char **argv);
int simulate_command(int argc, char **argv);
int topo_command(int argc, char **argv);
int topo_probe_command(int argc, char **argv);
int compat_command(int argc, char **argv);
int mixed_command(int argc, char **argv);
int bench_command(int argc, char **argv);
int rules_command(int argc, char **argv);

/* A command whose first argument names another command. */
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
