// Lion over the flat parameter buffers: the same bits as src/ops/lion.rs.
#include "optimizer.cuh"

struct Step {
    float clip, decay, lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
};

// Every operation is rounded separately, or fused where the CPU fuses it.
__device__ __forceinline__ void update(const Step &s, bool decays, float &p, float &m, float g) {
    g = __fmul_rn(g, s.clip);
    float direction = __fadd_rn(__fmul_rn(m, s.beta1), __fmul_rn(g, s.one_minus_beta1));
    if (decays) p = __fmul_rn(p, s.decay);
    if (direction > 0.0f) {
        p = __fsub_rn(p, s.lr);
    } else if (direction < 0.0f) {
        p = __fadd_rn(p, s.lr);
    }
    m = __fmaf_rn(s.one_minus_beta2, g, __fmul_rn(m, s.beta2));
}

// (params, momentum, compute_copy)[n] ← Lion(grads[n]) with row step[1] of schedule[steps + 1, 2]: what
// decaying parameters are multiplied by, lr. Nothing changes where bad[1] is set. Without HAS_COMPUTE_COPY,
// `compute_copy` is not written. Of a group of parameters, and on a rank that owns ranges, the elements of
// the slot from first to n are updated: momentum has no others but of the group and the rank, and
// params where masters are sharded those of the shard.
extern "C" __global__ void __launch_bounds__(THREADS)
lion(const float *grads, const float *schedule, const u32 *step, const float *clip, const u32 *bad, float *params,
     float *momentum, T *compute_copy, float beta1, float one_minus_beta1, float beta2, float one_minus_beta2,
     u64 first, u64 n, int rank_row) {
    ThreadElements elements = elements_of_thread(first, rank_row);
    auto [at, flat, master] = elements;
    bool whole = at + VEC <= n;
    float g4[VEC], p4[VEC], m4[VEC];
    // Before anything that depends on another load.
    if (whole) {
        load_streaming(grads + flat, g4);
        load_streaming(params + master, p4);
        load_streaming(momentum + at, m4);
    }
    if (*bad != 0) return;
    const float *row = schedule + u64(*step) * 2;
    Step s = {*clip, row[0], row[1], beta1, one_minus_beta1, beta2, one_minus_beta2};
    if (whole) {
        Decays decays = decays_of(elements);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            update(s, decays[i], p4[i], m4[i], g4[i]);
        }
        store_streaming(params + master, p4);
        store_streaming(momentum + at, m4);
        if (HAS_COMPUTE_COPY) store(compute_copy + flat, p4);
        return;
    }
    for (; at < n; at++, flat++, master++) {
        update(s, switches_up_to(flat) % 2 == 1, params[master], momentum[at], grads[flat]);
        if (HAS_COMPUTE_COPY) compute_copy[flat] = down<T>(params[master]);
    }
}
