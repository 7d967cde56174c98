// Shared by kernels over the flat parameter buffers (elementwise.cuh, ema.cu, swap_ema.cu): blocks of
// elements, and ranges with weight decay. Definitions besides ranges.cuh's: THREADS per block, VEC neighbors
// per thread, WHOLE_BLOCKS, RANGE_MASTERS, and SWITCH_POSITIONS, a list of SWITCH_COUNT elements.
#pragma once
#include "common.cuh"
#include "ranges.cuh"
#include "streaming.cuh"

constexpr u64 BLOCK = THREADS * VEC;

// The first element of each range among the masters. ranges.cuh has the first elements in the slots and in
// the flat buffers.
__constant__ u64 MASTERS[ROWS][RANGE_COUNT + 1] = RANGE_MASTERS;

// Elements of the flat buffers at which decay switches on (the first, the third, …) or off, ascending, then a
// sentinel beyond all elements.
__constant__ u64 SWITCHES[SWITCH_COUNT + 1] = SWITCH_POSITIONS;

// Returns the number of switches at or before an element. Decay applies if it is odd.
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

// The places of a thread's VEC elements, which all lie in one range of the rank's row. The grid begins at
// element `first` of the slots. With WHOLE_BLOCKS, ranges begin at multiples of BLOCK in the slots, so each
// block of the grid lies in one range; otherwise they begin at multiples of 64 elements.
struct ThreadElements {
    u64 at, flat, master;
};
__device__ __forceinline__ ThreadElements elements_of_thread(u64 first, int row) {
    u64 block = first + u64(blockIdx.x) * BLOCK, at = block + threadIdx.x * VEC;
    if (RANGE_COUNT == 0) return {at, at, at};
    int range = range_of(row, WHOLE_BLOCKS ? block : at);
    u64 within = at - OFFSETS[row][range];
    return {at, STARTS[row][range] + within, MASTERS[row][range] + within};
}

// Which elements of a thread decay. They are looked up one by one only where decay switches within the block.
struct Decays {
    u64 flat;
    int passed;
    bool alike;
    __device__ __forceinline__ bool operator[](int i) const {
        return (alike ? passed : switches_up_to(flat + i)) % 2 == 1;
    }
};
__device__ __forceinline__ Decays decays_of(const ThreadElements &elements) {
    u64 first = WHOLE_BLOCKS ? elements.flat - threadIdx.x * VEC : elements.flat;
    int passed = switches_up_to(first);
    return {elements.flat, passed, SWITCHES[passed] >= first + (WHOLE_BLOCKS ? BLOCK : VEC)};
}
