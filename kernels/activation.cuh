// The sigmoid linear unit x·σ(x) and its slope.
#pragma once
#include "common.cuh"

// σ(x) = 1 / (1 + e^-x), accurate to the last bits of format E: 0 and 1 for large |x|, never NaN for a
// number.
template <typename E> __device__ __forceinline__ float sigmoid(float x);
template <> __device__ __forceinline__ float sigmoid<f32>(float x) { return 1.0f / (1.0f + expf(-x)); }
template <> __device__ __forceinline__ float sigmoid<bf16>(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

// The derivative of x·σ(x), given s = σ(x).
__device__ __forceinline__ float silu_slope(float x, float s) { return s * fmaf(x, 1.0f - s, 1.0f); }
