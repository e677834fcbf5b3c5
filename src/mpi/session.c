#include "session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/module.h"

#define JOB_BYTES 128

/* The identity that a rank sends to the others. */
typedef struct mpi_identity {
    int32_t rank, size;
    char job[JOB_BYTES];
} mpi_identity;

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t started_by; /* 0: this code did not start MPI and must not end it */
static volatile bool end_at_exit = true;

banyan_status mpi_check(const mpi_session *session, int error, const char *call)
{
    if (error == MPI_SUCCESS)
        return BANYAN_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return banyan_error_set(BANYAN_ERR_SYSTEM, "mpi: rank %d: %s: %s",
                            banyan_world_rank(session->world), call, text);
}

/* False without a job manager: there MPI_Init creates a world of one process, which is never
 * intended. */
static bool is_started_by_mpi(void)
{
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        if (getenv(signs[i]))
            return true;
    return false;
}

static void end_mpi(void)
{
    int finalized = 0;
    if (started_by != getpid() || !end_at_exit)
        return;
    MPI_Finalized(&finalized);
    if (!finalized)
        MPI_Finalize();
}

/* Call it with the lock held. */
static banyan_status start_mpi(int rank)
{
    int initialized = 0, finalized = 0, provided = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "rank %d has finalized MPI already", rank);
    if (initialized)
        return BANYAN_OK;
    if (!is_started_by_mpi())
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "rank %d was not started under MPI; start the program with "
                                "mpirun or srun, or use another copy backend",
                                rank);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return banyan_error_set(BANYAN_ERR_SYSTEM, "rank %d: MPI_Init_thread failed", rank);
    started_by = getpid();
    atexit(end_mpi);
    return BANYAN_OK;
}

static banyan_status start_once(int rank)
{
    pthread_mutex_lock(&start_lock);
    banyan_status status = start_mpi(rank);
    pthread_mutex_unlock(&start_lock);
    return status;
}

static void mpi_session_identify(mpi_identity *own)
{
    memset(own, 0, sizeof *own);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    own->rank = rank;
    own->size = size;
    const char *job = getenv("PMIX_NAMESPACE");
    snprintf(own->job, sizeof own->job, "%s", job ? job : "");
}

static banyan_status check_one_job(int world_rank, const mpi_identity *all, int count)
{
    const mpi_identity *own = &all[world_rank];
    for (int i = 0; i < count; i++) {
        if (all[i].size != own->size || strncmp(all[i].job, own->job, sizeof own->job) != 0)
            return banyan_error_set(BANYAN_ERR_MISMATCH,
                                    "mpi: ranks %d and %d are not of one MPI job: theirs have %d "
                                    "and %d processes",
                                    world_rank, i, own->size, all[i].size);
    }
    return BANYAN_OK;
}

static banyan_status mpi_session_no_memory(int ranks)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "mpi: out of memory: %d ranks", ranks);
}

static banyan_status check_distinct(const mpi_identity *all, int count)
{
    int size = all[0].size;
    int *holders = calloc((size_t)size, sizeof *holders); /* world rank + 1, by MPI rank */
    banyan_status status = holders ? BANYAN_OK : mpi_session_no_memory(size);
    for (int i = 0; i < count && status == BANYAN_OK; i++) {
        int *holder = &holders[all[i].rank];
        if (*holder > 0)
            status = banyan_error_set(BANYAN_ERR_MISMATCH,
                                      "mpi: ranks %d and %d are both rank %d of MPI_COMM_WORLD",
                                      *holder - 1, i, all[i].rank);
        *holder = i + 1;
    }
    free(holders);
    return status;
}

/* Create the communicator of the given ranks of MPI_COMM_WORLD. Collective; it hangs if a rank
 * does not take part. */
static banyan_status make_communicator(mpi_session *session, const int *ranks, int count)
{
    MPI_Group everyone, members;
    MPI_Comm_group(MPI_COMM_WORLD, &everyone);
    MPI_Group_incl(everyone, count, ranks, &members);
    int error = MPI_Comm_create_group(MPI_COMM_WORLD, members, 0, &session->comm);
    MPI_Group_free(&members);
    MPI_Group_free(&everyone);
    banyan_status status = mpi_check(session, error, "MPI_Comm_create_group");
    if (status != BANYAN_OK)
        return status;
    int *upper = NULL, found = 0;
    MPI_Comm_set_errhandler(session->comm, MPI_ERRORS_RETURN);
    MPI_Comm_get_attr(session->comm, MPI_TAG_UB, &upper, &found);
    session->tag_count = found && *upper < INT32_MAX ? *upper + 1 : found ? *upper : 32768;
    return BANYAN_OK;
}

/* Exchange identities, indexed by world rank. All ranks fail or none does. */
static banyan_status mpi_session_introduce(banyan_world *world, mpi_identity *all, int *ranks)
{
    int rank = banyan_world_rank(world), count = banyan_world_size(world);
    mpi_identity own;
    mpi_session_identify(&own);
    banyan_status status = banyan_world_allgather(world, &own, sizeof own, all);
    if (status == BANYAN_OK)
        status = check_one_job(rank, all, count);
    if (status == BANYAN_OK)
        status = check_distinct(all, count);
    for (int i = 0; i < count && status == BANYAN_OK; i++)
        ranks[i] = all[i].rank;
    return banyan_module_agree(world, status);
}

banyan_status mpi_session_open(banyan_world *world, mpi_session *session)
{
    int count = banyan_world_size(world);
    mpi_session made = {.world = world, .comm = MPI_COMM_NULL};
    mpi_identity *all = calloc((size_t)count, sizeof *all);
    int *ranks = calloc((size_t)count, sizeof *ranks);
    banyan_status status =
        all && ranks ? start_once(banyan_world_rank(world)) : mpi_session_no_memory(count);
    status = banyan_module_agree(world, status);
    if (status == BANYAN_OK)
        status = mpi_session_introduce(world, all, ranks);
    if (status == BANYAN_OK)
        status = make_communicator(&made, ranks, count);
    free(all);
    free(ranks);
    if (status == BANYAN_OK)
        *session = made;
    return status;
}

void mpi_session_close(mpi_session *session, bool healthy)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (healthy && !finalized && session->comm != MPI_COMM_NULL)
        MPI_Comm_free(&session->comm);
    if (!healthy)
        end_at_exit = false;
}
