// AdamW over the flat parameter buffers: the same bits as src/ops/adamw.rs.
#include "optimizer.cuh"

struct Step {
    float clip, decay, size, correction, one_minus_beta1, beta2, one_minus_beta2, eps;
};

// Every operation is rounded separately, as on the CPU: the compiler must not fuse operations that are
// separate there.
__device__ __forceinline__ void update(const Step &s, bool decays, float &p, float &m, float &v, float g) {
    g = __fmul_rn(g, s.clip);
    m = __fmaf_rn(s.one_minus_beta1, __fsub_rn(g, m), m);
    v = __fmaf_rn(__fmul_rn(s.one_minus_beta2, g), g, __fmul_rn(s.beta2, v));
    float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), s.correction), s.eps);
    p = __fsub_rn(__fmul_rn(p, decays ? s.decay : 1.0f), __fdiv_rn(__fmul_rn(s.size, m), denominator));
}

// (params, m, v, compute_copy)[n] ← AdamW(grads[n]) with row step[1] of schedule[steps + 1, 4]: 1 - lr·decay,
// lr / (1 - β1^t), √(1 - β2^t), lr. Nothing changes where bad[1] is set. Without HAS_COMPUTE_COPY,
// `compute_copy` is not written. Of a group of parameters, and on a rank that owns ranges, the elements of
// the slots from first to n are updated: m and v have no others but of the group and the rank, and
// params where masters are sharded those of the shard.
extern "C" __global__ void __launch_bounds__(THREADS)
adamw(const float *grads, const float *schedule, const u32 *step, const float *clip, const u32 *bad,
      float *params, float *m, float *v, T *compute_copy, float one_minus_beta1, float beta2,
      float one_minus_beta2, float eps, u64 first, u64 n, int rank_row) {
    ThreadElements elements = elements_of_thread(first, rank_row);
    auto [at, flat, master] = elements;
    bool whole = at + VEC <= n;
    float g4[VEC], p4[VEC], m4[VEC], v4[VEC];
    // Before anything that depends on another load.
    if (whole) {
        load_streaming(grads + flat, g4);
        load_streaming(params + master, p4);
        load_streaming(m + at, m4);
        load_streaming(v + at, v4);
    }
    if (*bad != 0) return;
    float row[4];
    load(schedule + u64(*step) * 4, row);
    Step s = {*clip, row[0], row[1], row[2], one_minus_beta1, beta2, one_minus_beta2, eps};
    if (whole) {
        Decays decays = decays_of(elements);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            update(s, decays[i], p4[i], m4[i], v4[i], g4[i]);
        }
        store_streaming(params + master, p4);
        store_streaming(m + at, m4);
        store_streaming(v + at, v4);
        if (HAS_COMPUTE_COPY) store(compute_copy + flat, p4);
        return;
    }
    for (; at < n; at++, flat++, master++) {
        update(s, switches_up_to(flat) % 2 == 1, params[master], m[at], v[at], grads[flat]);
        if (HAS_COMPUTE_COPY) compute_copy[flat] = down<T>(params[master]);
    }
}
