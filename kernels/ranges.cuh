// The places in the flat parameter buffers of the elements that a rank owns. Definitions: ROWS table rows,
// one per rank or a single one for all; each lists up to RANGE_COUNT ranges by their first element in the
// rank's shard and in the flat buffers, ascending and followed by sentinels. There are no ranges if a rank
// has all elements.
#pragma once
#include "common.cuh"

__constant__ u64 OFFSETS[ROWS][RANGE_COUNT + 1] = RANGE_OFFSETS,
                 STARTS[ROWS][RANGE_COUNT + 1] = RANGE_STARTS;

// Returns the range of an element of the shard: the last one that begins at or before it.
__device__ __forceinline__ int range_of(int row, u64 at) {
    int low = 0, high = RANGE_COUNT;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (OFFSETS[row][middle] <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// Returns the place in the flat buffers of an element of the shard.
__device__ __forceinline__ u64 flat_of(int row, u64 at) {
    if (RANGE_COUNT == 0) return at;
    int range = range_of(row, at);
    return STARTS[row][range] + (at - OFFSETS[row][range]);
}
