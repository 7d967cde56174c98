// Shared by all kernels: number formats, wide memory accesses, reductions in a fixed order, the dropout
// generator. It includes no CUDA header, so kernels compile on machines that have only the run-time
// libraries.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;

constexpr u32 FULL_WARP = 0xffffffffu;
constexpr int WARP = 32;

// Returns the number of the block, counted from the last one. A kernel that goes through what a matrix
// product has just written starts with the end, which is still in the L2 cache. The product after it goes
// forward, and finds the beginning there.
__device__ __forceinline__ u32 block_from_last() { return gridDim.x - 1 - blockIdx.x; }

// Programmatic dependent launch (from sm_90 on). A kernel launched to overlap begins while the kernel before
// it in the stream is still running. It does what depends on nothing, such as loading weights, and waits here
// for the end of the earlier work. In other launches it does not wait. Data loaded afterwards must not be
// declared both const and __restrict__: the compiler may move such loads before the wait.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel, if launched to overlap, begin as soon as all blocks of this one have begun.
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// 2^x with a relative error of 2^-22; results below 2^-126 become zero.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/x with a relative error of 2^-23, for x from 2^-126 on.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The base-2 logarithm with an absolute error of 2^-22 (far from 1 the relative error is 2^-22).
__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// bfloat16 as stored. Arithmetic uses float.
struct __align__(2) bf16 {
    u16 bits;
};

__device__ __forceinline__ float up(float x) { return x; }
__device__ __forceinline__ float up(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// Rounds to nearest, ties to even, with the same bits as the CPU's conversion.
template <typename E> __device__ __forceinline__ E down(float x);
template <> __device__ __forceinline__ float down<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 down<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// Rounds two floats to a pair of bf16 in one register, `low` in the low half.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// N consecutive elements. Their alignment of N·sizeof(E) bytes (at most 16) allows accesses of that width.
template <typename E, int N> struct __align__(sizeof(E) * N < 16 ? sizeof(E) * N : 16) Pack {
    E at[N];
};
// Sixteen bytes as the compiler's own vector types, because it splits arrays into narrow accesses and
// instructions.
template <> struct Pack<bf16, 8> {
    uint4 pairs;
};
template <> struct Pack<f32, 4> {
    float4 numbers;
};

template <int N, typename E> __device__ __forceinline__ void unpack(const Pack<E, N> &pack, float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = up(pack.at[i]);
}
__device__ __forceinline__ void unpack(const Pack<bf16, 8> &pack, float (&to)[8]) {
    u32 pairs[4] = {pack.pairs.x, pack.pairs.y, pack.pairs.z, pack.pairs.w};
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = i % 2 == 0 ? low_half(pairs[i / 2]) : high_half(pairs[i / 2]);
}
__device__ __forceinline__ void unpack(const Pack<f32, 4> &pack, float (&to)[4]) {
    to[0] = pack.numbers.x, to[1] = pack.numbers.y, to[2] = pack.numbers.z, to[3] = pack.numbers.w;
}

// Rounds to the format of the pack.
template <int N, typename E> __device__ __forceinline__ void fill(Pack<E, N> &to, const float (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) to.at[i] = down<E>(from[i]);
}
__device__ __forceinline__ void fill(Pack<bf16, 8> &to, const float (&x)[8]) {
    to.pairs = make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}
__device__ __forceinline__ void fill(Pack<f32, 4> &to, const float (&x)[4]) {
    to.numbers = make_float4(x[0], x[1], x[2], x[3]);
}

template <int N, typename E> __device__ __forceinline__ void load(const E *from, float (&to)[N]) {
    Pack<E, N> pack = *reinterpret_cast<const Pack<E, N> *>(from);
    unpack(pack, to);
}

template <int N, typename E> __device__ __forceinline__ void store(E *to, const float (&from)[N]) {
    Pack<E, N> pack;
    fill(pack, from);
    *reinterpret_cast<Pack<E, N> *>(to) = pack;
}

struct Add {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
// Returns NaN if either number is NaN, so that a bad value stays visible.
struct Max {
    __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

// Combines one value per lane in groups of `width` lanes; every lane gets the result. The tree is fixed.
template <int width, typename Combine>
__device__ __forceinline__ float warp_reduce(float x, Combine combine) {
#pragma unroll
    for (int step = width / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(FULL_WARP, x, step));
    return x;
}
__device__ __forceinline__ float warp_sum(float x) { return warp_reduce<WARP>(x, Add()); }

// Combines one value per thread of a block of at most 32 warps; every thread gets the result. `scratch` is 32
// floats in shared memory, which the next call may reuse.
template <typename Combine>
__device__ __forceinline__ float block_reduce(float x, float neutral, float *scratch, Combine combine) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
    x = warp_reduce<WARP>(x, combine);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = lane < warps ? scratch[lane] : neutral;
    return warp_reduce<WARP>(x, combine);
}
__device__ __forceinline__ float block_sum(float x, float *scratch) {
    return block_reduce(x, 0.0f, scratch, Add());
}

// Philox 4x32-10 (Salmon et al. 2011): 128 random bits for a counter and a key, the same as in
// src/engine/device/philox.rs.
__device__ __forceinline__ uint4 philox(uint4 counter, u32 key0, u32 key1) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 low0 = counter.x * 0xD2511F53u, high0 = __umulhi(counter.x, 0xD2511F53u);
        u32 low1 = counter.z * 0xCD9E8D57u, high1 = __umulhi(counter.z, 0xCD9E8D57u);
        counter = make_uint4(high1 ^ counter.y ^ key0, low1, high0 ^ counter.w ^ key1, low0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// A site of dropout, the same as `Drops` in src/engine/ops/dropout.rs: the generator's key, the threshold
// below which a 16-bit draw drops its element, and the scale of the other elements.
struct Drops {
    u32 key0, key1, threshold;
    float scale;
};

// The draws of columns 8·call to 8·call + 7 of a row: 16 bits each, the lower half of a word first.
__device__ __forceinline__ uint4 draws(const Drops &drops, u32 step, u32 sequence, u32 row, u32 call) {
    return philox(make_uint4(call, row, sequence, step), drops.key0, drops.key1);
}
// Returns the factor of column `c` (0 to 7) of a call: 0 or the scale.
__device__ __forceinline__ float drop_factor(const Drops &drops, const uint4 &draws, int c) {
    u32 word = c / 2 == 0 ? draws.x : c / 2 == 1 ? draws.y : c / 2 == 2 ? draws.z : draws.w;
    u32 draw = c % 2 == 0 ? word & 0xffffu : word >> 16;
    return draw < drops.threshold ? 0.0f : drops.scale;
}
