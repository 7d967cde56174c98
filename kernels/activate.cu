// Applies an activation to every element, y = f(x), and computes its gradient.
//
// Definitions: T, VEC (elements that a thread loads and stores at once) and ACTIVATION, a functor of
// activation.cuh or the formula of formula.cuh.
#include "formula.cuh"

// x, y: n elements. y may be the same memory as x.
extern "C" __global__ void activate(const T *x, T *y, int n) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC];
    load(x + at, value);
#pragma unroll
    for (int i = 0; i < VEC; i++) value[i] = ACTIVATION::at<T>(value[i]).value;
    store(y + at, value);
}

// dx = dy ⊙ f'(x). With EMITS, also writes y as the forward pass does.
template <bool EMITS>
__device__ __forceinline__ void gradient(const T *x, const T *dy, T *dx, T *y, int n) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC], upstream[VEC];
    load(x + at, value);
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
extern "C" __global__ void activate_grad(const T *x, const T *dy, T *dx, int n) {
    gradient<false>(x, dy, dx, nullptr, n);
}

// Also writes y, n elements. If dx reuses the memory of x or dy, y may reuse the other's.
extern "C" __global__ void activate_grad_emitting(const T *x, const T *dy, T *dx, T *y, int n) {
    gradient<true>(x, dy, dx, y, n);
}
