/* Open a world of all ranks and close it: run by bench/open_world.py. */
#include <stdio.h>

#include <banyan/banyan.h>

int main(void)
{
    banyan_world *world;
    if (banyan_world_open(NULL, &world) != BANYAN_OK || banyan_world_close(world) != BANYAN_OK) {
        fprintf(stderr, "open_world: %s\n", banyan_last_error());
        return 1;
    }
    return 0;
}
