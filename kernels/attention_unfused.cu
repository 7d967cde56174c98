// The products of unfused attention, with its length × length matrices in memory: scores, values, and their
// gradients.
//
// This is a reference for flash attention, not an alternative: fp32 products in tiles of shared memory. In
// the grid, x counts tiles, y heads of packed rows, and z sequences.
//
// Definitions: T, SIDE (rows and columns of a tile), SPREAD (threads along each side of a tile).
#include "common.cuh"

// Products sum DEPTH terms at a time. A thread holds EACH × EACH elements of a tile, SPREAD apart.
constexpr int DEPTH = 16, EACH = SIDE / SPREAD;

// Heads of packed rows [N, (query + 2·kv)·dim], and the length of a sequence.
struct Shape {
    int query, kv, dim, length;

    __device__ int width() const { return (query + 2 * kv) * dim; }
    // Offset of a head of a sequence among all heads of packed rows.
    __device__ i64 head(int batch, int head) const { return i64(batch) * length * width() + head * dim; }
    // Offset of the matrix of a query head.
    __device__ i64 square(int batch, int head) const { return (i64(batch) * query + head) * length * length; }
    // Offset of a head of [N, query·dim].
    __device__ i64 output(int batch, int head) const {
        return i64(batch) * length * query * dim + head * dim;
    }
    __device__ int key_of(int head) const { return query + head / (query / kv); }
    __device__ int value_of(int head) const { return key_of(head) + kv; }
};

// A factor: element (i, j) lies at i·row + j·column. One of the two strides is 1.
struct Matrix {
    const T *data;
    i64 row, column;
};
__device__ __forceinline__ Matrix rows(const T *data, i64 stride) { return {data, stride, 1}; }
__device__ __forceinline__ Matrix transposed(const T *data, i64 stride) { return {data, 1, stride}; }

// The tile of an output [m, n] that this block computes.
struct Tile {
    int m, n, top, left;
    float sum[EACH][EACH] = {};

    __device__ Tile(int m, int n) : m(m), n(n) {
        int across = (n + SIDE - 1) / SIDE;
        top = blockIdx.x / across * SIDE;
        left = blockIdx.x % across * SIDE;
    }
    __device__ bool empty() const { return top >= m; }

    // Loads part of a factor whose rows are summed over: to[k][i] = a[first + i, from + k].
    static __device__ void fetch(const Matrix &a, int first, int end, int from, int depth,
                                 float (&to)[DEPTH][SIDE + 1]) {
        for (int at = threadIdx.x; at < SIDE * DEPTH; at += blockDim.x) {
            // Neighboring threads read neighbors in memory.
            int i = a.column == 1 ? at / DEPTH : at % SIDE, k = a.column == 1 ? at % DEPTH : at / SIDE;
            bool inside = first + i < end && from + k < depth;
            to[k][i] = inside ? up(a.data[(first + i) * a.row + (from + k) * a.column]) : 0.0f;
        }
    }

    // sum += a·bᵀ with a [m, depth] and b [n, depth].
    __device__ void add_product(const Matrix &a, const Matrix &b, int depth) {
        __shared__ float left_part[DEPTH][SIDE + 1], right_part[DEPTH][SIDE + 1];
        int below = threadIdx.x / SPREAD, across = threadIdx.x % SPREAD;
        for (int from = 0; from < depth; from += DEPTH) {
            __syncthreads();
            fetch(a, top, m, from, depth, left_part);
            fetch(b, left, n, from, depth, right_part);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                float x[EACH], y[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    x[i] = left_part[k][below + i * SPREAD];
                    y[i] = right_part[k][across + i * SPREAD];
                }
#pragma unroll
                for (int i = 0; i < EACH; i++) {
#pragma unroll
                    for (int j = 0; j < EACH; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
                }
            }
        }
    }

    // Stores alpha·sum into a matrix whose rows are `stride` apart.
    __device__ void put(T *to, i64 stride, float alpha) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                int r = top + threadIdx.x / SPREAD + i * SPREAD, c = left + threadIdx.x % SPREAD + j * SPREAD;
                if (r < m && c < n) to[r * stride + c] = down<T>(alpha * sum[i][j]);
            }
        }
    }
};

// s = alpha·q·kᵀ for every query head. packed: [N, width]; s: [batch, query, length, length].
extern "C" __global__ void __launch_bounds__(SPREAD *SPREAD)
    attention_scores(const T *packed, T *s, int query, int kv, int dim, int length, float alpha) {
    Shape shape = {query, kv, dim, length};
    int batch = blockIdx.z, h = blockIdx.y;
    Tile tile(length, length);
    Matrix q = rows(packed + shape.head(batch, h), shape.width());
    Matrix k = rows(packed + shape.head(batch, shape.key_of(h)), shape.width());
    tile.add_product(q, k, dim);
    tile.put(s + shape.square(batch, h), length, alpha);
}

// dq = alpha·ds·k and dk = alpha·Σ dsᵀ·q over the query heads of a key head; zeros for values. packed,
// d_packed: [N, width]; ds: [batch, query, length, length].
extern "C" __global__ void __launch_bounds__(SPREAD *SPREAD)
    attention_scores_grad(const T *packed, const T *ds, T *d_packed, int query, int kv, int dim, int length,
                          float alpha) {
    Shape shape = {query, kv, dim, length};
    int batch = blockIdx.z, head = blockIdx.y, width = shape.width();
    Tile tile(length, dim);
    if (head < query) {
        Matrix k = transposed(packed + shape.head(batch, shape.key_of(head)), width);
        tile.add_product(rows(ds + shape.square(batch, head), length), k, length);
    } else if (head < query + kv) {
        int group = query / kv;
        for (int h = (head - query) * group; h < (head - query + 1) * group; h++) {
            Matrix q = transposed(packed + shape.head(batch, h), width);
            tile.add_product(transposed(ds + shape.square(batch, h), length), q, length);
        }
    }
    tile.put(d_packed + shape.head(batch, head), width, alpha);
}

// o = p·v for every query head. p: [batch, query, length, length]; packed: [N, width]; o: [N, query·dim].
extern "C" __global__ void __launch_bounds__(SPREAD *SPREAD)
    attention_values(const T *p, const T *packed, T *o, int query, int kv, int dim, int length) {
    Shape shape = {query, kv, dim, length};
    int batch = blockIdx.z, h = blockIdx.y;
    Tile tile(length, dim);
    Matrix v = transposed(packed + shape.head(batch, shape.value_of(h)), shape.width());
    tile.add_product(rows(p + shape.square(batch, h), length), v, length);
    tile.put(o + shape.output(batch, h), i64(query) * dim, 1.0f);
}

// dp = do·vᵀ and dv = Σ pᵀ·do over the query heads of a value head; zeros for queries and keys. p, dp:
// [batch, query, length, length]; packed, d_packed: [N, width]; d_o: [N, query·dim].
extern "C" __global__ void __launch_bounds__(SPREAD *SPREAD)
    attention_values_grad(const T *p, const T *packed, const T *d_o, T *dp, T *d_packed, int query, int kv,
                          int dim, int length) {
    Shape shape = {query, kv, dim, length};
    int batch = blockIdx.z, head = blockIdx.y, width = shape.width();
    i64 o_width = i64(query) * dim;
    Tile gradient(length, dim);
    if (head >= query && gradient.empty()) return;
    if (head >= query + kv) {
        int group = query / kv;
        for (int h = (head - query - kv) * group; h < (head - query - kv + 1) * group; h++) {
            Matrix d_out = transposed(d_o + shape.output(batch, h), o_width);
            gradient.add_product(transposed(p + shape.square(batch, h), length), d_out, length);
        }
    }
    if (!gradient.empty()) gradient.put(d_packed + shape.head(batch, head), width, 1.0f);
    if (head >= query) return;
    Tile tile(length, length);
    if (tile.empty()) return;
    Matrix v = rows(packed + shape.head(batch, shape.value_of(head)), width);
    tile.add_product(rows(d_o + shape.output(batch, head), o_width), v, dim);
    tile.put(dp + shape.square(batch, head), length, 1.0f);
}
