// Accesses to memory that is read and written once per step and therefore not worth caching.
#pragma once
#include "common.cuh"

// Four neighbors.
__device__ __forceinline__ void load_streaming(const float *from, float (&to)[4]) {
    float4 x = __ldcs(reinterpret_cast<const float4 *>(from));
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
__device__ __forceinline__ void store_streaming(float *to, const float (&from)[4]) {
    __stcs(reinterpret_cast<float4 *>(to), make_float4(from[0], from[1], from[2], from[3]));
}

// A single number, if neighbors are not aligned.
__device__ __forceinline__ void load_streaming(const float *from, float (&to)[1]) { to[0] = __ldcs(from); }
__device__ __forceinline__ void store_streaming(float *to, const float (&from)[1]) { __stcs(to, from[0]); }
