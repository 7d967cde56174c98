// The activation functions of feed-forward layers, as functors. `at<E>` returns value and slope, accurate to
// the last bits of format E. Forward and gradient share it, so both see the same bits.
// src/engine/ops/activation.rs has the same functions.
#pragma once
#include "common.cuh"

// σ(x) = 1 / (1 + e^-x). For large |x| it returns 0 or 1, and it is NaN only if x is.
template <typename E> __device__ __forceinline__ float sigmoid(float x);
template <> __device__ __forceinline__ float sigmoid<f32>(float x) { return 1.0f / (1.0f + expf(-x)); }
template <> __device__ __forceinline__ float sigmoid<bf16>(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

// e^x.
template <typename E> __device__ __forceinline__ float exponential(float x);
template <> __device__ __forceinline__ float exponential<f32>(float x) { return expf(x); }
template <> __device__ __forceinline__ float exponential<bf16>(float x) { return __expf(x); }

struct Point {
    float value, slope;
};

// x·σ(x).
struct Silu {
    template <typename E> static __device__ __forceinline__ Point at(float x) {
        float s = sigmoid<E>(x);
        return {x * s, s * fmaf(x, 1.0f - s, 1.0f)};
    }
};

// x·Φ(x), with the standard normal distribution Φ and its density.
struct Gelu {
    template <typename E> static __device__ __forceinline__ Point at(float x) {
        float cumulative = normcdff(x);
        float density = 0.398942280f * exponential<E>(-0.5f * x * x);
        return {x * cumulative, fmaf(x, density, cumulative)};
    }
};

// x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))) = x·σ(x·(LINEAR + CUBIC·x²)).
struct GeluTanh {
    static constexpr float LINEAR = 1.595769122f, CUBIC = 0.044715f * 1.595769122f;
    template <typename E> static __device__ __forceinline__ Point at(float x) {
        float square = x * x;
        float s = sigmoid<E>(x * fmaf(square, CUBIC, LINEAR));
        return {x * s, s * fmaf(x * (1.0f - s), fmaf(square, 3.0f * CUBIC, LINEAR), 1.0f)};
    }
};

// max(x, 0). A NaN stays NaN, and the slope at 0 is 0.
struct Relu {
    template <typename E> static __device__ __forceinline__ Point at(float x) {
        return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f};
    }
};

// max(x, 0)².
struct Relu2 {
    template <typename E> static __device__ __forceinline__ Point at(float x) {
        float value = Relu::at<E>(x).value;
        return {value * value, value + value};
    }
};
