// Shared by the kernels of optimizers: blocks of the flat parameter buffers, ranges with weight decay, and
// accesses to memory that is read and written once per step.
#pragma once
#include "common.cuh"
#include "ranges.cuh"

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

// Four neighbours that are used once per step: not worth caching.
__device__ __forceinline__ void load_streaming(const float *from, float (&to)[VEC]) {
    float4 x = __ldcs(reinterpret_cast<const float4 *>(from));
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
__device__ __forceinline__ void store_streaming(float *to, const float (&from)[VEC]) {
    __stcs(reinterpret_cast<float4 *>(to), make_float4(from[0], from[1], from[2], from[3]));
}
