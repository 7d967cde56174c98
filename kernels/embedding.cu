// Token embedding, and its gradient in three steps. Positions are sorted by token. Pieces of PIECE sorted
// positions are summed, which completes runs of a token inside a piece. Runs that cross pieces are joined. So
// a frequent token is spread over many blocks, and the order of every sum follows from the tokens alone.
//
// If ranks divide the gradient, each sorts and sums what belongs to the elements that it owns, and reads the
// rows of other ranks in their memory.
//
// Definitions: T, VEC (elements that a thread moves at once), THREADS (per block, at most), PIECE, OWNED (1
// if ranks divide the gradient, else 0); for the sort: SORT_WARPS (in its block), DIGIT_BITS, CLEAR_STORES
// (16-byte stores per thread of a block that clears).
#include "common.cuh"

// x[n, d] = w[tokens[n], d], with one warp per row.
extern "C" __global__ void __launch_bounds__(THREADS)
embedding(const u32 *__restrict__ tokens, const T *__restrict__ w, T *__restrict__ x, int n, int d) {
    int r = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (r >= n) return;
    const T *from = w + i64(tokens[r]) * d;
    T *to = x + i64(r) * d;
#pragma unroll 4
    for (int c = threadIdx.x % WARP * VEC; c < d; c += WARP * VEC) {
        *reinterpret_cast<Pack<T, VEC> *>(to + c) = *reinterpret_cast<const Pack<T, VEC> *>(from + c);
    }
}

// The elements of dw that the rank owns: two ranges between multiples of 8, possibly empty. Without OWNED
// they only say what to clear.
struct Owned {
    u64 begin[2], end[2];
    __device__ __forceinline__ bool has(u64 at) const {
        return !OWNED || (at >= begin[0] && at < end[0]) || (at >= begin[1] && at < end[1]);
    }
    // True if the rank owns any element of a row of d elements.
    __device__ __forceinline__ bool has_some_of(u32 row, int d) const {
        u64 first = u64(row) * d, last = first + d;
        return !OWNED || (last > begin[0] && first < end[0]) || (last > begin[1] && first < end[1]);
    }
};

constexpr int DIGITS = 1 << DIGIT_BITS;
constexpr int SORT_BATCH = 8; // Tokens that a thread has in flight.

struct Sorting {
    u32 counts[SORT_WARPS][DIGITS]; // Count of each digit per warp, then the offset of its next position.
    u32 totals[DIGITS / WARP];
    int sorted; // Positions that were counted.
};

// Turns counts into offsets, ordered by digit and then by warp.
__device__ void find_offsets(Sorting &s) {
    int digit = threadIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 all = 0, up_to = 0;
    if (digit < DIGITS) {
        for (int w = 0; w < SORT_WARPS; w++) {
            u32 count = s.counts[w][digit];
            s.counts[w][digit] = all;
            all += count;
        }
        up_to = all;
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            u32 before = __shfl_up_sync(FULL_WARP, up_to, step);
            if (lane >= step) up_to += before;
        }
        if (lane == WARP - 1) s.totals[warp] = up_to;
    }
    __syncthreads();
    if (digit < DIGITS) {
        u32 start = up_to - all;
        for (int w = 0; w < warp; w++) start += s.totals[w];
        for (int w = 0; w < SORT_WARPS; w++) s.counts[w][digit] += start;
        if (digit == DIGITS - 1) s.sorted = start + all;
    }
    __syncthreads();
}

// The layout of a batch whose sequences were distributed to ranks round-robin: the rows of rank 0, then of
// rank 1, and so on.
struct RankInterleaved {
    int ranks, sequence, rows_of_rank;
    // The index in memory of a row of the global batch.
    __device__ __forceinline__ int index(int row) const {
        if (ranks == 1) return row;
        int s = row / sequence;
        return s % ranks * rows_of_rank + s / ranks * sequence + row % sequence;
    }
};

// Moves positions from `from` to `to`, stably sorted by one digit of their tokens. If `from` is null, it
// takes the order of the batch, without tokens whose rows the rank does not own at all. With `sorted`, also
// writes the tokens. Each warp takes a contiguous chunk.
__device__ void sort_by_digit(Sorting &s, const u32 *tokens, const u32 *from, u32 *to, u32 *sorted, int n,
                              int d, int shift, const RankInterleaved &layout, const Owned &owned) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int chunk = (n + SORT_WARPS * WARP - 1) / (SORT_WARPS * WARP) * WARP;
    int begin = min(n, warp * chunk), end = min(n, begin + chunk);
    for (int i = threadIdx.x; i < SORT_WARPS * DIGITS; i += blockDim.x) s.counts[i / DIGITS][i % DIGITS] = 0;
    __syncthreads();
    // Counts are integers, so any order gives the same counts.
#pragma unroll SORT_BATCH
    for (int i = begin + lane; i < end; i += WARP) {
        u32 token = tokens[from ? from[i] : layout.index(i)];
        bool counts = from || owned.has_some_of(token, d);
        if (counts) atomicAdd(&s.counts[warp][token >> shift & (DIGITS - 1)], 1u);
    }
    __syncthreads();
    find_offsets(s);
    u32 *offsets = s.counts[warp];
    for (int base = begin; base < end; base += SORT_BATCH * WARP) {
        u32 position[SORT_BATCH], token[SORT_BATCH];
#pragma unroll
        for (int b = 0; b < SORT_BATCH; b++) {
            int i = base + b * WARP + lane;
            position[b] = i >= end ? 0 : from ? from[i] : layout.index(i);
            token[b] = tokens[position[b]];
        }
#pragma unroll
        for (int b = 0; b < SORT_BATCH; b++) {
            bool active = base + b * WARP + lane < end && (from || owned.has_some_of(token[b], d));
            u32 digit = active ? token[b] >> shift & (DIGITS - 1) : DIGITS;
            u32 peers = __match_any_sync(FULL_WARP, digit);
            int rank = __popc(peers & ((1u << lane) - 1));
            u32 first = active ? offsets[digit] : 0;
            __syncwarp();
            if (active && rank == 0) offsets[digit] = first + __popc(peers);
            __syncwarp();
            if (!active) continue;
            to[first + rank] = position[b];
            if (sorted) sorted[first + rank] = token[b];
        }
    }
    __syncthreads();
}

constexpr int SORT_THREADS = SORT_WARPS * WARP;

// Block 0 writes order[n], the positions sorted by token, and sorted[n], their tokens, in `passes` passes
// over the digits of a token; spare[n] is scratch. Rows of several ranks are sorted in the order of the
// global batch. With OWNED, only positions are sorted whose token has a row that the rank owns at least in
// part, and *count is their number. Meanwhile the other blocks clear the rank's part of dw, which takes
// longer.
extern "C" __global__ void __launch_bounds__(SORT_THREADS)
embedding_sort(const u32 *tokens, u32 *order, u32 *sorted, u32 *spare, u32 *count, float *dw, int n, int d,
               int passes, int ranks, int sequence, u64 begin0, u64 end0, u64 begin1, u64 end1) {
    __shared__ Sorting s;
    Owned owned = {{begin0, begin1}, {end0, end1}};
    if (blockIdx.x == 0) {
        RankInterleaved layout = {ranks, sequence, n / ranks};
        const u32 *from = nullptr;
        for (int pass = 0; pass < passes; pass++) {
            // Back and forth, so that the last pass ends in `order`.
            u32 *to = (passes - 1 - pass) % 2 == 0 ? order : spare;
            sort_by_digit(s, tokens, from, to, pass + 1 == passes ? sorted : nullptr, n, d,
                          pass * DIGIT_BITS, layout, owned);
            from = to;
            if (OWNED) n = s.sorted;
        }
        if (OWNED && threadIdx.x == 0) *count = n;
        return;
    }
    u64 at = (u64(blockIdx.x - 1) * CLEAR_STORES * SORT_THREADS + threadIdx.x) * 4, first = end0 - begin0;
    float zero[4] = {};
#pragma unroll
    for (int i = 0; i < CLEAR_STORES; i++, at += SORT_THREADS * 4) {
        // The second range follows the first; without OWNED there is only the first.
        bool in_first = !OWNED || at < first;
        u64 to = in_first ? begin0 + at : begin1 + (at - first), end = in_first ? end0 : end1;
        if (to + 4 <= end) {
            store(dw + to, zero);
        } else {
            for (u64 rest = to; rest < end; rest++) dw[rest] = 0.0f;
        }
    }
}

constexpr int BATCH = 8; // Rows in flight.
constexpr u32 NONE = 0xffffffffu;

// The addresses at which this rank reads the rows of each rank.
struct Rows {
    const T *of[8];
    // The row at a position among the rows of all ranks.
    __device__ __forceinline__ const T *at(u32 position, int per_rank, int d) const {
        if (!OWNED) return of[0] + i64(position) * d;
        return of[position / per_rank] + i64(position % per_rank) * d;
    }
};

// Sums the rows dy[·, d] of the sorted positions of a piece, run by run. A run inside the piece goes to its
// row of dw[V, d] (+= if `adds`). A run that began in an earlier piece goes to edges[2·piece, d]; a run that
// begins here and continues in the next piece goes to edges[2·piece + 1, d]. With OWNED there are *sorted_n
// positions, and a rank writes only its own elements of dw.
extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_sum(const u32 *order, const u32 *sorted, const u32 *sorted_n, const __grid_constant__ Rows dy,
                  float *dw, float *edges, int n, int d, int adds, int per_rank, u64 begin0, u64 end0,
                  u64 begin1, u64 end1) {
    __shared__ u32 positions[PIECE], tokens[PIECE + 2]; // Tokens with both neighbors.
    Owned owned = {{begin0, begin1}, {end0, end1}};
    if (OWNED) n = *sorted_n;
    int piece = blockIdx.x, begin = piece * PIECE, count = min(PIECE, n - begin);
    if (OWNED && count <= 0) return;
    if (threadIdx.x < count) {
        positions[threadIdx.x] = order[begin + threadIdx.x];
        tokens[threadIdx.x + 1] = sorted[begin + threadIdx.x];
    }
    if (threadIdx.x == 0) {
        tokens[0] = begin > 0 ? sorted[begin - 1] : NONE;
        tokens[count + 1] = begin + count < n ? sorted[begin + count] : NONE;
    }
    __syncthreads();
    for (int c = threadIdx.x * VEC; c < d; c += blockDim.x * VEC) {
        float sum[VEC] = {};
        bool first_run = true;
        for (int first = 0; first < count; first += BATCH) {
            Pack<T, VEC> rows[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                if (first + b >= count) continue;
                const T *row = dy.at(positions[first + b], per_rank, d);
                rows[b] = *reinterpret_cast<const Pack<T, VEC> *>(row + c);
            }
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                int i = first + b;
                if (i >= count) continue;
                float row[VEC];
                unpack(rows[b], row);
#pragma unroll
                for (int k = 0; k < VEC; k++) sum[k] += row[k];
                u32 token = tokens[i + 1], next = tokens[i + 2];
                if (token == next && i + 1 < count) continue;
                // The run ends here, or at least the piece does.
                bool began_before = first_run && tokens[0] == token;
                if (began_before || token == next) {
                    store(edges + (2 * i64(piece) + (began_before ? 0 : 1)) * d + c, sum);
                } else if (owned.has(u64(token) * d + c)) {
                    float *to = dw + i64(token) * d + c;
                    float old[VEC] = {};
                    if (adds) load(to, old);
#pragma unroll
                    for (int k = 0; k < VEC; k++) old[k] += sum[k];
                    store(to, old);
                }
#pragma unroll
                for (int k = 0; k < VEC; k++) sum[k] = 0.0f;
                first_run = false;
            }
        }
    }
}

// Handles each piece in which a run begins that continues beyond it: sums the parts of the run in their order
// into its row of dw[V, d] (+= if `adds`). OWNED has the same meaning as above.
extern "C" __global__ void __launch_bounds__(THREADS)
embedding_join(const u32 *sorted, const u32 *sorted_n, const float *edges, float *dw, int n, int d, int adds,
               u64 begin0, u64 end0, u64 begin1, u64 end1) {
    Owned owned = {{begin0, begin1}, {end0, end1}};
    if (OWNED) n = *sorted_n;
    int piece = blockIdx.x, begin = piece * PIECE, end = begin + PIECE;
    if (end >= n) return;
    u32 token = sorted[end - 1];
    bool began_before = begin > 0 && sorted[begin - 1] == token;
    if (began_before || sorted[end] != token) return;
    // Each warp counts the later pieces that begin with the token.
    int parts = 0, lane = threadIdx.x % WARP;
    for (;;) {
        i64 start = (i64(piece) + 1 + parts + lane) * PIECE;
        u32 others = ~__ballot_sync(FULL_WARP, start < n && sorted[start] == token);
        if (others != 0) {
            parts += __ffs(others) - 1;
            break;
        }
        parts += WARP;
    }
    for (int c = threadIdx.x * VEC; c < d; c += blockDim.x * VEC) {
        if (!owned.has(u64(token) * d + c)) continue;
        float sum[VEC], part[VEC];
        load(edges + (2 * i64(piece) + 1) * d + c, sum);
#pragma unroll 4
        for (int p = 1; p <= parts; p++) {
            load(edges + 2 * i64(piece + p) * d + c, part);
#pragma unroll
            for (int k = 0; k < VEC; k++) sum[k] += part[k];
        }
        float *to = dw + i64(token) * d + c;
        if (adds) {
            load(to, part);
#pragma unroll
            for (int k = 0; k < VEC; k++) sum[k] += part[k];
        }
        store(to, sum);
    }
}
