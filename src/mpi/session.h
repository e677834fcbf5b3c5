/* MPI in this process, and the communicator of a world. */
#ifndef MPI_SESSION_H
#define MPI_SESSION_H

#include <mpi.h>

#include <banyan/world.h>

/* A world's ranks as MPI knows them: rank i of `comm` is rank i of the world. */
typedef struct mpi_session {
    banyan_world *world;
    MPI_Comm comm;
    int tag_count; /* tags are 0 to tag_count - 1 */
} mpi_session;

/* Start MPI where nobody has, and find the world's ranks in MPI_COMM_WORLD. Collective over the
 * world. UNSUPPORTED where this process was not started under MPI; MISMATCH where the world's ranks
 * are not ranks of one MPI job. */
banyan_status mpi_session_open(banyan_world *world, mpi_session *session);

/* `healthy` false: leave MPI as it is, since ending it would wait for ranks that are gone. */
void mpi_session_close(mpi_session *session, bool healthy);

/* SYSTEM, with MPI's own words; BANYAN_OK for MPI_SUCCESS. */
banyan_status mpi_check(const mpi_session *session, int error, const char *call);

#endif
