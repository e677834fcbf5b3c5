/* Packets: data whose arrival can be seen in itself.
 *
 * A packet is 8 bytes, written and read at once: 4 of data and a flag of 4. Data byte x of a buffer
 * lies in the packet at 2x (x a multiple of 4); the last packet may be used in part. Nobody waits
 * here: reading takes what has come. The low-latency (LL) protocol is NCCL's idea. */
#ifndef CHANNEL_PACKET_H
#define CHANNEL_PACKET_H

#include <stddef.h>
#include <stdint.h>

#define PACKET_DATA_BYTES 4
#define PACKET_BYTES 8

/* Bytes that packets take for so many of data. */
static inline uint64_t packets_room(uint64_t data_bytes)
{
    return (data_bytes + PACKET_DATA_BYTES - 1) / PACKET_DATA_BYTES * PACKET_BYTES;
}

/* Write data as packets. The flag is not 0, which fresh memory has. The writer knocks on the
 * reader's wake-up afterwards, if it may sleep. */
void packets_write(void *packets, const void *data, size_t bytes, uint32_t flag);

/* Read data from the packets that have come, without a gap, from the first one on; returns how many
 * bytes that were. What was written before a packet, by whoever wrote it, is not ordered by it. */
size_t packets_read(void *data, const void *packets, size_t bytes, uint32_t flag);

/* The same from packets to packets, with the reader's own flag. */
size_t packets_forward(void *to, uint32_t to_flag, const void *from, size_t bytes, uint32_t flag);

#endif
