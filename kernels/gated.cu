// The gated activation f(gate) ⊙ up, or a formula of both, and its gradient.
//
// Definitions: those of gated.cuh, and VEC, a divisor of WIDTH. A thread handles one pack.
#include "gated.cuh"

// Returns the index of the gates of a pack, given the pack's index in the output. Rows of gate_up are twice
// as wide, with gates first.
__device__ __forceinline__ i64 gate_of(u32 at) { return i64(at) + i64(at / WIDTH) * WIDTH; }

// gate_up: [rows, 2, WIDTH]; y: [rows, WIDTH], n elements.
extern "C" __global__ void gated(const T *__restrict__ gate_up, T *__restrict__ y, int n) {
    u32 at = (block_from_last() * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float gate[VEC], up[VEC];
    load(gate_up + gate_of(at), gate);
    load(gate_up + gate_of(at) + WIDTH, up);
#pragma unroll
    for (int c = 0; c < VEC; c++) up[c] = output(gate[c], up[c]);
    store(y + at, up);
}

// With EMITS, also writes y as the forward pass does.
template <bool EMITS>
__device__ __forceinline__ void gradient(const T *gate_up, const T *dy, T *d_gate_up, T *y, int n) {
    u32 at = (block_from_last() * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float gate[VEC], up[VEC], upstream[VEC], again[VEC];
    load(gate_up + gate_of(at), gate);
    load(gate_up + gate_of(at) + WIDTH, up);
    load(dy + at, upstream);
#pragma unroll
    for (int c = 0; c < VEC; c++) {
        Gradients point = gradients(gate[c], up[c], upstream[c]);
        if constexpr (EMITS) again[c] = point.value;
        gate[c] = point.gate;
        up[c] = point.up;
    }
    store(d_gate_up + gate_of(at), gate);
    store(d_gate_up + gate_of(at) + WIDTH, up);
    if constexpr (EMITS) store(y + at, again);
}

// gate_up, d_gate_up: [rows, 2, WIDTH], possibly the same memory; dy: [rows, WIDTH], n elements.
extern "C" __global__ void gated_grad(const T *gate_up, const T *__restrict__ dy, T *d_gate_up, int n) {
    gradient<false>(gate_up, dy, d_gate_up, nullptr, n);
}

// Also writes y: [rows, WIDTH], which may be the same memory as dy.
extern "C" __global__ void gated_grad_emitting(const T *gate_up, const T *dy, T *d_gate_up, T *y, int n) {
    gradient<true>(gate_up, dy, d_gate_up, y, n);
}
