/* A process that mpirun started may open worlds one after another: PMIx is initialized once. The
 * program starts itself through mpirun. */
#include "support/test.h"

#include <unistd.h>

static void open_and_meet(void)
{
    banyan_world *world;
    CHECK_OK(banyan_world_open(NULL, &world));
    int size = banyan_world_size(world), rank = banyan_world_rank(world), ranks[3];
    CHECK(size == 3, "%d ranks", size);
    CHECK_OK(banyan_world_allgather(world, &rank, sizeof rank, ranks));
    for (int i = 0; i < size; i++)
        CHECK(ranks[i] == i);
    CHECK_OK(banyan_world_close(world));
}

int main(int argc, char **argv)
{
    (void)argc;
    if (getenv("PMIX_RANK")) {
        ranks_in_child = true;
        for (int i = 0; i < 3; i++)
            open_and_meet();
        return 0;
    }
    if (access(BANYAN_BINARY_DIR "/lib/libbanyan_pmix.so", R_OK) != 0) {
        printf("skipped: this build has no PMIx module\n");
        return 77;
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    /* libpmix leaks a few bytes of its own. */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    setenv("BANYAN_MODULE_PATH", BANYAN_BINARY_DIR "/lib", 1);
    execlp("mpirun", "mpirun", "--oversubscribe", "-n", "3", argv[0], (char *)NULL);
    printf("skipped: there is no mpirun\n");
    return 77;
}
