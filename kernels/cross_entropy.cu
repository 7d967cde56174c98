// Cross-entropy of rows of logits with the terms of an objective, its gradient, and the log-probabilities of
// words, with one block per row.
// src/engine/ops/cross_entropy/objective.rs has the formulas.
//
// With ROUNDS > 0 a row is read from memory once: it stays in shared memory while its sum of exponentials is
// computed. Each of THREADS threads then reads the vectors again that it copied, ROUNDS of them or one less.
// With ROUNDS = 0, for rows that are too long or do not fit 16-byte accesses, the row is read from memory
// twice. Both ways add in the same order, so the same row gives the same bits.
//
// Definitions: T, VEC (elements that a thread moves at once), THREADS (per block), ROUNDS; LOGITS (how losses
// see stored logits: AS_STORED, SCALED or CAPPED), Z_LOSS and SMOOTHING (1: the objective has the term).
#include "common.cuh"

constexpr int AS_STORED = 0, SCALED = 1, CAPPED = 2;
constexpr int TRANSFORM = LOGITS;

constexpr int BATCH = 4; // Loads in flight per thread if the row is not staged.
constexpr u32 IGNORED = 0xffffffffu;
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
// Offset of an empty sum: below every logit, and finite in both units.
constexpr float LOWEST = -1e38f;

// Logits in bf16 are converted to units of ln 2 for the hardware's base-2 exponential, which is exact to
// about 2^-22; their gradient is rounded to 2^-9 anyway. In fp32 every function is the accurate one.
constexpr bool FAST = sizeof(T) == 2;

__device__ __forceinline__ float to_log2_units(float logit) { return FAST ? logit * LOG2_E : logit; }
__device__ __forceinline__ float exp_units(float exponent) {
    return FAST ? exp2_fast(exponent) : expf(exponent);
}
// e^(logit - offset), with the offset in units.
__device__ __forceinline__ float exp_term(float logit, float offset) {
    return exp_units(FAST ? fmaf(logit, LOG2_E, -offset) : logit - offset);
}

// The numbers of an objective: logits are logit_scale·z, or with a cap cap·tanh(inner·z).
struct Objective {
    float logit_scale, inner, cap, z_loss, smoothing;
};

__device__ __forceinline__ float tanh_of(float x) {
    if (!FAST) return tanhf(x);
    // 1 − 2 / (1 + e^2x), to about 2^-22.
    return fmaf(-2.0f, reciprocal_fast(1.0f + exp2_fast(2.0f * LOG2_E * x)), 1.0f);
}

// The smaller number, or NaN if one of them is.
__device__ __forceinline__ float min_or_nan(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}

// Replaces numbers by their hyperbolic tangents, in bf16 four with one reciprocal, which takes the time of
// eight products. To about 2^-21.
template <int N> __device__ __forceinline__ void tanh_of_all(float (&x)[N]) {
    if constexpr (!FAST || N % 4 != 0) {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = tanh_of(x[i]);
    } else {
        float above[N]; // 1 + e^2x. From 2^30 on tanh is 1 in fp32; products of four are finite below.
#pragma unroll
        for (int i = 0; i < N; i++) above[i] = 1.0f + exp2_fast(min_or_nan(2.0f * LOG2_E * x[i], 30.0f));
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float first = above[i] * above[i + 1], second = above[i + 2] * above[i + 3];
            float both = -2.0f * reciprocal_fast(first * second);
            float of_first = both * second, of_second = both * first;
            x[i] = fmaf(of_first, above[i + 1], 1.0f), x[i + 1] = fmaf(of_first, above[i], 1.0f);
            x[i + 2] = fmaf(of_second, above[i + 3], 1.0f), x[i + 3] = fmaf(of_second, above[i + 2], 1.0f);
        }
    }
}

// Replaces stored logits by the logits that the losses see, and writes the derivatives to `slopes`, unless
// logits are as stored and the derivatives 1.
template <int N>
__device__ __forceinline__ void transform(float (&logits)[N], float (&slopes)[N],
                                          const Objective &objective) {
    if constexpr (TRANSFORM == CAPPED) {
#pragma unroll
        for (int i = 0; i < N; i++) logits[i] *= objective.inner;
        tanh_of_all(logits);
#pragma unroll
        for (int i = 0; i < N; i++) {
            slopes[i] = fmaf(-logits[i], logits[i], 1.0f) * objective.logit_scale;
            logits[i] *= objective.cap;
        }
    } else if constexpr (TRANSFORM == SCALED) {
#pragma unroll
        for (int i = 0; i < N; i++) logits[i] *= objective.logit_scale, slopes[i] = objective.logit_scale;
    }
}

// Returns a stored logit as the losses see it.
__device__ __forceinline__ float transformed(float logit, const Objective &objective) {
    float logits[1] = {logit}, slopes[1];
    transform(logits, slopes, objective);
    return logits[0];
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

// Returns the sum over the block to every thread. Called once per kernel: no barrier protects `scratch`
// before it is written.
__device__ __forceinline__ SumExp block_sum_exp(SumExp total, SumExp (&scratch)[WARP]) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    total = warp_sum_exp(total);
    if (lane == 0) scratch[warp] = total;
    __syncthreads();
    return warp_sum_exp(lane < THREADS / WARP ? scratch[lane] : empty_sum());
}

// Adds the logits of vector `v` to the sum of exponentials and, for smoothing, to the sum of logits. Padding
// of the vocabulary counts as -infinity in the sum of exponentials and as 0 in the sum of logits.
__device__ __forceinline__ void add_vector(SumExp &total, float &sum, float (&logits)[VEC], int v, int vocab,
                                           const Objective &objective) {
    bool whole = (v + 1) * VEC <= vocab;
    float slopes[VEC];
    transform(logits, slopes, objective);
    if constexpr (SMOOTHING) {
        float part = 0.0f;
#pragma unroll
        for (int i = 0; i < VEC; i++) part += whole || v * VEC + i < vocab ? logits[i] : 0.0f;
        sum += part;
    }
    if (!whole) {
#pragma unroll
        for (int i = 0; i < VEC; i++) logits[i] = v * VEC + i < vocab ? logits[i] : -infinity();
    }
    add(total, logits);
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
__device__ __forceinline__ void add_staged(SumExp &total, float &sum, const T *stage, int vectors, int vocab,
                                           const Objective &objective) {
    if constexpr (round < ROUNDS) {
        cp_async_wait<ROUNDS - 1 - round>();
        int v = round * THREADS + threadIdx.x;
        if (round + 1 < ROUNDS || v < vectors) {
            float logits[VEC];
            load(stage + v * VEC, logits);
            add_vector(total, sum, logits, v, vocab, objective);
        }
        add_staged<round + 1>(total, sum, stage, vectors, vocab, objective);
    }
}

// Adds the vectors that this thread reads from memory. `visit` sees each with its number as stored.
template <class Visit>
__device__ __forceinline__ void add_direct(SumExp &total, float &sum, const T *row, int vectors, int vocab,
                                           const Objective &objective, const Visit &visit) {
    for (int first = threadIdx.x; first < vectors; first += BATCH * THREADS) {
        float logits[BATCH][VEC];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int v = first + b * THREADS;
            if (v < vectors) load(row + v * VEC, logits[b]);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int v = first + b * THREADS;
            if (v < vectors) {
                visit(logits[b], v);
                add_vector(total, sum, logits[b], v, vocab, objective);
            }
        }
    }
}

__device__ __forceinline__ float loss_of(SumExp total, float target_logit) {
    return FAST ? LN_2 * (log2f(total.sum) + fmaf(target_logit, -LOG2_E, total.offset))
                : logf(total.sum) + (total.offset - target_logit);
}

// ln Σ e^logit.
__device__ __forceinline__ float log_of(SumExp total) {
    return FAST ? LN_2 * (log2f(total.sum) + total.offset) : logf(total.sum) + total.offset;
}

// Addresses of the losses of a row; null for terms that the objective lacks.
struct Losses {
    float *plain, *z_loss, *smoothing;
};
__device__ __forceinline__ Losses losses_of(int r, float *plain, float *z_losses, float *smoothing) {
    return {plain + r, Z_LOSS ? z_losses + r : nullptr, SMOOTHING ? smoothing + r : nullptr};
}

// Upstream gradients of the losses of a row.
struct Upstreams {
    float plain, z_loss, smoothing;
};

// Computes the losses of a row if `losses` is not null, and the gradient of the stored logits if `gradient`
// is not null; `upstreams` returns the upstream gradients of the losses. `gradient` may be the row itself: a
// thread overwrites only what it alone reads, after all threads have finished the first pass.
template <bool staged, class GetUpstreams>
__device__ __forceinline__ void do_row(const T *row, T *gradient, u32 target, const Losses *losses, int vocab,
                                       int width, const Objective &objective, const GetUpstreams &upstreams) {
    extern __shared__ uint4 shared[];
    __shared__ SumExp scratch[WARP];
    T *stage = reinterpret_cast<T *>(shared);
    int vectors = width / VEC;
    if (staged) start_copies(row, stage, vectors);
    if (target == IGNORED) {
        if (staged) cp_async_wait<0>();
        if (losses && threadIdx.x == 0) {
            *losses->plain = 0.0f;
            if (Z_LOSS) *losses->z_loss = 0.0f;
            if (SMOOTHING) *losses->smoothing = 0.0f;
        }
        float zero[VEC] = {};
        for (int v = threadIdx.x; gradient && v < vectors; v += THREADS) store(gradient + v * VEC, zero);
        return;
    }
    float target_logit = threadIdx.x == 0 ? transformed(up(row[target]), objective) : 0.0f;
    SumExp total = empty_sum();
    float sum = 0.0f;
    if (staged) {
        add_staged<0>(total, sum, stage, vectors, vocab, objective);
    } else {
        add_direct(total, sum, row, vectors, vocab, objective, [](const float (&)[VEC], int) {});
    }
    total = block_sum_exp(total, scratch);
    float log_total = Z_LOSS ? log_of(total) : 0.0f;
    if (losses) {
        if constexpr (SMOOTHING) {
            __shared__ float sums[WARP];
            sum = block_sum(sum, sums);
        }
        if (threadIdx.x == 0) {
            *losses->plain = loss_of(total, target_logit);
            if (Z_LOSS) *losses->z_loss = objective.z_loss * log_total * log_total;
            if (SMOOTHING) *losses->smoothing = objective.smoothing * (target_logit - sum / float(vocab));
        }
    }
    if (!gradient) return;

    const Upstreams d = upstreams();
    float of_softmax = d.plain, of_target = d.plain, uniform = 0.0f;
    if (Z_LOSS) of_softmax += 2.0f * objective.z_loss * log_total * d.z_loss;
    if (SMOOTHING) {
        float spread = objective.smoothing * d.smoothing;
        uniform = spread / float(vocab);
        of_target -= spread;
    }
    float factor = of_softmax / total.sum;
    int column = int(target);
#pragma unroll 2
    for (int v = threadIdx.x; v < vectors; v += THREADS) {
        float x[VEC], slopes[VEC];
        load(staged ? stage + v * VEC : row + v * VEC, x);
        transform(x, slopes, objective);
#pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = exp_term(x[i], total.offset) * factor;
        if constexpr (SMOOTHING) {
#pragma unroll
            for (int i = 0; i < VEC; i++) x[i] -= uniform;
        }
        if (v == column / VEC) {
#pragma unroll
            for (int i = 0; i < VEC; i++) x[i] -= i == column % VEC ? of_target : 0.0f;
        }
        if constexpr (TRANSFORM != AS_STORED) {
#pragma unroll
            for (int i = 0; i < VEC; i++) x[i] *= slopes[i];
        }
        if ((v + 1) * VEC > vocab) {
#pragma unroll
            for (int i = 0; i < VEC; i++) x[i] = v * VEC + i < vocab ? x[i] : 0.0f;
        }
        store(gradient + v * VEC, x);
    }
}

// losses[n] of logits[n, width], and z_losses[n] and smoothing[n] if the objective has them.
extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy(const T *logits, const u32 *targets, float *losses, float *z_losses, float *smoothing, int vocab,
              int width, float logit_scale, float inner, float cap, float z_loss, float label_smoothing) {
    int r = blockIdx.x;
    Losses to = losses_of(r, losses, z_losses, smoothing);
    Objective objective = {logit_scale, inner, cap, z_loss, label_smoothing};
    do_row<false>(logits + i64(r) * width, nullptr, targets[r], &to, vocab, width, objective,
                  [] { return Upstreams{}; });
}

// The gradient of logits[n, width] from the gradients of their losses. It may overwrite the logits.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    cross_entropy_grad(const T *logits, const u32 *targets, const float *d_losses, const float *d_z_losses,
                       const float *d_smoothing, T *d_logits, int vocab, int width, float logit_scale,
                       float inner, float cap, float z_loss, float label_smoothing) {
    int r = blockIdx.x;
    i64 at = i64(r) * width;
    Objective objective = {logit_scale, inner, cap, z_loss, label_smoothing};
    Upstreams d = {d_losses[r], Z_LOSS ? d_z_losses[r] : 0.0f, SMOOTHING ? d_smoothing[r] : 0.0f};
    do_row<(ROUNDS > 0)>(logits + at, d_logits + at, targets[r], nullptr, vocab, width, objective,
                         [=] { return d; });
}

// The losses of logits[n, width], and the gradient of scale·Σ of all losses, which may overwrite the logits.
// If `count` is not null, the scale is 1 / count; if `factors` is not null, each row has a factor of its own
// in place of it.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    cross_entropy_with_grad(const T *logits, T *d_logits, const u32 *targets, float *losses, float *z_losses,
                            float *smoothing, int vocab, int width, float logit_scale, float inner, float cap,
                            float z_loss, float label_smoothing, float scale, const u32 *count,
                            const float *factors) {
    int r = blockIdx.x;
    i64 at = i64(r) * width;
    Losses to = losses_of(r, losses, z_losses, smoothing);
    Objective objective = {logit_scale, inner, cap, z_loss, label_smoothing};
    // Read where it is needed, which saves a register until then.
    auto upstreams = [=] {
        float factor = factors ? factors[r] : count ? float(1.0 / double(*count)) : scale;
        return Upstreams{factor, factor, factor};
    };
    do_row<(ROUNDS > 0)>(logits + at, d_logits + at, targets[r], &to, vocab, width, objective, upstreams);
}

// The log-probabilities of the targets of logits[n, width], and 1 where no word has a larger logit than the
// target, and none before it an equal one. Stored logits are compared: scale and cap keep their order.
extern "C" __global__ void __launch_bounds__(THREADS)
token_scores(const T *logits, const u32 *targets, float *log_probs, u32 *likeliest, int vocab, int width,
             float logit_scale, float inner, float cap, float z_loss, float label_smoothing) {
    __shared__ SumExp scratch[WARP];
    int r = blockIdx.x;
    u32 target = targets[r];
    if (target == IGNORED) {
        if (threadIdx.x == 0) log_probs[r] = 0.0f, likeliest[r] = 0;
        return;
    }
    const T *row = logits + i64(r) * width;
    Objective objective = {logit_scale, inner, cap, z_loss, label_smoothing};
    float stored = up(row[target]), target_logit = transformed(stored, objective);
    SumExp total = empty_sum();
    float sum = 0.0f;
    bool beaten = false;
    add_direct(total, sum, row, width / VEC, vocab, objective, [&](const float (&x)[VEC], int v) {
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            int word = v * VEC + i;
            beaten |= word < vocab && (word < int(target) ? x[i] >= stored : x[i] > stored);
        }
    });
    total = block_sum_exp(total, scratch);
    beaten = __syncthreads_or(beaten);
    if (threadIdx.x == 0) log_probs[r] = -loss_of(total, target_logit), likeliest[r] = !beaten;
}
