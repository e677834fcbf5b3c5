/* MPI in this process, and the communicator of a world. */
#ifndef MPI_SESSION_H
#define MPI_SESSION_H

#include <mpi.h>

#include <banyan/world.h>

/* A world's ranks in MPI: rank i of `comm` is rank i of the world. */
typedef struct mpi_session {
    banyan_world *world;
    MPI_Comm comm;
    int tag_count; /* tags are 0 to tag_count - 1 */
} mpi_session;

/* Start MPI unless it is running, and find the world's ranks in MPI_COMM_WORLD. Collective over
 * the world. UNSUPPORTED if this process was not started under MPI; MISMATCH if the world's ranks
 * are not ranks of one MPI job. */
banyan_status mpi_session_open(banyan_world *world, mpi_session *session);

/* `healthy` false: do not end MPI, since that would wait for lost ranks. */
void mpi_session_close(mpi_session *session, bool healthy);

/* Return SYSTEM with MPI's own error text; BANYAN_OK for MPI_SUCCESS. */
banyan_status mpi_check(const mpi_session *session, int error, const char *call);

#endif
