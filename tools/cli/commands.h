/* The command line's commands: each takes its own name as argv[0] and returns the exit code. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

int launch_command(int argc, char **argv);
int reshard_command(int argc, char **argv);
int verify_command(int argc, char **argv); /* of `banyan reshard` */
int layout_command(int argc, char **argv);
int plan_command(int argc, char **argv);
int plan_scale_command(int argc, char **argv);
int check_command(int argc, char **argv);
int run_command(int argc, char **argv);
int algo_command(int argc, char **argv);
int tune_command(int argc, char **argv);
int simulate_command(int argc, char **argv);
int topo_command(int argc, char **argv);
int mixed_command(int argc, char **argv);
int bench_command(int argc, char **argv);
int rules_command(int argc, char **argv);

#endif
