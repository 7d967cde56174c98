// Cross-entropy of rows of logits, and its gradient: a block per row.
//
// With ROUNDS > 0 a row is read from memory once: it stays in shared memory while its sum of exponentials is
// computed, and each of THREADS threads reads again the vectors that it copied, ROUNDS of them or one less.
// With ROUNDS = 0, for rows that are too long or that 16-byte accesses do not fit, the row is read a second
// time. All ways add in the same order: the same row gives the same bits.
#include "common.cuh"

constexpr int BATCH = 4; // Loads in flight per thread where the row is not staged.
constexpr u32 IGNORED = 0xffffffffu;
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
// Offset of an empty sum: below every logit, and finite in both units.
constexpr float LOWEST = -1e38f;

// Logits in bf16 are converted to units of ln 2 for the hardware's base-2 exponential, which is exact to
// about 2^-22; their gradient is rounded to 2^-9. In fp32 every function is the accurate one.
constexpr bool FAST = sizeof(T) == 2;

__device__ __forceinline__ float to_log2_units(float logit) { return FAST ? logit * LOG2_E : logit; }
__device__ __forceinline__ float exp_units(float exponent) {
    if (!FAST) return expf(exponent);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exponent));
    return y;
}
// e^(logit - offset), the offset in units.
__device__ __forceinline__ float exp_term(float logit, float offset) {
    return exp_units(FAST ? fmaf(logit, LOG2_E, -offset) : logit - offset);
}

// Σ e^(logit - offset) over the logits so far; the offset is the largest of them. A NaN among them ends up in
// the sum.
struct SumExp {
    float offset, sum;
};
__device__ __forceinline__ SumExp empty_sum() { return {LOWEST, 0.0f}; }

__device__ __forceinline__ void add(SumExp &total, const float (&logits)[VEC]) {
    float highest = logits[0];
#pragma unroll
    for (int i = 1; i < VEC; i++) highest = fmaxf(highest, logits[i]);
    float offset = fmaxf(total.offset, to_log2_units(highest)), terms[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) terms[i] = exp_term(logits[i], offset);
#pragma unroll
    for (int half = VEC / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; i++) terms[i] += terms[i + half];
    }
    total.sum = fmaf(total.sum, exp_units(total.offset - offset), terms[0]);
    total.offset = offset;
}

__device__ __forceinline__ SumExp warp_sum_exp(SumExp total) {
    float offset = warp_reduce<WARP>(total.offset, Max());
    return {offset, warp_sum(total.sum * exp_units(total.offset - offset))};
}

// The sum over the block, for every thread. Called once per kernel: no barrier protects `scratch` before it
// is written.
__device__ __forceinline__ SumExp block_sum_exp(SumExp total, SumExp (&scratch)[WARP]) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    total = warp_sum_exp(total);
    if (lane == 0) scratch[warp] = total;
    __syncthreads();
    return warp_sum_exp(lane < THREADS / WARP ? scratch[lane] : empty_sum());
}

// The logits of vector `v`; padding of the vocabulary becomes -infinity.
__device__ __forceinline__ void load_logits(const T *row, int v, int vocab, float (&logits)[VEC]) {
    load(row + v * VEC, logits);
    if ((v + 1) * VEC <= vocab) return;
#pragma unroll
    for (int i = 0; i < VEC; i++) logits[i] = v * VEC + i < vocab ? logits[i] : __int_as_float(0xff800000);
}

__device__ __forceinline__ void cp_async_16(void *shared, const void *global) {
    u32 to = u32(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

__device__ __forceinline__ void start_copies(const T *row, T *stage, int vectors) {
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        int v = round * THREADS + threadIdx.x;
        if (round + 1 < ROUNDS || v < vectors) cp_async_16(stage + v * VEC, row + v * VEC);
        cp_async_commit();
    }
}

// Adds the vectors that this thread copies to shared memory, as they arrive.
template <int round>
__device__ __forceinline__ void add_staged(SumExp &total, const T *stage, int vectors, int vocab) {
    if constexpr (round < ROUNDS) {
        cp_async_wait<ROUNDS - 1 - round>();
        int v = round * THREADS + threadIdx.x;
        if (round + 1 < ROUNDS || v < vectors) {
            float logits[VEC];
            load_logits(stage, v, vocab, logits);
            add(total, logits);
        }
        add_staged<round + 1>(total, stage, vectors, vocab);
    }
}

__device__ __forceinline__ void add_direct(SumExp &total, const T *row, int vectors, int vocab) {
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

__device__ __forceinline__ float loss_of(SumExp total, float target_logit) {
    return FAST ? LN_2 * (log2f(total.sum) + fmaf(target_logit, -LOG2_E, total.offset))
                : logf(total.sum) + (total.offset - target_logit);
}

// The loss of a row into `loss`, if that is not null, and scale·(softmax - onehot) into `gradient`, if that
// is not null. `gradient` may be the row itself: a thread overwrites only what it alone reads, after the
// first pass of all threads.
template <bool staged>
__device__ __forceinline__ void do_row(const T *row, T *gradient, u32 target, float *loss, int vocab,
                                       int width, float scale) {
    extern __shared__ uint4 shared[];
    __shared__ SumExp scratch[WARP];
    T *stage = reinterpret_cast<T *>(shared);
    int vectors = width / VEC;
    if (staged) start_copies(row, stage, vectors);
    if (target == IGNORED) {
        if (staged) cp_async_wait<0>();
        if (loss && threadIdx.x == 0) *loss = 0.0f;
        float zero[VEC] = {};
        for (int v = threadIdx.x; gradient && v < vectors; v += THREADS) store(gradient + v * VEC, zero);
        return;
    }
    float target_logit = threadIdx.x == 0 ? up(row[target]) : 0.0f;
    SumExp total = empty_sum();
    if (staged) {
        add_staged<0>(total, stage, vectors, vocab);
    } else {
        add_direct(total, row, vectors, vocab);
    }
    total = block_sum_exp(total, scratch);
    if (loss && threadIdx.x == 0) *loss = loss_of(total, target_logit);
    if (!gradient) return;

    float factor = scale / total.sum;
    int column = int(target);
#pragma unroll 2
    for (int v = threadIdx.x; v < vectors; v += THREADS) {
        float x[VEC];
        load(staged ? stage + v * VEC : row + v * VEC, x);
#pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = exp_term(x[i], total.offset) * factor;
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
    cross_entropy_grad(const T *logits, const u32 *targets, const float *d_losses, T *d_logits, int vocab,
                       int width) {
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
