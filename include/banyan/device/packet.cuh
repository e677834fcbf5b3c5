/* Banyan in kernels: packets, data with its own arrival flag.
 *
 * A packet is 8 bytes, written and read at once: 4 of data, then a flag of 4. Two adjacent ones
 * form a packet of 16 bytes with 8 of data. Data byte x of a buffer lies in the packets at 2x. A
 * receiver recognizes an arrived packet by its flag. The flag is never 0, is equal at both ends,
 * and differs between consecutive uses of a place: the number of the round, for example. Packets
 * order no other accesses. They are NCCL's low-latency (LL) protocol, and the host's packets.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_PACKET_CUH
#define BANYAN_DEVICE_PACKET_CUH

#include <banyan/device/wait.cuh>

/* Return the size of packets for this many bytes of data. */
BANYAN_DEVICE uint64_t banyan_device_packets_bytes(uint64_t data_bytes)
{
    return (data_bytes + 3) / 4 * 8;
}

/* The next functions write or read one packet. `at` is aligned to 8 bytes, or to 16 for 16-byte
 * packets. */

BANYAN_DEVICE void banyan_device_packet8_write(void *at, uint32_t data, uint32_t flag)
{
    banyan_device_store_packet(at, make_uint2(data, flag));
}

BANYAN_DEVICE void banyan_device_packet16_write(void *at, uint2 data, uint32_t flag)
{
    banyan_device_store_packets(at, make_uint4(data.x, flag, data.y, flag));
}

/* Set `*data` to the data of the packet, and return true if the packet has arrived. */
BANYAN_DEVICE bool banyan_device_packet8_read(const void *at, uint32_t flag, uint32_t *data)
{
    uint2 packet = banyan_device_load_packet(at);
    *data = packet.x;
    return packet.y == flag;
}

BANYAN_DEVICE bool banyan_device_packet16_read(const void *at, uint32_t flag, uint2 *data)
{
    uint4 packets = banyan_device_load_packets(at);
    *data = make_uint2(packets.x, packets.z);
    return packets.y == flag && packets.w == flag;
}

/* Wait for a packet and read it. False: the wait gave up. */
BANYAN_DEVICE bool banyan_device_packet8_wait(const void *at, uint32_t flag, uint32_t *data,
                                              const banyan_device_limits *limits)
{
    banyan_device_wait wait = {};
    while (!banyan_device_packet8_read(at, flag, data)) {
        if (!banyan_device_wait_on(limits, &wait))
            return false;
    }
    return true;
}

BANYAN_DEVICE bool banyan_device_packet16_wait(const void *at, uint32_t flag, uint2 *data,
                                               const banyan_device_limits *limits)
{
    banyan_device_wait wait = {};
    while (!banyan_device_packet16_read(at, flag, data)) {
        if (!banyan_device_wait_on(limits, &wait))
            return false;
    }
    return true;
}

/* The next functions write or read several packets, by `threads` threads; the caller is number
 * `thread`. `packets` is aligned to 16 bytes; `data` and `bytes` are multiples of 8. */

BANYAN_DEVICE void banyan_device_packets_write(void *packets, const void *data, uint64_t bytes,
                                               uint32_t flag, uint32_t thread, uint32_t threads)
{
    BANYAN_DEVICE_LOOP
    for (uint64_t at = 8 * (uint64_t)thread; at < bytes; at += 8 * (uint64_t)threads)
        banyan_device_packet16_write((char *)packets + 2 * at,
                                     banyan_device_load<uint2>((const char *)data + at), flag);
}

/* Wait for the packets and copy their data. False: this thread's wait gave up. */
BANYAN_DEVICE bool banyan_device_packets_read(void *data, const void *packets, uint64_t bytes,
                                              uint32_t flag, const banyan_device_limits *limits,
                                              uint32_t thread, uint32_t threads)
{
    BANYAN_DEVICE_LOOP
    for (uint64_t at = 8 * (uint64_t)thread; at < bytes; at += 8 * (uint64_t)threads) {
        uint2 both;
        if (!banyan_device_packet16_wait((const char *)packets + 2 * at, flag, &both, limits))
            return false;
        banyan_device_store<uint2>((char *)data + at, both);
    }
    return true;
}

#endif
