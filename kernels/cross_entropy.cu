// Cross-entropy of rows of logits, and its gradient: a block per row.
//
// With ROUNDS > 0 a row is read from memory once: it waits in shared memory while its sum of exponentials is found, and
// each of THREADS threads comes back to the vectors it brought in, ROUNDS of them or one less. With ROUNDS = 0, for rows
// that are too long or that 16-byte accesses do not fit, the row is read a second time. All ways add in the same order:
// the same row gives the same bits.
#include "common.cuh"

constexpr int BATCH = 4; // Loads in flight per thread where the row is not staged.
constexpr u32 IGNORED = 0xffffffffu;
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
// Below every logit, and finite in both units: what a sum of no terms is relative to.
constexpr float LOWEST = -1e38f;

// Logits in bf16 are turned to units of ln 2 for the exponential of the hardware, which is exact to about 2^-22; their
// gradient is rounded to 2^-9. In fp32 every function is the accurate one.
constexpr bool FAST = sizeof(T) == 2;

__device__ __forceinline__ float in_units(float logit) { return FAST ? logit * LOG2_E : logit; }
__device__ __forceinline__ float power(float exponent) {
    if (!FAST) return expf(exponent);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exponent));
    return y;
}
// e^(logit - offset), the offset in units.
__device__ __forceinline__ float term(float logit, float offset) {
    return power(FAST ? fmaf(logit, LOG2_E, -offset) : logit - offset);
}

// Σ e^(logit - offset) over the logits seen, relative to the largest of them. A NaN among them ends up in the sum.
struct Total {
    float offset, sum;
};
__device__ __forceinline__ Total nothing() { return {LOWEST, 0.0f}; }

__device__ __forceinline__ void add(Total &total, const float (&logits)[VEC]) {
    float highest = logits[0];
#pragma unroll
    for (int i = 1; i < VEC; i++) highest = fmaxf(highest, logits[i]);
    float offset = fmaxf(total.offset, in_units(highest)), terms[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) terms[i] = term(logits[i], offset);
#pragma unroll
    for (int half = VEC / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; i++) terms[i] += terms[i + half];
    }
    total.sum = fmaf(total.sum, power(total.offset - offset), terms[0]);
    total.offset = offset;
}

__device__ __forceinline__ Total warp_total(Total total) {
    float offset = warp_reduce<WARP>(total.offset, Max());
    return {offset, warp_sum(total.sum * power(total.offset - offset))};
}

// The total of the block, for every thread. Called once per kernel: `scratch` is not waited for.
__device__ __forceinline__ Total block_total(Total total, Total (&scratch)[WARP]) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    total = warp_total(total);
    if (lane == 0) scratch[warp] = total;
    __syncthreads();
    return warp_total(lane < THREADS / WARP ? scratch[lane] : nothing());
}

// The logits of vector `v`; the padding of the vocabulary has no part in any sum.
__device__ __forceinline__ void load_logits(const T *row, int v, int vocab, float (&logits)[VEC]) {
    load(row + v * VEC, logits);
    if ((v + 1) * VEC <= vocab) return;
#pragma unroll
    for (int i = 0; i < VEC; i++) logits[i] = v * VEC + i < vocab ? logits[i] : __int_as_float(0xff800000);
}

__device__ __forceinline__ void copy_16_bytes(void *shared, const void *global) {
    u32 to = u32(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

__device__ __forceinline__ void start_copies(const T *row, T *stage, int vectors) {
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        int v = round * THREADS + threadIdx.x;
        if (round + 1 < ROUNDS || v < vectors) copy_16_bytes(stage + v * VEC, row + v * VEC);
        end_copies();
    }
}

// Adds what this thread brings into shared memory, as it arrives.
template <int round> __device__ __forceinline__ void add_arrived(Total &total, const T *stage, int vectors, int vocab) {
    if constexpr (round < ROUNDS) {
        wait_for_copies<ROUNDS - 1 - round>();
        int v = round * THREADS + threadIdx.x;
        if (round + 1 < ROUNDS || v < vectors) {
            float logits[VEC];
            load_logits(stage, v, vocab, logits);
            add(total, logits);
        }
        add_arrived<round + 1>(total, stage, vectors, vocab);
    }
}

__device__ __forceinline__ void add_direct(Total &total, const T *row, int vectors, int vocab) {
    for (int first = threadIdx.x; first < vectors; first += BATCH * THREADS) {
        float logits[BATCH][VEC];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int v = first + b * THREADS;
            if (v < vectors) load_logits(row, v, vocab, logits[b]);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (first + b * THREADS < vectors) add(total, logits[b]);
        }
    }
}

__device__ __forceinline__ float loss_of(Total total, float wanted) {
    return FAST ? LN_2 * (log2f(total.sum) + fmaf(wanted, -LOG2_E, total.offset))
                : logf(total.sum) + (total.offset - wanted);
}

// The loss of a row into `loss`, if that is not null, and scale·(softmax - onehot) into `gradient`, if that is not
// null. `gradient` may be the row itself: a thread overwrites only what it alone reads, after everybody's first pass.
template <bool staged>
__device__ __forceinline__ void do_row(const T *row, T *gradient, u32 target, float *loss, int vocab, int width,
                                       float scale) {
    extern __shared__ uint4 shared[];
    __shared__ Total scratch[WARP];
    T *stage = reinterpret_cast<T *>(shared);
    int vectors = width / VEC;
    if (staged) start_copies(row, stage, vectors);
    if (target == IGNORED) {
        if (staged) wait_for_copies<0>();
        if (loss && threadIdx.x == 0) *loss = 0.0f;
        float zero[VEC] = {};
        for (int v = threadIdx.x; gradient && v < vectors; v += THREADS) store(gradient + v * VEC, zero);
        return;
    }
    float wanted = threadIdx.x == 0 ? up(row[target]) : 0.0f;
    Total total = nothing();
    if (staged) {
        add_arrived<0>(total, stage, vectors, vocab);
    } else {
        add_direct(total, row, vectors, vocab);
    }
    total = block_total(total, scratch);
    if (loss && threadIdx.x == 0) *loss = loss_of(total, wanted);
    if (!gradient) return;

    float factor = scale / total.sum;
    int column = int(target);
#pragma unroll 2
    for (int v = threadIdx.x; v < vectors; v += THREADS) {
        float x[VEC];
        load(staged ? stage + v * VEC : row + v * VEC, x);
#pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = term(x[i], total.offset) * factor;
        if (v == column / VEC) {
#pragma unroll
            for (int i = 0; i < VEC; i++) x[i] -= i == column % VEC ? scale : 0.0f;
        }
        if ((v + 1) * VEC > vocab) {
#pragma unroll
            for (int i = 0; i < VEC; i++) x[i] = v * VEC + i < vocab ? x[i] : 0.0f;
        }
        store(gradient + v * VEC, x);
    }
}

// losses[n] of logits[n, width].
extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy(const T *logits, const u32 *targets, float *losses, int vocab, int width) {
    int r = blockIdx.x;
    do_row<false>(logits + i64(r) * width, nullptr, targets[r], losses + r, vocab, width, 0.0f);
}

// d_logits[n, width] = d_losses[n]·(softmax(logits[n, width]) - onehot(targets[n])); may lie over the logits.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
cross_entropy_grad(const T *logits, const u32 *targets, const float *d_losses, T *d_logits, int vocab, int width) {
    int r = blockIdx.x;
    i64 at = i64(r) * width;
    do_row<(ROUNDS > 0)>(logits + at, d_logits + at, targets[r], nullptr, vocab, width, d_losses[r]);
}

// losses[n] of logits[n, width], which are overwritten by the gradient of scale·Σ losses.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
head_loss(T *logits, const u32 *targets, float *losses, int vocab, int width, float scale) {
    int r = blockIdx.x;
    T *row = logits + i64(r) * width;
    do_row<(ROUNDS > 0)>(row, row, targets[r], losses + r, vocab, width, scale);
}
