#include "publish/fetch/compression.h"

/* A link that takes a byte in less time is not worth a try: compressing takes longer. */
#define FAST_LINK_NS 0.2
/* The share of time that compression must save, and the waves after which it is tried again. */
#define GAIN_LEAST 0.05
#define WAVES_UNTIL_TRIED 32

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The newest measurement counts half. */
static void compression_note(double *kept, double measured)
{
    *kept = *kept > 0 ? (*kept + measured) / 2 : measured;
}

void compression_begin_fetch(struct compression *of)
{
    of->waves = 0;
}

bool compression_pays(struct compression *of, uint64_t bytes_per_s)
{
    double travel_ns = larger(of->travel_ns, bytes_per_s > 0 ? 1e9 / (double)bytes_per_s : 0);
    uint32_t wave = of->waves++;
    if (of->choice != BANYAN_COMPRESSION_AUTOMATIC)
        return of->choice == BANYAN_COMPRESSION_ALWAYS;
    if (travel_ns < FAST_LINK_NS)
        return false;
    double plain = larger(of->write_ns, travel_ns);
    double packed = larger(of->write_ns + of->compress_ns, of->ratio * travel_ns);
    bool pays = of->compress_ns > 0 && packed < plain * (1 - GAIN_LEAST);
    return pays || wave % WAVES_UNTIL_TRIED == 1;
}

void compression_note_written(struct compression *of, uint64_t bytes, uint64_t ns)
{
    if (bytes >= COMPRESSION_LEAST)
        compression_note(&of->write_ns, (double)ns / (double)bytes);
}

void compression_note_compressed(struct compression *of, uint64_t bytes, uint64_t packed_bytes,
                                 uint64_t ns)
{
    if (bytes < COMPRESSION_LEAST)
        return;
    compression_note(&of->compress_ns, (double)ns / (double)bytes);
    compression_note(&of->ratio, (double)packed_bytes / (double)bytes);
}

void compression_note_travelled(struct compression *of, uint64_t bytes, uint64_t ns)
{
    if (bytes >= COMPRESSION_LEAST)
        compression_note(&of->travel_ns, (double)ns / (double)bytes);
}
