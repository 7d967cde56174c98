// AdamW over the flat parameter buffers: the same bits as src/ops/adamw.rs.
#include "common.cuh"

constexpr int THREADS = 256, VEC = 4;
constexpr u64 BLOCK = THREADS * VEC;

// Elements at which decay is switched on (the first, the third, …) or off, ascending; then one beyond all elements.
__constant__ u64 SWITCHES[SWITCH_COUNT + 1] = SWITCH_POSITIONS;

// How many switches lie at or before an element.
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

struct Step {
    float clip, decay, size, correction, keep1, beta2, keep2, eps;
};

// Every operation is rounded on its own, as on the CPU: the compiler must not fuse what is not fused there.
__device__ __forceinline__ void update(const Step &s, bool decays, float &p, float &m, float &v, float g) {
    g = __fmul_rn(g, s.clip);
    m = __fmaf_rn(s.keep1, __fsub_rn(g, m), m);
    v = __fmaf_rn(__fmul_rn(s.keep2, g), g, __fmul_rn(s.beta2, v));
    float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), s.correction), s.eps);
    p = __fsub_rn(__fmul_rn(p, decays ? s.decay : 1.0f), __fdiv_rn(__fmul_rn(s.size, m), denominator));
}

// Four neighbours that pass once per step: not worth keeping in a cache.
__device__ __forceinline__ void load_streaming(const float *from, float (&to)[VEC]) {
    float4 x = __ldcs(reinterpret_cast<const float4 *>(from));
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
__device__ __forceinline__ void store_streaming(float *to, const float (&from)[VEC]) {
    __stcs(reinterpret_cast<float4 *>(to), make_float4(from[0], from[1], from[2], from[3]));
}

// (params, m, v, shadow)[n] ← AdamW(grads[n]) with row step[1] of schedule[steps + 1, 4]: 1 - lr·decay, lr / (1 - β1^t),
// √(1 - β2^t), lr. Nothing changes where bad[1] is set. Without HAS_SHADOW, `shadow` is not written.
extern "C" __global__ void __launch_bounds__(THREADS)
adamw(const float *grads, const float *schedule, const u32 *step, const float *clip, const u32 *bad, float *params,
      float *m, float *v, T *shadow, u64 n, float keep1, float beta2, float keep2, float eps) {
    u64 block = u64(blockIdx.x) * BLOCK, at = block + threadIdx.x * VEC;
    bool whole = at + VEC <= n;
    float g4[VEC], p4[VEC], m4[VEC], v4[VEC];
    // Before anything that has to wait for another load.
    if (whole) {
        load_streaming(grads + at, g4);
        load_streaming(params + at, p4);
        load_streaming(m + at, m4);
        load_streaming(v + at, v4);
    }
    if (*bad != 0) return;
    float row[4];
    load(schedule + u64(*step) * 4, row);
    Step s = {*clip, row[0], row[1], row[2], keep1, beta2, keep2, eps};
    if (whole) {
        int passed = switches_up_to(block);
        bool alike = SWITCHES[passed] >= block + BLOCK;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            if (!alike) passed = switches_up_to(at + i);
            update(s, passed % 2 == 1, p4[i], m4[i], v4[i], g4[i]);
        }
        store_streaming(params + at, p4);
        store_streaming(m + at, m4);
        store_streaming(v + at, v4);
        if (HAS_SHADOW) store(shadow + at, p4);
        return;
    }
    for (; at < n; at++) {
        update(s, switches_up_to(at) % 2 == 1, params[at], m[at], v[at], grads[at]);
        if (HAS_SHADOW) shadow[at] = down<T>(params[at]);
    }
}
