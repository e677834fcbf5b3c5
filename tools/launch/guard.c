#include "launch/guard.h"

#include "launch/launch.h"

/* Watch process groups: positive words add a group, negative ones remove it. Kill the remaining
 * groups when the launcher has ended. */
static void guard_watch(int from, const void *nothing)
{
    static pid_t groups[LAUNCH_MAX_RANKS];
    int count = 0;
    pid_t word;
    (void)nothing;
    while (helper_hear(from, &word, sizeof word)) {
        if (word > 0 && count < LAUNCH_MAX_RANKS)
            groups[count++] = word;
        for (int i = 0; word < 0 && i < count; i++) {
            if (groups[i] == -word)
                groups[i--] = groups[--count];
        }
    }
    for (int i = 0; i < count; i++)
        kill(-groups[i], SIGKILL);
}

bool guard_start(helper *guard)
{
    return helper_start(guard, guard_watch, NULL);
}

void guard_add(const helper *guard, pid_t group)
{
    helper_tell(guard, &group, sizeof group);
}

void guard_remove(const helper *guard, pid_t group)
{
    pid_t word = -group;
    helper_tell(guard, &word, sizeof word);
}
