// SGD with momentum over the flat parameter buffers: the same bits as src/ops/sgd.rs.
#include "optimizer.cuh"

struct Step {
    float clip, lr, decay, momentum;
};

// Every operation is rounded separately, or fused where the CPU fuses it.
__device__ __forceinline__ void update(const Step &s, bool decays, float &p, float &m, float g) {
    g = __fmul_rn(g, s.clip);
    if (decays) g = __fmaf_rn(s.decay, p, g);
    if (HAS_MOMENTUM) g = m = __fadd_rn(__fmul_rn(s.momentum, m), g);
    p = __fmaf_rn(-s.lr, g, p);
}

// (params, momentum, compute_copy)[n] ← SGD(grads[n]) with row step[1] of schedule[steps + 1, 1]: lr. Nothing
// changes where bad[1] is set. Without HAS_MOMENTUM, `momentum` is neither read nor written; without
// HAS_COMPUTE_COPY, `compute_copy` is not written. Of a group of parameters, and on a rank that owns ranges,
// the elements of the slot from first to n are updated: momentum has no others but of the group and
// the rank, and params where masters are sharded those of the shard.
extern "C" __global__ void __launch_bounds__(THREADS)
sgd(const float *grads, const float *schedule, const u32 *step, const float *clip, const u32 *bad,
    float *params, float *momentum, T *compute_copy, float decay, float momentum_factor, u64 first,
    u64 n, int rank_row) {
    ThreadElements elements = elements_of_thread(first, rank_row);
    auto [at, flat, master] = elements;
    bool whole = at + VEC <= n;
    float g4[VEC], p4[VEC], m4[VEC] = {};
    // Before anything that depends on another load.
    if (whole) {
        load_streaming(grads + flat, g4);
        load_streaming(params + master, p4);
        if (HAS_MOMENTUM) load_streaming(momentum + at, m4);
    }
    if (*bad != 0) return;
    Step s = {*clip, schedule[*step], decay, momentum_factor};
    if (whole) {
        Decays decays = decays_of(elements);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            update(s, decays[i], p4[i], m4[i], g4[i]);
        }
        store_streaming(params + master, p4);
        if (HAS_MOMENTUM) store_streaming(momentum + at, m4);
        if (HAS_COMPUTE_COPY) store(compute_copy + flat, p4);
        return;
    }
    for (; at < n; at++, flat++, master++) {
        float m = HAS_MOMENTUM ? momentum[at] : 0.0f;
        update(s, switches_up_to(flat) % 2 == 1, params[master], m, grads[flat]);
        if (HAS_MOMENTUM) momentum[at] = m;
        if (HAS_COMPUTE_COPY) compute_copy[flat] = down<T>(params[master]);
    }
}
