// Generation: new keys and values appended to a cache, and attention of one query per sequence over it.
//
// Definitions: T, HEAD_DIM, VEC (a divisor of it), LANES (threads per key, a power of two), THREADS (per
// block of cached_attention), SOFT_CAP (1: a score s becomes cap·tanh(s / cap)), WINDOW (1: a query sees at
// most `window` keys).
#include "common.cuh"

constexpr int TEAMS = THREADS / LANES;
// Packs of a head that a thread holds.
constexpr int PACKS_PER_THREAD = (HEAD_DIM / VEC + LANES - 1) / LANES;
// Keys that a team handles together.
constexpr int KEYS = PACKS_PER_THREAD * VEC <= 8 ? 4 : 1;

// cache[b, positions[b]] = keys and values of row b. packed: [batch, (query + 2·kv)·HEAD_DIM]; positions:
// [batch]; cache: [batch, capacity, 2·kv·HEAD_DIM]. Rows beyond the capacity are dropped.
extern "C" __global__ void cache_append(const T *__restrict__ packed, const u32 *__restrict__ positions,
                                        T *__restrict__ cache, int query, int kv, u32 capacity) {
    int batch = blockIdx.x, kept = 2 * kv * HEAD_DIM;
    if (positions[batch] >= capacity) return;
    const T *from = packed + i64(batch) * (query * HEAD_DIM + kept) + query * HEAD_DIM;
    T *to = cache + (i64(batch) * capacity + positions[batch]) * kept;
    for (int at = threadIdx.x * VEC; at < kept; at += blockDim.x * VEC) {
        *reinterpret_cast<Pack<T, VEC> *>(to + at) = *reinterpret_cast<const Pack<T, VEC> *>(from + at);
    }
}

__device__ __forceinline__ int column(int i) { return (i * LANES + int(threadIdx.x) % LANES) * VEC; }

__device__ __forceinline__ void load_head(const T *head, bool live, Pack<T, VEC> (&to)[PACKS_PER_THREAD]) {
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        to[i] = Pack<T, VEC>{};
        if (live && column(i) < HEAD_DIM) to[i] = *reinterpret_cast<const Pack<T, VEC> *>(head + column(i));
    }
}

// o = softmax(alpha·q·kᵀ)·v over the keys 0 to positions[b], or the last `window` of them. packed: [batch, (query + 2·kv)·HEAD_DIM]; cache:
// [batch, capacity, 2·kv·HEAD_DIM]; positions: [batch]; o: [batch, query·HEAD_DIM], NaN where a position is
// beyond the cache. Blocks: x counts query heads, y sequences. Teams of threads take keys in turn, each with
// its own running maximum and sums.
extern "C" __global__ void __launch_bounds__(THREADS)
    cached_attention(const T *__restrict__ packed, const T *__restrict__ cache,
                     const u32 *__restrict__ positions, T *__restrict__ o, int query, int kv, u32 capacity,
                     float alpha, float soft_cap, int window) {
    __shared__ __align__(16) float outputs[TEAMS][HEAD_DIM];
    __shared__ float maxima[TEAMS], totals[TEAMS];
    int head = blockIdx.x, batch = blockIdx.y, team = threadIdx.x / LANES, kept = 2 * kv * HEAD_DIM;
    o += (i64(batch) * query + head) * HEAD_DIM;
    if (positions[batch] >= capacity) {
        for (int c = threadIdx.x; c < HEAD_DIM; c += THREADS) o[c] = down<T>(infinity() - infinity());
        return;
    }
    int key_count = positions[batch] + 1, first = WINDOW ? max(key_count - window, 0) : 0;
    const T *keys = cache + i64(batch) * capacity * kept + head / (query / kv) * HEAD_DIM;
    Pack<T, VEC> packs[PACKS_PER_THREAD];
    load_head(packed + i64(batch) * (query * HEAD_DIM + kept) + head * HEAD_DIM, true, packs);
    float q[PACKS_PER_THREAD][VEC], out[PACKS_PER_THREAD][VEC] = {}, running_max = -infinity(), total = 0.0f;
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        unpack(packs[i], q[i]);
#pragma unroll
        for (int c = 0; c < VEC; c++) q[i][c] *= alpha;
    }
    for (int from = first; from < key_count; from += TEAMS * KEYS) {
        Pack<T, VEC> k[KEYS][PACKS_PER_THREAD], v[KEYS][PACKS_PER_THREAD];
        float score[KEYS], shift = running_max;
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            int key = from + n * TEAMS + team;
            load_head(keys + i64(key) * kept, key < key_count, k[n]);
            load_head(keys + i64(key) * kept + kv * HEAD_DIM, key < key_count, v[n]);
        }
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                float x[VEC];
                unpack(k[n][i], x);
#pragma unroll
                for (int c = 0; c < VEC; c++) sum = fmaf(q[i][c], x[c], sum);
            }
            sum = warp_reduce<LANES>(sum, Add());
            if (SOFT_CAP) sum = soft_cap * tanhf(sum / soft_cap);
            score[n] = from + n * TEAMS + team < key_count ? sum : -infinity();
            shift = Max()(shift, score[n]);
        }
        // Without a key yet there is nothing to rescale, and a difference of infinities to avoid.
        if (shift == -infinity()) continue;
        float rescale = expf(running_max - shift);
        running_max = shift;
        total *= rescale;
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            float p = expf(score[n] - shift);
            total += p;
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                float x[VEC];
                unpack(v[n][i], x);
#pragma unroll
                for (int c = 0; c < VEC; c++)
                    out[i][c] = fmaf(p, x[c], n == 0 ? out[i][c] * rescale : out[i][c]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        if (column(i) < HEAD_DIM) store(&outputs[team][column(i)], out[i]);
    }
    if (threadIdx.x % LANES == 0) {
        maxima[team] = running_max;
        totals[team] = total;
    }
    __syncthreads();
    float overall_max = -infinity();
    for (int t = 0; t < TEAMS; t++) overall_max = Max()(overall_max, maxima[t]);
    for (int c = threadIdx.x; c < HEAD_DIM; c += THREADS) {
        float sum = 0.0f, all = 0.0f;
        for (int t = 0; t < TEAMS; t++) {
            float factor = expf(maxima[t] - overall_max);
            sum = fmaf(factor, outputs[t][c], sum);
            all = fmaf(factor, totals[t], all);
        }
        o[c] = down<T>(sum / all);
    }
}
