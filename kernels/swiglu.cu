// The gated activation silu(gate) ⊙ up, and its gradient.
//
// Definitions: T, WIDTH (elements of a row of the output) and VEC, a divisor of it. A thread handles one
// pack.
#include "activation.cuh"

// Index of the gates of a pack of the output, given its index: rows of gate_up are twice as wide, gates
// first.
__device__ __forceinline__ i64 gate_of(u32 at) { return i64(at) + i64(at / WIDTH) * WIDTH; }

// gate_up: [rows, 2, WIDTH]; y: [rows, WIDTH], n elements.
extern "C" __global__ void swiglu(const T *__restrict__ gate_up, T *__restrict__ y, int n) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float gate[VEC], up[VEC];
    load(gate_up + gate_of(at), gate);
    load(gate_up + gate_of(at) + WIDTH, up);
#pragma unroll
    for (int c = 0; c < VEC; c++) up[c] *= gate[c] * sigmoid<T>(gate[c]);
    store(y + at, up);
}

// d_gate = dy ⊙ up ⊙ slope(gate), d_up = dy ⊙ silu(gate). gate_up, d_gate_up: [rows, 2, WIDTH], which may be
// the same; dy: [rows, WIDTH], n elements.
extern "C" __global__ void swiglu_grad(const T *gate_up, const T *__restrict__ dy, T *d_gate_up, int n) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float gate[VEC], up[VEC], upstream[VEC];
    load(gate_up + gate_of(at), gate);
    load(gate_up + gate_of(at) + WIDTH, up);
    load(dy + at, upstream);
#pragma unroll
    for (int c = 0; c < VEC; c++) {
        float x = gate[c], s = sigmoid<T>(x);
        gate[c] = upstream[c] * up[c] * silu_slope(x, s);
        up[c] = upstream[c] * (x * s);
    }
    store(d_gate_up + gate_of(at), gate);
    store(d_gate_up + gate_of(at) + WIDTH, up);
}
