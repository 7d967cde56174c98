// The loss of pairs of answers, and its gradient by the losses of their tokens: a block per pair, in f64.
//
// Definitions: LOSS (DPO or IPO), THREADS (per block).
#include "common.cuh"

constexpr int DPO = 0, IPO = 1;
constexpr u32 IGNORED = 0xffffffffu;

// Adds up a number per thread and returns the sum to every thread, in an order fixed by THREADS.
__device__ __forceinline__ double block_sum_f64(double value, double (&sums)[THREADS]) {
    __syncthreads();
    sums[threadIdx.x] = value;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    return sums[0];
}

// losses[pairs], factors[n], rewards[2 * pairs], correct[pairs] and log_probs[2 * pairs] of the losses of
// tokens[n]; src/engine/ops/preference_loss.rs has the formulas. Beta and the scale come as the bits of an
// f64; if `count` is not null, the scale is 1 / count.
extern "C" __global__ void __launch_bounds__(THREADS)
preference_loss(const float *token_losses, const u32 *targets, const u32 *spans, const double *reference,
                float *losses, float *factors, float *rewards, float *correct, double *log_probs, int pairs,
                int len, u64 beta_bits, u64 scale_bits, const u32 *count) {
    __shared__ double sums[THREADS];
    int pair = blockIdx.x;
    i64 first = i64(pair) * len;
    double sum[2] = {}, tokens[2] = {};
    for (int t = threadIdx.x; t < len; t += THREADS) {
        if (targets[first + t] == IGNORED) continue;
        bool is_rejected = spans[2 * (first + t)] != 0;
        // A choice by index would move the sums to memory.
        double log_prob = -double(token_losses[first + t]);
        if (is_rejected) sum[1] += log_prob, tokens[1] += 1.0;
        else sum[0] += log_prob, tokens[0] += 1.0;
    }
    double beta = __longlong_as_double(i64(beta_bits)), reward[2], log_ratio[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        double log_prob = block_sum_f64(sum[side], sums);
        int at = side * pairs + pair;
        if (threadIdx.x == 0) log_probs[at] = log_prob;
        log_ratio[side] = log_prob - reference[at];
        reward[side] = beta * log_ratio[side];
        if (LOSS == IPO) {
            tokens[side] = block_sum_f64(tokens[side], sums);
            if (tokens[side] < 1.0) tokens[side] = 1.0;
            log_ratio[side] /= tokens[side];
        }
    }
    double margin = reward[0] - reward[1], loss, slope;
    if (LOSS == DPO) {
        double small = exp(-fabs(margin));
        loss = (margin < 0.0 ? -margin : 0.0) + log1p(small);
        // By log_ratio[0]: -beta * sigmoid(-margin).
        slope = -beta * (margin < 0.0 ? 1.0 : small) / (1.0 + small);
    } else {
        double distance = log_ratio[0] - log_ratio[1] - 0.5 / beta;
        loss = distance * distance;
        slope = 2.0 * distance;
    }
    double scale = count ? 1.0 / double(*count) : __longlong_as_double(i64(scale_bits));
    // A log-probability is the negative of a loss.
    double of_chosen = -scale * slope, of_rejected = scale * slope;
    if (LOSS == IPO) of_chosen /= tokens[0], of_rejected /= tokens[1];
    for (int t = threadIdx.x; t < len; t += THREADS) {
        factors[first + t] = float(spans[2 * (first + t)] != 0 ? of_rejected : of_chosen);
    }
    if (threadIdx.x == 0) {
        losses[pair] = float(loss);
        correct[pair] = margin > 0.0 ? 1.0f : 0.0f;
        rewards[pair] = float(reward[0]), rewards[pairs + pair] = float(reward[1]);
    }
}
