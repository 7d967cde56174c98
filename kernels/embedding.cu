// Token embedding, and its gradient, which reads positions sorted by token (sort_tokens.cu). Pieces of PIECE
// sorted positions are summed, which completes runs of a token inside a piece. Runs that cross pieces are
// joined. So a frequent token is spread over many blocks, and the order of every sum follows from the tokens
// alone.
//
// If ranks divide the gradient, each sums what belongs to the elements that it owns, and reads the rows of
// other ranks in their memory.
//
// Definitions: T, VEC (elements that a thread moves at once), THREADS (per block, at most), PIECE, CLEARED
// (rows that a block clears, at most WARP), OWNED (1 if ranks divide the gradient, else 0).
#include "owned.cuh"

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

// Clears the rows of dw[vocabulary, d] among CLEARED, from row `first` on, whose tokens do not occur: ends[v]
// is the number of sorted tokens up to v. The other rows are written anyway.
__device__ __forceinline__ void clear_rows(const u32 *ends, float *dw, int first, int vocabulary, int d) {
    constexpr int WIDTH = VEC < 4 ? VEC : 4;
    int own = first + threadIdx.x % WARP;
    bool absent = own < min(first + CLEARED, vocabulary) && ends[own] == (own > 0 ? ends[own - 1] : 0);
    float zero[WIDTH] = {};
    for (u32 left = __ballot_sync(FULL_WARP, absent); left != 0; left &= left - 1) {
        float *row = dw + i64(first + __ffs(left) - 1) * d;
#pragma unroll 2
        for (int c = threadIdx.x * WIDTH; c < d; c += blockDim.x * WIDTH) store(row + c, zero);
    }
}

// Sums the rows dy[·, d] of the sorted positions of a piece, run by run. A run inside the piece goes to its
// row of dw[V, d] (+= if `adds`). A run that began in an earlier piece goes to edges[2·piece, d]; a run that
// begins here and continues in the next piece goes to edges[2·piece + 1, d]. Blocks beyond the pieces clear
// rows meanwhile. With OWNED there are *sorted_n positions, a rank writes only its own elements of dw, and
// those of tokens that do not occur are clear already.
extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_sum(const u32 *order, const u32 *sorted, const u32 *sorted_n, const u32 *ends,
                  const __grid_constant__ Rows dy, float *dw, float *edges, int n, int vocabulary, int d,
                  int adds, int per_rank, u64 begin0, u64 end0, u64 begin1, u64 end1) {
    int pieces = (n + PIECE - 1) / PIECE;
    if (!OWNED && blockIdx.x >= pieces) {
        clear_rows(ends, dw, (blockIdx.x - pieces) * CLEARED, vocabulary, d);
        return;
    }
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
