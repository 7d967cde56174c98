// Attention during generation: one query per sequence attends to a cache of keys and values, to which its own
// are added.
//
// The keys of a sequence are cut into splits of a fixed length. A block takes a split for all query heads (or
// a tile of them) that share a key head, so that keys and values are read once. Each block leaves a partial
// result. The last block to arrive combines the results of all splits in their order, so the bits depend
// neither on which block that is nor on what else is in the batch (as in Flash-Decoding: Dao, Haziza, Massa
// and Sizov, 2023).
//
// Definitions: T, HEAD_DIM, VEC (a divisor of HEAD_DIM), LANES (threads per key, a power of two), QUERIES
// (query heads per tile), THREADS (per block), SOFT_CAP (1: a score s becomes cap·tanh(s / cap)), WINDOW (1:
// a query sees at most `window` keys), SINKS (1: every query head has a sink, a score without a value).
#include "common.cuh"

constexpr int TEAMS = THREADS / LANES;
// Packs of a head that a thread holds.
constexpr int PACKS_PER_THREAD = (HEAD_DIM / VEC + LANES - 1) / LANES;
// Keys that a team handles together. More queries leave registers for fewer keys.
constexpr int KEYS = PACKS_PER_THREAD * VEC > 8 ? 1 : QUERIES > 2 ? 2 : 4;
// Floats in the partial result of a head: outputs, the maximum, the sum of exponentials.
constexpr int PARTIAL = HEAD_DIM + 2;

__device__ __forceinline__ int column(int i) { return (i * LANES + int(threadIdx.x) % LANES) * VEC; }

__device__ __forceinline__ void load_head(const T *head, bool live, Pack<T, VEC> (&to)[PACKS_PER_THREAD]) {
#pragma unroll
    for (int i = 0; i < PACKS_PER_THREAD; i++) {
        to[i] = Pack<T, VEC>{};
        if (live && column(i) < HEAD_DIM) to[i] = *reinterpret_cast<const Pack<T, VEC> *>(head + column(i));
    }
}

// Before the first key, exponentials are relative to 1.
__device__ __forceinline__ float finite(float maximum) { return maximum == -infinity() ? 0.0f : maximum; }

// Returns o from a sum of values and of exponentials relative to `largest`, the largest score.
__device__ __forceinline__ float output(float sum, float all, float largest, const float *sinks, int head) {
    if (!SINKS) return sum / all;
    float most = Max()(largest, sinks[head]), factor = expf(largest - most);
    return sum * factor / fmaf(all, factor, expf(sinks[head] - most));
}

// The results of the teams of a block.
struct Teams {
    float outputs[TEAMS][QUERIES][HEAD_DIM];
    float maxima[TEAMS][QUERIES], totals[TEAMS][QUERIES];
};

// Computes a block's query heads over the keys [first, end). Each team takes keys in turn, with its own
// running maximum and sums. `keys` is the first key of the block's key head; rows are `kept` apart, and a
// value follows its key at `to_value`. The key `own` is read from `own_key`, not from the cache.
__device__ __forceinline__ void attend(const T *queries, int live_queries, const T *keys, int kept,
                                       int to_value, int own, const T *own_key, int first, int end,
                                       float alpha, float soft_cap, Teams &teams) {
    int team = threadIdx.x / LANES;
    float q[QUERIES][PACKS_PER_THREAD][VEC], out[QUERIES][PACKS_PER_THREAD][VEC] = {};
    float running_max[QUERIES], total[QUERIES] = {};
#pragma unroll
    for (int h = 0; h < QUERIES; h++) {
        Pack<T, VEC> packs[PACKS_PER_THREAD];
        load_head(queries + h * HEAD_DIM, h < live_queries, packs);
        running_max[h] = -infinity();
#pragma unroll
        for (int i = 0; i < PACKS_PER_THREAD; i++) {
            unpack(packs[i], q[h][i]);
#pragma unroll
            for (int c = 0; c < VEC; c++) q[h][i][c] *= alpha;
        }
    }
    for (int from = first; from < end; from += TEAMS * KEYS) {
        Pack<T, VEC> k[KEYS][PACKS_PER_THREAD], v[KEYS][PACKS_PER_THREAD];
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            int key = from + n * TEAMS + team;
            const T *at = key == own ? own_key : keys + i64(key) * kept;
            load_head(at, key < end, k[n]);
            load_head(at + to_value, key < end, v[n]);
        }
        float score[QUERIES][KEYS];
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
            float sums[QUERIES] = {};
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                float x[VEC];
                unpack(k[n][i], x);
#pragma unroll
                for (int h = 0; h < QUERIES; h++) {
#pragma unroll
                    for (int c = 0; c < VEC; c++) sums[h] = fmaf(q[h][i][c], x[c], sums[h]);
                }
            }
#pragma unroll
            for (int h = 0; h < QUERIES; h++) {
                float sum = warp_reduce<LANES>(sums[h], Add());
                if (SOFT_CAP) sum = soft_cap * tanhf(sum / soft_cap);
                score[h][n] = from + n * TEAMS + team < end ? sum : -infinity();
            }
        }
#pragma unroll
        for (int h = 0; h < QUERIES; h++) {
            float larger = running_max[h];
#pragma unroll
            for (int n = 0; n < KEYS; n++) larger = Max()(larger, score[h][n]);
            float shift = finite(larger), rescale = expf(running_max[h] - shift);
            running_max[h] = larger;
            total[h] *= rescale;
#pragma unroll
            for (int n = 0; n < KEYS; n++) {
                score[h][n] = expf(score[h][n] - shift);
                total[h] += score[h][n];
            }
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
#pragma unroll
                for (int c = 0; c < VEC; c++) out[h][i][c] *= rescale;
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS; n++) {
#pragma unroll
            for (int i = 0; i < PACKS_PER_THREAD; i++) {
                float x[VEC];
                unpack(v[n][i], x);
#pragma unroll
                for (int h = 0; h < QUERIES; h++) {
#pragma unroll
                    for (int c = 0; c < VEC; c++) out[h][i][c] = fmaf(score[h][n], x[c], out[h][i][c]);
                }
            }
        }
    }
#pragma unroll
    for (int h = 0; h < QUERIES; h++) {
#pragma unroll
        for (int i = 0; i < PACKS_PER_THREAD; i++) {
            if (column(i) < HEAD_DIM) store(&teams.outputs[team][h][column(i)], out[h][i]);
        }
        if (threadIdx.x % LANES == 0) {
            teams.maxima[team][h] = running_max[h];
            teams.totals[team][h] = total[h];
        }
    }
}

// Writes the key and the value of row b to positions[b] of the cache, and computes o = softmax(alpha·q·kᵀ)·v
// over the keys 0 to positions[b], or over the last `window` of them. packed: [batch, (query +
// 2·kv)·HEAD_DIM]; positions: [batch]; o: [batch, query·HEAD_DIM], NaN if a position is beyond the cache;
// cache: [batch, capacity, 2·kv·HEAD_DIM]; arrivals: [batch, query], zero before and after; partials: [batch,
// splits, query, PARTIAL]. In the grid, x counts tiles of query heads (`tiles` per key head), y splits of
// `split` keys, and z sequences.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    cached_attention(const T *packed, const u32 *positions, T *__restrict__ o, T *cache, u32 *arrivals,
                     float *partials, const float *sinks, int query, int kv, u32 capacity, int tiles,
                     int split, float alpha, float soft_cap, int window) {
    __shared__ __align__(16) Teams teams;
    __shared__ bool is_last;
    let_next_begin();
    wait_for_previous();
    int group = query / kv, kept = 2 * kv * HEAD_DIM, batch = blockIdx.z;
    int key_head = blockIdx.x / tiles, in_group = blockIdx.x % tiles * QUERIES;
    int head = key_head * group + in_group, live_queries = min(QUERIES, group - in_group);
    o += (i64(batch) * query + head) * HEAD_DIM;
    u32 position = positions[batch];
    if (position >= capacity) {
        if (blockIdx.y > 0) return;
        for (int c = threadIdx.x; c < live_queries * HEAD_DIM; c += THREADS)
            o[c] = down<T>(infinity() - infinity());
        return;
    }
    // The keys that the query attends to, and the splits that contain them.
    int end = int(position) + 1, first = WINDOW ? max(end - window, 0) : 0;
    int first_split = first / split, active = (end + split - 1) / split - first_split;
    int mine = int(blockIdx.y) - first_split;
    if (mine < 0 || mine >= active) return;
    int begin = max(first, int(blockIdx.y) * split);
    const T *row = packed + i64(batch) * (query * HEAD_DIM + kept);
    const T *own_key = row + (query + key_head) * HEAD_DIM;
    T *keys = cache + i64(batch) * capacity * kept + key_head * HEAD_DIM;
    int to_value = kv * HEAD_DIM;
    // One block per key head writes its new key and value. No block reads them from the cache.
    if (mine == active - 1 && in_group == 0) {
        for (int at = threadIdx.x; at < 2 * HEAD_DIM; at += THREADS) {
            int c = at < HEAD_DIM ? at : at - HEAD_DIM + to_value;
            keys[i64(position) * kept + c] = own_key[c];
        }
    }
    attend(row + head * HEAD_DIM, live_queries, keys, kept, to_value, int(position), own_key, begin,
           min(end, (int(blockIdx.y) + 1) * split), alpha, soft_cap, teams);
    __syncthreads();
    float *partial = partials + ((i64(batch) * gridDim.y + blockIdx.y) * query + head) * PARTIAL;
    for (int at = threadIdx.x; at < live_queries * HEAD_DIM; at += THREADS) {
        int h = at / HEAD_DIM, c = at % HEAD_DIM;
        float largest = -infinity(), sum = 0.0f, all = 0.0f;
        for (int t = 0; t < TEAMS; t++) largest = Max()(largest, teams.maxima[t][h]);
        for (int t = 0; t < TEAMS; t++) {
            float factor = expf(teams.maxima[t][h] - largest);
            sum = fmaf(factor, teams.outputs[t][h][c], sum);
            all = fmaf(factor, teams.totals[t][h], all);
        }
        if (active == 1) {
            o[at] = down<T>(output(sum, all, largest, sinks, head + h));
            continue;
        }
        partial[h * PARTIAL + c] = sum;
        if (c == 0) {
            partial[h * PARTIAL + HEAD_DIM] = largest;
            partial[h * PARTIAL + HEAD_DIM + 1] = all;
        }
    }
    if (active == 1) return;
    // What this block wrote must be visible to others before its arrival is.
    __threadfence();
    __syncthreads();
    u32 *arrived = arrivals + i64(batch) * query + head;
    if (threadIdx.x == 0) is_last = atomicAdd(arrived, 1u) == u32(active - 1);
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *arrived = 0;
    // Volatile, because other blocks wrote it while this one ran.
    const volatile float *all_partials =
        partials + ((i64(batch) * gridDim.y + first_split) * query + head) * PARTIAL;
    i64 apart = i64(query) * PARTIAL;
    for (int at = threadIdx.x; at < live_queries * HEAD_DIM; at += THREADS) {
        const volatile float *of_head = all_partials + at / HEAD_DIM * PARTIAL;
        float largest = -infinity(), sum = 0.0f, all = 0.0f;
        for (int s = 0; s < active; s++) largest = Max()(largest, of_head[s * apart + HEAD_DIM]);
        for (int s = 0; s < active; s++) {
            float factor = expf(of_head[s * apart + HEAD_DIM] - largest);
            sum = fmaf(factor, of_head[s * apart + at % HEAD_DIM], sum);
            all = fmaf(factor, of_head[s * apart + HEAD_DIM + 1], all);
        }
        o[at] = down<T>(output(sum, all, largest, sinks, head + at / HEAD_DIM));
    }
}
