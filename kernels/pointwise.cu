// A function of rows and trained vectors, element by element with broadcast, and its gradients.
//
// Definitions: T; HEADS and WIDTH (elements of a head) of a row of the output; VEC (elements that a thread
// moves at once, a divisor of WIDTH); VARIABLES; OPERANDS (how each is read: the fields of Operand); FUNCTION
// (the body of the function of all[VARIABLES], from src/engine/ops/formula/code.rs); PARTIALS (columns of the
// partial sums); and for gradients TEAM (threads per head of a row, a power of two), THREADS (per block) and
// ADDS_TO (a bit for each input with a sum to add to).
#include "formula.cuh"

// How the function reads a variable. `stride` is the number of elements in a row of its tensor, 0 for a
// vector, and `partial` the first column of its partial sums.
struct Operand {
    int input, from, stride, per_head, per_element, partial;

    // The index of the first element of a head in a row or vector.
    __device__ constexpr int at(int head) const { return from + (per_head ? head * elements() : 0); }
    __device__ constexpr int elements() const { return per_element ? WIDTH : 1; }
};

// The addresses of tensors.
struct Tensors {
    void *at[8];
};

struct ValueAndSlopes {
    float value, slopes[VARIABLES];
};

__device__ __forceinline__ ValueAndSlopes point_at(const float (&all)[VARIABLES]) {
    using E = T;
    FUNCTION
}

// Loads a pack of a variable, or the number that all its elements have.
__device__ __forceinline__ void load_variable(const Operand &operand, const Tensors &in, int row, int head,
                                              int column, float (&x)[VEC]) {
    int at = operand.at(head) + (operand.per_element ? column : 0);
    if (operand.stride == 0) {
        const float *from = static_cast<const float *>(in.at[operand.input]) + at;
        if (operand.per_element) return load(from, x);
#pragma unroll
        for (int c = 0; c < VEC; c++) x[c] = *from;
        return;
    }
    const T *from = static_cast<const T *>(in.at[operand.input]) + i64(row) * operand.stride + at;
    if (operand.per_element) return load(from, x);
#pragma unroll
    for (int c = 0; c < VEC; c++) x[c] = up(*from);
}

// y: [rows, HEADS, WIDTH], n elements; it may be the same memory as an input that has one element for each.
extern "C" __global__ void pointwise(Tensors in, T *y, int n) {
    constexpr Operand operands[] = {OPERANDS};
    u32 at = (block_from_last() * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    int row = at / (HEADS * WIDTH), head = at / WIDTH % HEADS, column = at % WIDTH;
    float x[VARIABLES][VEC], values[VEC];
#pragma unroll
    for (int v = 0; v < VARIABLES; v++) load_variable(operands[v], in, row, head, column, x[v]);
#pragma unroll
    for (int c = 0; c < VEC; c++) {
        float point[VARIABLES];
#pragma unroll
        for (int v = 0; v < VARIABLES; v++) point[v] = x[v][c];
        values[c] = point_at(point).value;
    }
    store(y + at, values);
}

#ifdef TEAM
// Teams of a block, each with a row of its own.
constexpr int TEAMS = THREADS / TEAM;
// Packs of a head that a thread handles.
constexpr int PACKS = (WIDTH / VEC + TEAM - 1) / TEAM;

// Returns the sum over a team to all its threads. Every thread of the block must take part.
__device__ __forceinline__ float team_sum(float x) {
    __shared__ float sums[THREADS / WARP];
    x = warp_reduce<(TEAM < WARP ? TEAM : WARP)>(x, Add());
    if constexpr (TEAM > WARP) {
        __syncthreads();
        if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = x;
        __syncthreads();
        x = 0.0f;
        for (int warp = 0; warp < TEAM / WARP; warp++) x += sums[threadIdx.x / TEAM * (TEAM / WARP) + warp];
    }
    return x;
}

// Returns the sum over the threads with the same place in their teams, to those of the first team.
__device__ __forceinline__ float sum_over_teams(float x) {
    __shared__ float values[THREADS];
    __syncthreads();
    values[threadIdx.x] = x;
    __syncthreads();
    x = 0.0f;
    if (threadIdx.x < TEAM)
        for (int team = 0; team < TEAMS; team++) x += values[team * TEAM + threadIdx.x];
    return x;
}

// d: the gradients of the inputs, of which those of rows are written, plus the tensor in `before` if the
// input's bit is in ADDS_TO, which may be the same memory; dy: [rows, HEADS, WIDTH]; partials: [runs,
// PARTIALS], the sums for vectors over a run of `run` rows. A block handles one head of a run.
extern "C" __global__ void __launch_bounds__(THREADS)
    pointwise_grad(Tensors in, const T *dy, Tensors before, Tensors d, float *partials, int rows, int run) {
    constexpr Operand operands[] = {OPERANDS};
    int head = blockIdx.x % HEADS, k = blockIdx.x / HEADS;
    int lane = threadIdx.x % TEAM, last = min((k + 1) * run, rows);
    float sums[VARIABLES][PACKS][VEC] = {};
    for (int first = k * run; first < last; first += TEAMS) {
        int row = first + int(threadIdx.x) / TEAM;
        float narrow[VARIABLES] = {};
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            int column = (p * TEAM + lane) * VEC;
            if (row >= last || column >= WIDTH) continue;
            float x[VARIABLES][VEC], upstream[VEC];
#pragma unroll
            for (int v = 0; v < VARIABLES; v++) load_variable(operands[v], in, row, head, column, x[v]);
            load(dy + (i64(row) * HEADS + head) * WIDTH + column, upstream);
#pragma unroll
            for (int c = 0; c < VEC; c++) {
                float point[VARIABLES];
#pragma unroll
                for (int v = 0; v < VARIABLES; v++) point[v] = x[v][c];
                ValueAndSlopes at = point_at(point);
#pragma unroll
                for (int v = 0; v < VARIABLES; v++) {
                    x[v][c] = __fmul_rn(upstream[c], at.slopes[v]);
                    if (operands[v].stride > 0 && !operands[v].per_element) narrow[v] += x[v][c];
                    if (operands[v].stride == 0) sums[v][p][operands[v].per_element ? c : 0] += x[v][c];
                }
            }
#pragma unroll
            for (int v = 0; v < VARIABLES; v++) {
                const Operand &o = operands[v];
                if (o.stride == 0 || !o.per_element) continue;
                i64 at = i64(row) * o.stride + o.at(head) + column;
                if (ADDS_TO >> o.input & 1) {
                    float sum[VEC];
                    load(static_cast<const T *>(before.at[o.input]) + at, sum);
#pragma unroll
                    for (int c = 0; c < VEC; c++) x[v][c] += sum[c];
                }
                store(static_cast<T *>(d.at[o.input]) + at, x[v]);
            }
        }
#pragma unroll
        for (int v = 0; v < VARIABLES; v++) {
            const Operand &o = operands[v];
            if (o.stride == 0 || o.per_element) continue;
            float total = team_sum(narrow[v]);
            if (lane != 0 || row >= last) continue;
            i64 at = i64(row) * o.stride + o.at(head);
            if (ADDS_TO >> o.input & 1) total += up(static_cast<const T *>(before.at[o.input])[at]);
            static_cast<T *>(d.at[o.input])[at] = down<T>(total);
        }
    }
#pragma unroll
    for (int v = 0; v < VARIABLES; v++) {
        const Operand &o = operands[v];
        if (o.stride > 0) continue;
        float *to = partials + i64(k) * PARTIALS + o.partial + head * o.elements();
        if (!o.per_element) {
            float own = 0.0f;
#pragma unroll
            for (int p = 0; p < PACKS; p++) own += sums[v][p][0];
            float total = sum_over_teams(team_sum(own));
            if (threadIdx.x == 0) *to = total;
            continue;
        }
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
#pragma unroll
            for (int c = 0; c < VEC; c++) {
                float total = sum_over_teams(sums[v][p][c]);
                int column = (p * TEAM + lane) * VEC + c;
                if (threadIdx.x < TEAM && column < WIDTH) to[column] = total;
            }
        }
    }
}

// to[length] (+)= the sums of the partials [runs, PARTIALS] of all variables that are read from the vector
// `input`, over runs and over heads with the same numbers. A block of a warp's size in both directions
// handles a warp of elements.
extern "C" __global__ void __launch_bounds__(WARP *WARP)
    pointwise_vector_grad(const float *partials, float *to, int runs, int length, int input, u32 adds) {
    constexpr Operand operands[] = {OPERANDS};
    __shared__ float sums[WARP][WARP + 1];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int element = blockIdx.x * WARP + lane;
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VARIABLES; v++) {
        const Operand &o = operands[v];
        int own = element - o.from, elements = o.elements(), count = (o.per_head ? HEADS : 1) * elements;
        if (o.stride > 0 || o.input != input || own < 0 || own >= count) continue;
        for (int head = 0; head < (o.per_head ? 1 : HEADS); head++)
            for (int k = warp; k < runs; k += WARP)
                sum += partials[i64(k) * PARTIALS + o.partial + head * elements + own];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    // Every warp finishes one element.
    sum = warp_sum(sums[lane][warp]);
    element = blockIdx.x * WARP + warp;
    if (lane == 0 && element < length) to[element] = adds ? to[element] + sum : sum;
}
#endif
