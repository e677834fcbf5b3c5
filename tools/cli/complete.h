/* Completion of command lines in a shell.
 *
 * `banyan __complete WORD…` prints the candidates for the last word, which may be empty; the words
 * before it select the command and its options. The options and commands of the command line print
 * them from their own tables, in the place where they would otherwise parse. Lines of the output:
 *
 *     CANDIDATE<tab>DESCRIPTION   a whole word; none is filtered by the characters typed so far
 *     :files<tab>PREFIX           files complete the word behind PREFIX ("--out=", or "")
 *     :json<tab>PREFIX            the same, JSON files
 *     :folders<tab>PREFIX         the same, folders
 *     :command<tab>N              the last N words are a command line of their own
 */
#ifndef TOOLS_COMPLETE_H
#define TOOLS_COMPLETE_H

#include <stdbool.h>

#include "cli/commands.h"
#include "cli/options.h"

/* From here on, command_set_run and options_parse complete. */
void complete_begin(void);
bool complete_is_on(void);

/* The words are those of `banyan help`: only commands are candidates. */
void complete_help(void);

void complete_commands(const command_set *set);

/* `leading`: options end at the first other argument. */
void complete_options(const option_table *table, int argc, char **argv, bool leading);

#endif
