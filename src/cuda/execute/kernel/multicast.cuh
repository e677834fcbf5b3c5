/* Steps of switch channels that use multicast memory. The threads synchronize before and after,
 * since that memory has ordinary addresses too. */
#ifndef CUDA_EXECUTE_KERNEL_MULTICAST_CUH
#define CUDA_EXECUTE_KERNEL_MULTICAST_CUH

#include <banyan/device/multicast.cuh>

#include "cuda/execute/kernel/block.cuh"

template <typename Element> BANYAN_DEVICE void multicast_piece(block_places places, uint64_t bytes)
{
    uint32_t thread = block_thread(), threads = block_threads();
    if (!places.is_of_group(0)) {
        banyan_device_multicast_store(places[1], places[0], bytes, thread, threads);
    } else if constexpr (banyan_device_multicast<Element>::ADDS) {
        if (places.is_of_group(1))
            banyan_device_multicast_load_store<Element>(places[1], places[0], bytes, thread,
                                                        threads);
        else
            banyan_device_multicast_load<Element>(places[1], places[0], bytes, thread, threads);
    }
}

template <typename Element> BANYAN_DEVICE_RARE void multicast_step(block_run run)
{
    block_pieces pieces = block_find_pieces(&run);
    BANYAN_DEVICE_LOOP
    for (; pieces.at < pieces.end; pieces.at += pieces.words)
        multicast_piece<Element>(block_places_of(pieces.at, 0), pieces.at[0]);
}

#endif
