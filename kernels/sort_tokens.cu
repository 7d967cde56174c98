// Sorts positions by token, with a stable radix sort. A pass sorts by one digit of the tokens, in two
// kernels: every block counts the digits in its chunk of positions, then moves the positions to where the
// counts of all blocks say.
//
// Definitions: OWNED (1 if only tokens count whose row in a table the rank owns at least in part, else 0),
// DIGIT_BITS.
#include "owned.cuh"

constexpr int DIGITS = 1 << DIGIT_BITS;
constexpr int WARPS = DIGITS / WARP; // A block has one thread per digit.
constexpr int BATCH = 4;             // Tokens that a thread has in flight.

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

// What a pass sorts: the positions that the pass before has written to `from`. The first pass (`from` is
// null) takes all positions in the order of the batch, but with OWNED leaves tokens out whose rows the rank
// does not own at all.
struct Pass {
    const u32 *tokens, *from;
    int n, d, shift;
    RankInterleaved layout;
    Owned owned;
    __device__ __forceinline__ u32 position(int i) const { return from ? from[i] : layout.index(i); }
    __device__ __forceinline__ bool takes(u32 token) const { return from || owned.has_some_of(token, d); }
    __device__ __forceinline__ u32 digit(u32 token) const { return token >> shift & (DIGITS - 1); }
};

// counts[block, digit]: how often each digit occurs in chunk `block`. With OWNED, passes after the first have
// *sorted_n positions.
extern "C" __global__ void __launch_bounds__(DIGITS)
count_digits(const u32 *tokens, const u32 *from, const u32 *sorted_n, u32 *counts, int n, int chunk, int d,
             int shift, int ranks, int sequence, u64 begin0, u64 end0, u64 begin1, u64 end1) {
    __shared__ u32 found[DIGITS];
    RankInterleaved layout = {ranks, sequence, n / ranks};
    if (OWNED && from) n = *sorted_n;
    Pass pass = {tokens, from, n, d, shift, layout, {{begin0, begin1}, {end0, end1}}};
    found[threadIdx.x] = 0;
    __syncthreads();
    int begin = blockIdx.x * chunk, end = min(n, begin + chunk);
    // Counts are integers, so any order gives the same counts.
#pragma unroll BATCH
    for (int i = begin + threadIdx.x; i < end; i += DIGITS) {
        u32 token = tokens[pass.position(i)];
        if (pass.takes(token)) atomicAdd(&found[pass.digit(token)], 1u);
    }
    __syncthreads();
    counts[blockIdx.x * DIGITS + threadIdx.x] = found[threadIdx.x];
}

// Moves positions to `to`, sorted by the digit that count_digits has counted with the same arguments. With
// `sorted`, also writes their tokens. The first pass writes the number of positions to *sorted_n if OWNED.
extern "C" __global__ void __launch_bounds__(DIGITS)
move_by_digit(const u32 *tokens, const u32 *from, u32 *sorted_n, const u32 *counts, u32 *to, u32 *sorted,
              int n, int chunk, int d, int shift, int ranks, int sequence, u64 begin0, u64 end0, u64 begin1,
              u64 end1) {
    // Count of each digit per warp, then the offset of its next position.
    __shared__ u32 offsets[WARPS][DIGITS], totals[WARPS];
    RankInterleaved layout = {ranks, sequence, n / ranks};
    if (OWNED && from) n = *sorted_n;
    Pass pass = {tokens, from, n, d, shift, layout, {{begin0, begin1}, {end0, end1}}};
    int digit = threadIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 all = 0, before = 0; // Positions with the digit in all chunks, and in those before this one.
#pragma unroll 8
    for (int block = 0; block < gridDim.x; block++) {
        u32 count = counts[block * DIGITS + digit];
        if (block < blockIdx.x) before += count;
        all += count;
    }
    u32 up_to = all;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        u32 lower = __shfl_up_sync(FULL_WARP, up_to, step);
        if (lane >= step) up_to += lower;
    }
    if (lane == WARP - 1) totals[warp] = up_to;
    for (int w = 0; w < WARPS; w++) offsets[w][digit] = 0;
    __syncthreads();
    u32 start = up_to - all + before;
    for (int w = 0; w < warp; w++) start += totals[w];
    if (OWNED && !from && blockIdx.x == 0 && digit == DIGITS - 1) *sorted_n = start + all;

    // Each warp takes a contiguous part of the chunk.
    int part = chunk / WARPS, begin = min(n, int(blockIdx.x) * chunk + warp * part);
    int end = min(n, begin + part);
#pragma unroll BATCH
    for (int i = begin + lane; i < end; i += WARP) {
        u32 token = tokens[pass.position(i)];
        if (pass.takes(token)) atomicAdd(&offsets[warp][pass.digit(token)], 1u);
    }
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        u32 count = offsets[w][digit];
        offsets[w][digit] = start;
        start += count;
    }
    __syncthreads();
    for (int base = begin; base < end; base += BATCH * WARP) {
        u32 position[BATCH], token[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = base + b * WARP + lane;
            position[b] = i < end ? pass.position(i) : 0;
            token[b] = tokens[position[b]];
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            bool active = base + b * WARP + lane < end && pass.takes(token[b]);
            u32 own = active ? pass.digit(token[b]) : DIGITS;
            u32 peers = __match_any_sync(FULL_WARP, own);
            int rank = __popc(peers & ((1u << lane) - 1));
            u32 first = active ? offsets[warp][own] : 0;
            __syncwarp();
            if (active && rank == 0) offsets[warp][own] = first + __popc(peers);
            __syncwarp();
            if (!active) continue;
            to[first + rank] = position[b];
            if (sorted) sorted[first + rank] = token[b];
        }
    }
}

// ends[vocabulary]: the number of the n sorted tokens up to each token.
extern "C" __global__ void __launch_bounds__(DIGITS)
find_ends(const u32 *sorted, u32 *ends, int n, int vocabulary) {
    u32 token = blockIdx.x * DIGITS + threadIdx.x;
    if (token >= vocabulary) return;
    int low = 0, high = n;
    while (low < high) {
        int middle = (low + high) / 2;
        if (sorted[middle] <= token) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    ends[token] = low;
}
