// The functions of formulas in fp32, accurate to the last bits of format E, and the formula itself as a
// functor.
//
// Definitions: FORMULA, the body of the functor's function, which src/engine/ops/formula/code.rs writes from
// the steps of the formula; VARIABLES, 1 for a formula of x and 2 for a formula of a and b. Without FORMULA
// there is no functor.
#pragma once
#include "activation.cuh"

// u / v.
template <typename E> __device__ __forceinline__ float quotient(float u, float v);
template <> __device__ __forceinline__ float quotient<f32>(float u, float v) { return __fdiv_rn(u, v); }
// Within 2 ulp for |v| up to 2^126, and 0 beyond.
template <> __device__ __forceinline__ float quotient<bf16>(float u, float v) { return __fdividef(u, v); }

// e^(v·ln u): NaN for u below 0.
template <typename E> __device__ __forceinline__ float power(float u, float v) {
    return exponential<E>(__fmul_rn(v, logf(u)));
}

// ln(1 + e^u).
template <typename E> __device__ __forceinline__ float softplus(float u) {
    return __fadd_rn(u < 0.0f ? 0.0f : u, log1pf(exponential<E>(-fabsf(u))));
}

// Reduces an angle to within a turn, in two steps: 2π = 6.28125 + 0.001935307.
__device__ __forceinline__ float within_a_turn(float u) {
    float turns = rintf(u * 0.159154943f);
    return fmaf(turns, -1.93530718e-3f, fmaf(turns, -6.28125f, u));
}

template <typename E> __device__ __forceinline__ float sine(float u);
template <> __device__ __forceinline__ float sine<f32>(float u) { return sinf(u); }
template <> __device__ __forceinline__ float sine<bf16>(float u) { return __sinf(within_a_turn(u)); }

template <typename E> __device__ __forceinline__ float cosine(float u);
template <> __device__ __forceinline__ float cosine<f32>(float u) { return cosf(u); }
template <> __device__ __forceinline__ float cosine<bf16>(float u) { return __cosf(within_a_turn(u)); }

__device__ __forceinline__ float sign(float u) { return float(u > 0.0f) - float(u < 0.0f); }

// NaN if either number is NaN.
__device__ __forceinline__ float smaller(float u, float v) { return u < v || u != u ? u : v; }
__device__ __forceinline__ float larger(float u, float v) { return u > v || u != u ? u : v; }

__device__ __forceinline__ float greater(float u, float v) { return u > v ? 1.0f : 0.0f; }

// u·v, but 0 if v is 0: u is the slope of an outer function, which may be infinite, and v the slope inside.
__device__ __forceinline__ float chain(float u, float v) { return v == 0.0f ? 0.0f : __fmul_rn(u, v); }

#ifdef FORMULA
#if VARIABLES == 1
struct Formula {
    template <typename E> static __device__ __forceinline__ Point at(float x) { FORMULA }
};
#else
// A value and its slopes with respect to a and b.
struct PointOfTwo {
    float value, slope_a, slope_b;
};

struct Formula {
    template <typename E> static __device__ __forceinline__ PointOfTwo at(float a, float b) { FORMULA }
};
#endif
#endif
