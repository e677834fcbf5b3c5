#include "world/directory/directory.h"

#include <stdlib.h>

#include "core/error.h"

struct banyan_directory {
    banyan_world *world;
    directory_part *part;
};

banyan_status banyan_directory_open(banyan_world *world, banyan_directory **directory)
{
    CONTROL_ENTER(world);
    banyan_directory *opened = calloc(1, sizeof *opened);
    banyan_status status = opened ? directory_part_create(banyan_world_rank(world),
                                                          banyan_world_size(world), &opened->part)
                                  : error_no_memory(sizeof *opened, "a directory");
    status = control_agree(world, status);
    if (status != BANYAN_OK) {
        banyan_directory_close(opened);
        return status;
    }
    opened->world = world;
    *directory = opened;
    return BANYAN_OK;
}

void banyan_directory_close(banyan_directory *directory)
{
    if (!directory)
        return;
    directory_part_destroy(directory->part);
    free(directory);
}

banyan_status banyan_directory_put(banyan_directory *directory, const char *key, const void *value,
                                   size_t bytes, const banyan_rank_set *holders)
{
    return directory_part_put(directory->part, key, value, bytes, holders);
}

/* A rank whose own step failed still takes part, with nothing to contribute, so that no other rank
 * waits for it. The ranks agree afterwards. */
banyan_status banyan_directory_commit(banyan_directory *directory)
{
    CONTROL_ENTER(directory->world);
    control_message *messages = NULL, *received = NULL;
    size_t count = 0, received_count = 0;
    banyan_status mine = directory_part_take_puts(directory->part, &messages, &count);
    banyan_status status = control_exchange(directory->world, messages, count, "directory commit",
                                            &received, &received_count);
    control_messages_free(messages, count);
    if (status != BANYAN_OK)
        return status;
    for (size_t i = 0; i < received_count && mine == BANYAN_OK; i++)
        mine = directory_part_absorb(directory->part, received[i].rank, received[i].data,
                                     received[i].bytes);
    control_messages_free(received, received_count);
    return control_agree(directory->world, mine);
}

/* Turn the received questions into answers, each to its asker. */
static banyan_status directory_answer_all(directory_part *part, const control_message *questions,
                                          size_t count, control_message **answers,
                                          size_t *answer_count)
{
    control_message *made = calloc(count ? count : 1, sizeof *made);
    if (!made)
        return error_no_memory(count * sizeof *made, "the directory's answers");
    for (size_t i = 0; i < count; i++) {
        made[i].rank = questions[i].rank;
        banyan_status status = directory_part_answer(part, questions[i].data, questions[i].bytes,
                                                     &made[i].data, &made[i].bytes);
        if (status != BANYAN_OK) {
            control_messages_free(made, i);
            return status;
        }
    }
    *answers = made;
    *answer_count = count;
    return BANYAN_OK;
}

banyan_status banyan_directory_get(banyan_directory *directory, size_t count,
                                   const char *const *keys, banyan_directory_visit visit,
                                   void *context)
{
    CONTROL_ENTER(directory->world);
    banyan_world *world = directory->world;
    control_message *asked = NULL, *questions = NULL, *given = NULL, *answers = NULL;
    size_t asked_count = 0, question_count = 0, given_count = 0, answer_count = 0;
    banyan_status mine = directory_part_ask(directory->part, count, keys, &asked, &asked_count);
    banyan_status status = control_exchange(world, asked, asked_count, "directory questions",
                                            &questions, &question_count);
    if (status != BANYAN_OK)
        goto free_asked;
    if (mine == BANYAN_OK)
        mine =
            directory_answer_all(directory->part, questions, question_count, &given, &given_count);
    control_messages_free(questions, question_count);
    status = control_agree(world, mine);
    if (status != BANYAN_OK)
        goto free_given;
    status =
        control_exchange(world, given, given_count, "directory answers", &answers, &answer_count);
    if (status != BANYAN_OK)
        goto free_given;
    status = directory_part_visit(directory->part, answers, answer_count, visit, context);
    control_messages_free(answers, answer_count);
free_given:
    control_messages_free(given, given_count);
free_asked:
    control_messages_free(asked, asked_count);
    return status;
}
