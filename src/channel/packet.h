/* Packets: data that carries its own arrival flag.
 *
 * A packet is 8 bytes, written and read at once: 4 bytes of data and a 4-byte flag. Data byte x of
 * a buffer is in the packet at 2x (x a multiple of 4); the last packet may be used in part. No
 * function waits: reading takes what has arrived. The low-latency (LL) protocol is NCCL's idea. */
#ifndef CHANNEL_PACKET_H
#define CHANNEL_PACKET_H

#include <stddef.h>
#include <stdint.h>

#define PACKET_DATA_BYTES 4
#define PACKET_BYTES 8

/* Return the bytes of packets for this many bytes of data. */
static inline uint64_t packets_room(uint64_t data_bytes)
{
    return (data_bytes + PACKET_DATA_BYTES - 1) / PACKET_DATA_BYTES * PACKET_BYTES;
}

/* Write data as packets. The flag must not be 0, the value of fresh memory. Afterwards the writer
 * rings the reader's doorbell, if the reader may sleep. */
void packets_write(void *packets, const void *data, size_t bytes, uint32_t flag);

/* Read data from the packets that have arrived, from the first one up to the first gap; return the
 * number of data bytes. A packet orders no other writes, not even those of its own writer. */
size_t packets_read(void *data, const void *packets, size_t bytes, uint32_t flag);

/* Copy packets to packets, with a new flag; otherwise as packets_read. */
size_t packets_forward(void *to, uint32_t to_flag, const void *from, size_t bytes, uint32_t flag);

#endif
