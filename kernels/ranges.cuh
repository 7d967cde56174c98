// Where the elements that a rank owns lie in the flat parameter buffers. Definitions: ROWS rows, one for each
// rank or for all, of at most RANGE_COUNT ranges, each given by its first element in the rank's shard and in
// the flat buffers, ascending and followed by sentinels; none where a rank has all elements.
#pragma once
#include "common.cuh"

__constant__ u64 OFFSETS[ROWS][RANGE_COUNT + 1] = RANGE_OFFSETS,
                 STARTS[ROWS][RANGE_COUNT + 1] = RANGE_STARTS;

// The range in which an element of the shard lies: the last one that begins at or before it.
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

// The place in the flat buffers of an element of the shard.
__device__ __forceinline__ u64 flat_of(int row, u64 at) {
    if (RANGE_COUNT == 0) return at;
    int range = range_of(row, at);
    return STARTS[row][range] + (at - OFFSETS[row][range]);
}
