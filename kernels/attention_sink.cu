// The sinks of attention heads: a sink is a score without a value, so it takes a share of the probabilities.
//
// Definitions: T, HEADS, HEAD_DIM, VEC (elements that a thread moves at once, a divisor of HEAD_DIM), LANES
// (threads per head, a power of two), THREADS (per block).
#include "common.cuh"

constexpr int TEAMS = THREADS / LANES;

// o: [rows, HEADS, HEAD_DIM] and lse: [rows, HEADS], of attention without sinks, become those with sinks
// [HEADS]. A query that sees no key has an lse of -infinity and zeros in o.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_sink(const float *__restrict__ sinks, T *o, float *lse, int rows) {
    int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    i64 at = i64(blockIdx.x) * TEAMS + team;
    bool live = at < i64(rows) * HEADS;
    float before = live ? lse[at] : 0.0f, sink = live ? sinks[at % HEADS] : 0.0f;
    float most = fmaxf(before, sink), share = expf(before - most), total = share + expf(sink - most);
    float factor = share / total;
    T *head = o + at * HEAD_DIM;
    for (int c = lane * VEC; live && c < HEAD_DIM; c += LANES * VEC) {
        float x[VEC];
        load(head + c, x);
#pragma unroll
        for (int i = 0; i < VEC; i++) x[i] *= factor;
        store(head + c, x);
    }
    // All lanes have read it.
    __syncwarp();
    if (live && lane == 0) lse[at] = most + logf(total);
}

// The gradient of a sink is −Σ_rows e^(sink − lse)·Σ o·do. Block b writes the sums over its `run` rows to row
// b of partials [blocks, HEADS]. A team of LANES threads takes a head at a time.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_sink_grad(const T *__restrict__ o, const float *__restrict__ lse, const T *__restrict__ d_o,
                    const float *__restrict__ sinks, float *partials, int rows, int run) {
    int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int first = blockIdx.x * run, count = min(run, rows - first);
    // All teams make the same number of passes, because the lanes of a warp sum together.
    for (int from = 0; from < HEADS; from += TEAMS) {
        int head = min(from + team, HEADS - 1);
        float sink = sinks[head], sum = 0.0f;
        for (int r = first; r < first + count; r++) {
            i64 at = i64(r) * HEADS + head;
            float product = 0.0f;
            for (int c = lane * VEC; c < HEAD_DIM; c += LANES * VEC) {
                float x[VEC], d[VEC];
                load(o + at * HEAD_DIM + c, x);
                load(d_o + at * HEAD_DIM + c, d);
#pragma unroll
                for (int i = 0; i < VEC; i++) product = fmaf(x[i], d[i], product);
            }
            product = warp_reduce<LANES>(product, Add());
            sum = fmaf(-expf(sink - lse[at]), product, sum);
        }
        if (lane == 0 && from + team < HEADS) partials[i64(blockIdx.x) * HEADS + head] = sum;
    }
}
