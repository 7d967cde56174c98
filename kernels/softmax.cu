// Softmax over the keys visible to a query, and its gradient, with one warp per row.
#include "common.cuh"

__device__ __forceinline__ i64 row_of_warp() { return (i64(blockIdx.x) * blockDim.x + threadIdx.x) / WARP; }

// s, p: [batch, heads, length, length]; spans: [batch·length, 2] (first and end of the visible keys), or null
// for the causal mask; lse: [batch·length, heads]. p is zero for masked keys, and may be the same memory as
// s.
extern "C" __global__ void softmax(const T *s, const u32 *spans, T *p, float *lse, int rows, int heads,
                                   int length) {
    i64 row = row_of_warp();
    if (row >= rows) return;
    int lane = threadIdx.x % WARP, query = row % length, head = row / length % heads,
        batch = row / length / heads;
    u32 first = 0, end = query + 1;
    i64 of_query = i64(batch) * length + query;
    if (spans) {
        end = min(spans[2 * of_query + 1], u32(length));
        first = min(spans[2 * of_query], end);
    }
    s += row * length;
    p += row * length;
    float largest = -infinity(), sum = 0.0f;
    for (u32 key = first + lane; key < end; key += WARP) largest = Max()(largest, up(s[key]));
    largest = warp_reduce<WARP>(largest, Max());
    for (u32 key = first + lane; key < end; key += WARP) sum += expf(up(s[key]) - largest);
    sum = warp_sum(sum);
    float inv_sum = 1.0f / sum;
    for (u32 key = lane; key < length; key += WARP) {
        bool visible = first <= key && key < end;
        p[key] = down<T>(visible ? expf(up(s[key]) - largest) * inv_sum : 0.0f);
    }
    if (lane == 0) lse[of_query * heads + head] = largest + logf(sum);
}

// ds = p ⊙ (dp − Σ p ⊙ dp). p, dp, ds: [rows, length]. ds may be the same memory as p or dp.
extern "C" __global__ void softmax_grad(const T *p, const T *dp, T *ds, int rows, int length) {
    i64 row = row_of_warp();
    if (row >= rows) return;
    int lane = threadIdx.x % WARP;
    float mean = 0.0f;
    i64 first = row * length + lane, end = (row + 1) * length;
    for (i64 at = first; at < end; at += WARP) mean = fmaf(up(p[at]), up(dp[at]), mean);
    mean = warp_sum(mean);
    for (i64 at = first; at < end; at += WARP) {
        ds[at] = down<T>(up(p[at]) * (up(dp[at]) - mean));
    }
}
