// Applies an activation to every element, y = f(x), or f(x + b) with a bias for every row, and computes its
// gradient.
//
// Definitions: T, VEC (elements that a thread loads and stores at once), BIAS_WIDTH (elements of the bias, a
// multiple of VEC; 0: none) and ACTIVATION, a functor of activation.cuh or the formula of formula.cuh.
#include "formula.cuh"

// Loads x, or x + b.
__device__ __forceinline__ void load_biased(const T *x, const float *b, u32 at, float (&value)[VEC]) {
    load(x + at, value);
    if constexpr (BIAS_WIDTH > 0) {
        float bias[VEC];
        load(b + at % BIAS_WIDTH, bias);
#pragma unroll
        for (int i = 0; i < VEC; i++) value[i] += bias[i];
    }
}

// x, y: n elements; b: [BIAS_WIDTH], null without a bias. y may be the same memory as x.
extern "C" __global__ void activate(const T *x, const float *b, T *y, int n) {
    u32 at = (block_from_last() * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC];
    load_biased(x, b, at, value);
#pragma unroll
    for (int i = 0; i < VEC; i++) value[i] = ACTIVATION::at<T>(value[i]).value;
    store(y + at, value);
}

// dx = dy ⊙ f'(x + b). With EMITS, also writes y as the forward pass does.
template <bool EMITS>
__device__ __forceinline__ void gradient(const T *x, const float *b, const T *dy, T *dx, T *y, int n) {
    u32 at = (block_from_last() * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC], upstream[VEC];
    load_biased(x, b, at, value);
    load(dy + at, upstream);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        Point point = ACTIVATION::at<T>(value[i]);
        value[i] = point.value;
        upstream[i] *= point.slope;
    }
    store(dx + at, upstream);
    if constexpr (EMITS) store(y + at, value);
}

// x, dy, dx: n elements. dx may be the same memory as x or dy.
extern "C" __global__ void activate_grad(const T *x, const float *b, const T *dy, T *dx, int n) {
    gradient<false>(x, b, dy, dx, nullptr, n);
}

// Also writes y, n elements. If dx reuses the memory of x or dy, y may reuse the other's.
extern "C" __global__ void activate_grad_emitting(const T *x, const float *b, const T *dy, T *dx, T *y,
                                                  int n) {
    gradient<true>(x, b, dy, dx, y, n);
}
