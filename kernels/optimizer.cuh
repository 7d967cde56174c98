// Shared by the kernels of optimizers that treat every element alike: blocks of the flat parameter buffers, and
// ranges with weight decay.
#pragma once
#include "common.cuh"
#include "ranges.cuh"
#include "streaming.cuh"

constexpr int THREADS = 256, VEC = 4;
constexpr u64 BLOCK = THREADS * VEC;

// Elements of the flat buffers at which decay is switched on (the first, the third, …) or off, ascending; then a sentinel beyond
// all elements.
__constant__ u64 SWITCHES[SWITCH_COUNT + 1] = SWITCH_POSITIONS;

// The number of switches at or before an element. Decay applies if it is odd.
__device__ __forceinline__ int switches_up_to(u64 at) {
    int low = 0, high = SWITCH_COUNT;
    while (low < high) {
        int middle = (low + high) / 2;
        if (SWITCHES[middle] <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
