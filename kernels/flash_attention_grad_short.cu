// Flash attention, backward, in bf16 on sm_90a, for heads of 32 columns and sequences of at most 256 tokens.
// It computes all gradients of a head in one pass with five products and keeps nothing in memory between
// them.
//
// Definitions: HEAD_DIM (32), CAUSAL (1), DROPOUT (0), SOFT_CAP, SEQUENCE_TILES (of 64 rows that hold a
// sequence), THREADS (384), PRODUCT_REGISTERS and COPY_REGISTERS (per thread of the warpgroups that multiply,
// and of the one that copies). src/engine/ops/attention/tuning.rs sets them.
//
// As many blocks as there are SMs take one head after another. Queries, keys, values and dO of a head lie in
// shared memory, while the next head's arrive. The third warpgroup starts the copies and computes D = Σ dO∘O
// of each query. The other two own tiles of 64 keys: one has the first and the last tile, the other has the
// tiles in between, which with the causal mask meet as many tiles of queries. For a tile of keys j and a tile
// of queries i ≥ j, keys are the rows of S = K·Qᵀ and dP = V·dOᵀ, P = e^(S − lse) and dS = P∘(dP − D). So dV
// += P·dO and dK += dS·Q take P and dS from registers; for dQ += dSᵀ·K, dS goes through shared memory. dQ of
// all queries stays in registers, 16 per thread and tile, until both warpgroups add theirs. So every sum has
// a fixed order, and no block waits for another.
//
// TMA stores the gradients from the memory where a head's inputs were: stores by threads wait for each other,
// which took a quarter of the time. The products of a tile are waited for before the next tile's start: both
// in flight need more registers than there are.
#include "attention.cuh"
#include "mma.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int ROWS = 64;               // Per tile.
constexpr int MAX_ROWS = ROWS * SEQUENCE_TILES;
constexpr int GROUP = 128;             // Threads per warpgroup.
constexpr int STAGES = 2;              // Heads in shared memory.
constexpr int BUFFERS = 2;             // For dS of a warpgroup, so that one barrier per step suffices.
using Row = Rows<HEAD_DIM>;
static_assert(HEAD_DIM == 32 && Row::BYTES == 64, "rows of 64 bytes");
static_assert(THREADS == 3 * GROUP, "two warpgroups for products, one for copies");
static_assert(1 <= SEQUENCE_TILES && SEQUENCE_TILES <= 4, "dQ of a sequence stays in registers");

// Layout of shared memory, from a multiple of 1,024 bytes on.
constexpr u32 TILE_BYTES = ROWS * Row::BYTES, HEAD_BYTES = MAX_ROWS * Row::BYTES;
constexpr u32 QUERIES_AT = 0, KEYS_AT = HEAD_BYTES, VALUES_AT = 2 * HEAD_BYTES, D_O_AT = 3 * HEAD_BYTES,
              O_AT = 4 * HEAD_BYTES, STAGE_BYTES = 5 * HEAD_BYTES;
constexpr u32 DS_AT = STAGES * STAGE_BYTES, DS_BYTES = ROWS * 128;
constexpr u32 SUMS_AT = DS_AT + 2 * BUFFERS * DS_BYTES, SUM_BYTES = GROUP * 16 * 4;    // Three tiles of dQ.
constexpr u32 STATS_AT = SUMS_AT + 3 * SUM_BYTES, STATS_BYTES = 2 * MAX_ROWS * 4;      // Shifts, then D.
constexpr u32 BARRIERS_AT = STATS_AT + STAGES * STATS_BYTES;
constexpr u32 COPIED = 0, READY = 8 * STAGES, EMPTY = 16 * STAGES;
// Hardware barriers, by number.
constexpr int OF_GROUP = 1, OF_BOTH = 3;

__device__ __forceinline__ uint4 load_shared_16(u32 at) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at));
    return x;
}
// The sum of products of eight pairs of bf16.
__device__ __forceinline__ float dot(const uint4 &a, const uint4 &b, float sum) {
    u32 left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum = fmaf(low_half(left[i]), low_half(right[i]), sum);
        sum = fmaf(high_half(left[i]), high_half(right[i]), sum);
    }
    return sum;
}
// Rounds the C of a warp (16 rows of a head) times `factor` to shared memory from `to` on.
__device__ __forceinline__ void stage_rows(const float (&c)[16], float factor, u32 to) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        u32 x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int from = 8 * k + e / 2 * 4 + e % 2 * 2;
            x[e] = pack(c[from] * factor, c[from + 1] * factor);
        }
        stmatrix_x4(to + Row::offset(lane % 16, 2 * k + lane / 16), x);
    }
}
// Writes a warpgroup's C to shared memory, and adds it from there. The n-th numbers of all threads are side
// by side.
__device__ __forceinline__ void store_sums(u32 to, const float (&c)[16]) {
#pragma unroll
    for (int n = 0; n < 16; n += 4)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + n / 4 * (GROUP * 16)), "f"(c[n]),
                     "f"(c[n + 1]), "f"(c[n + 2]), "f"(c[n + 3])
                     : "memory");
}
__device__ __forceinline__ void add_sums(float (&c)[16], u32 from) {
#pragma unroll
    for (int n = 0; n < 16; n += 4) {
        uint4 x = load_shared_16(from + n / 4 * (GROUP * 16));
        c[n] += __uint_as_float(x.x), c[n + 1] += __uint_as_float(x.y);
        c[n + 2] += __uint_as_float(x.z), c[n + 3] += __uint_as_float(x.w);
    }
}

// A head that is in shared memory, and the warp that works on it.
struct Head {
    u32 stage, stats, buffers;    // Addresses of its rows, of its shifts and D, and of the warpgroup's dS.
    int sequence, head, heads;
    int group, warp, lane;        // The number of the warpgroup, and of the warp in it.
    float score_scale;
    Score score;

    // Computes the gradients of tile J of the keys and values, and what it adds to dQ. `release` is called
    // before anything is stored to shared memory.
    template <int J, typename Release>
    __device__ __forceinline__ void gradients(float (&dq)[SEQUENCE_TILES][16], u32 &step,
                                              const TensorMap &d_packed_map, Release release) const {
        u32 ds_row = warp * 16 + lane % 16;
        u32 tile = stage + J * TILE_BYTES;
        u32 keys[HEAD_DIM / 16][4], values[HEAD_DIM / 16][4];
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            u32 from = tile + Row::offset(warp * 16 + lane % 16, 2 * k + lane / 16);
            ldmatrix_x4(keys[k], from + KEYS_AT);
            ldmatrix_x4(values[k], from + VALUES_AT);
        }
        float dk[16], dv[16];
#pragma unroll
        for (int i = J; i < SEQUENCE_TILES; i++) {
            u32 queries = stage + QUERIES_AT + i * TILE_BYTES;
            u32 d_outputs = stage + D_O_AT + i * TILE_BYTES;
            float s[32], dp[32];
            products_begin();
#pragma unroll
            for (int k = 0; k < HEAD_DIM / 16; k++)
                product<K_COLUMNS>(s, keys[k], narrow_factor(queries) + 2 * k, k > 0);
            products_commit();
#pragma unroll
            for (int k = 0; k < HEAD_DIM / 16; k++)
                product<K_COLUMNS>(dp, values[k], narrow_factor(d_outputs) + 2 * k, k > 0);
            products_commit();
            products_wait<1>();
            hold(s);
            u32 stat = stats + (i * ROWS + lane % 4 * 2) * 4;
            if (i == J) {
                // The lane has the keys `key` and `key + 8`.
                int key = warp * 16 + lane / 4, query = lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < 32; n++)
                    if (key + n % 4 / 2 * 8 > query + n / 4 * 8 + n % 2) s[n] = -infinity();
            }
            if (SOFT_CAP) {
                // Slopes go into dP at once, so that no registers keep them.
                products_wait<0>();
                hold(dp);
            }
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 shift = load_shared_2(stat + n * 32), delta = make_float2(0.0f, 0.0f);
                shift.x = score.relative(shift.x), shift.y = score.relative(shift.y);
                if (SOFT_CAP) delta = load_shared_2(stat + MAX_ROWS * 4 + n * 32);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float slope;
                    s[4 * n + e] =
                        exp2_fast(score.exponent(s[4 * n + e], e % 2 == 0 ? shift.x : shift.y, slope));
                    if (SOFT_CAP)
                        dp[4 * n + e] = (dp[4 * n + e] - (e % 2 == 0 ? delta.x : delta.y)) * slope;
                }
            }
            if (!SOFT_CAP) {
                products_wait<0>();
                hold(dp);
            }
            u32 p[4][4], ds[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int n = 2 * k; n < 2 * k + 2; n++) {
                    float2 delta = make_float2(0.0f, 0.0f);    // With SOFT_CAP, subtracted above.
                    if (!SOFT_CAP) delta = load_shared_2(stat + MAX_ROWS * 4 + n * 32);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        dp[4 * n + e] =
                            s[4 * n + e] * (dp[4 * n + e] - (e % 2 == 0 ? delta.x : delta.y));
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int from = 8 * k + e / 2 * 4 + e % 2 * 2;
                    p[k][e] = pack(s[from], s[from + 1]);
                    ds[k][e] = pack(dp[from], dp[from + 1]);
                }
            }
            release();
            u32 buffer = buffers + step++ % BUFFERS * DS_BYTES;
#pragma unroll
            for (int k = 0; k < 4; k++)
                stmatrix_x4(buffer + ds_row * 128 + ((2 * k + lane / 16) ^ (ds_row % 8)) * 16, ds[k]);
            async_proxy_fence();
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; k++)
                product<K_ROWS>(dv, p[k], narrow_factor(d_outputs) + 64 * k, k > 0 || i > J);
#pragma unroll
            for (int k = 0; k < 4; k++)
                product<K_ROWS>(dk, ds[k], narrow_factor(queries) + 64 * k, k > 0 || i > J);
            named_barrier(OF_GROUP + group, GROUP);
#pragma unroll
            for (int k = 0; k < 4; k++)
                product<K_ROWS, K_ROWS>(dq[i], k_rows_factor(buffer, 0) + 128 * k,
                                        narrow_factor(tile + KEYS_AT) + 64 * k, true);
            products_commit();
            products_wait<0>();
            hold(dv), hold(dk), hold(dq[i]);
        }
        // dV overwrites the values, which only this warp has read; dK overwrites O, which only D needed.
        u32 own = J * TILE_BYTES + warp * (16 * Row::BYTES);
        stage_rows(dk, Score::gradient_scale(score_scale), stage + O_AT + own);
        stage_rows(dv, 1.0f, stage + VALUES_AT + own);
        async_proxy_fence();
        __syncwarp();
        if (lane == 0) {
            int t = J * ROWS + warp * 16;
            store_box(d_packed_map, stage + O_AT + own, 0, heads + head, t, sequence);
            store_box(d_packed_map, stage + VALUES_AT + own, 0, 2 * heads + head, t, sequence);
            store_commit();
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_attention_grad_short(
    const __grid_constant__ TensorMap packed_map,    // [batch, seq_len, 3·heads, HEAD_DIM]
    const __grid_constant__ TensorMap o_map,         // [batch, seq_len, heads, HEAD_DIM]
    const __grid_constant__ TensorMap d_o_map,       // [batch, seq_len, heads, HEAD_DIM]
    const __grid_constant__ TensorMap d_packed_map,  // = [batch, seq_len, 3·heads, HEAD_DIM]
    const float *lse,                                // [batch·seq_len, heads]
    int batch, int heads, int seq_len, float score_scale, float soft_cap) {
    extern __shared__ __align__(1024) unsigned char shared[];
    u32 base = shared_address(shared), barriers = base + BARRIERS_AT;
    int lane = threadIdx.x % WARP, thread = threadIdx.x % GROUP;
    int group = __shfl_sync(FULL_WARP, threadIdx.x / GROUP, 0);
    int all = batch * heads;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barriers + COPIED + 8 * i, 1);
            barrier_init(barriers + READY + 8 * i, GROUP);
            barrier_init(barriers + EMPTY + 8 * i, 8);
        }
        barrier_init_fence();
    }
    __syncthreads();
    RingPosition<STAGES> at;

    if (group == 2) {
        // ---- Copies, and D.
        give_registers<COPY_REGISTERS>();
        constexpr int EACH = (MAX_ROWS + GROUP - 1) / GROUP;    // Queries per thread.
        auto copy = [&](int i, u32 stage, u32 copied) {
            int sequence = i / heads, head = i - sequence * heads;
            barrier_arrive_expect(copied, STAGE_BYTES);
            load_box(stage + QUERIES_AT, packed_map, copied, 0, head, 0, sequence);
            load_box(stage + KEYS_AT, packed_map, copied, 0, heads + head, 0, sequence);
            load_box(stage + VALUES_AT, packed_map, copied, 0, 2 * heads + head, 0, sequence);
            load_box(stage + D_O_AT, d_o_map, copied, 0, head, 0, sequence);
            load_box(stage + O_AT, o_map, copied, 0, head, 0, sequence);
        };
        for (int i = blockIdx.x; i < all; i += gridDim.x, at.advance()) {
            u32 stage = base + at.slot * STAGE_BYTES, copied = barriers + COPIED + 8 * at.slot;
            barrier_wait(barriers + EMPTY + 8 * at.slot, at.parity ^ 1);
            if (thread == 0) copy(i, stage, copied);
            int sequence = i / heads, head = i - sequence * heads;
            float log[EACH];
#pragma unroll
            for (int r = 0; r < EACH; r++) {
                int t = thread + r * GROUP;
                log[r] = t < seq_len ? lse[(i64(sequence) * seq_len + t) * heads + head] : -infinity();
            }
            barrier_wait(copied, at.parity);
            float *stats = reinterpret_cast<float *>(shared + STATS_AT + at.slot * STATS_BYTES);
#pragma unroll
            for (int r = 0; r < EACH; r++) {
                int t = thread + r * GROUP;
                if (t >= MAX_ROWS) break;
                float sum = 0.0f;
#pragma unroll
                for (int c = 0; c < Row::CHUNKS; c++)
                    sum = dot(load_shared_16(stage + O_AT + Row::offset(t, c)),
                              load_shared_16(stage + D_O_AT + Row::offset(t, c)), sum);
                // Probabilities relative to infinity are zero, as they must be for queries that see nothing.
                stats[t] = log[r] == -infinity() ? infinity() : log[r] * LOG2_E;
                stats[MAX_ROWS + t] = sum;
            }
            barrier_arrive(barriers + READY + 8 * at.slot);
        }
        return;
    }

    // ---- The products.
    take_registers<PRODUCT_REGISTERS>();
    int warp = __shfl_sync(FULL_WARP, thread / WARP, 0);
    u32 buffers = base + DS_AT + group * (BUFFERS * DS_BYTES), step = 0;
    // True while stores of the previous head may still read shared memory. After that its stage is free.
    bool pending = false;
    u32 pending_slot = 0;
    auto release = [&]() {
        if (!pending) return;
        if (lane == 0) {
            store_wait_read();
            barrier_arrive(barriers + EMPTY + 8 * pending_slot);
        }
        __syncwarp();
        pending = false;
    };
    for (int head_at = blockIdx.x; head_at < all; head_at += gridDim.x, at.advance()) {
        u32 stage = base + at.slot * STAGE_BYTES;
        int sequence = head_at / heads, head = head_at - sequence * heads;
        barrier_wait(barriers + COPIED + 8 * at.slot, at.parity);
        barrier_wait(barriers + READY + 8 * at.slot, at.parity);
        float dq[SEQUENCE_TILES][16];
#pragma unroll
        for (int i = 0; i < SEQUENCE_TILES; i++)
#pragma unroll
            for (int n = 0; n < 16; n++) dq[i][n] = 0.0f;
        u32 stats = base + STATS_AT + at.slot * STATS_BYTES;
        Head one = {stage, stats, buffers, sequence, head, heads, group, warp, lane, score_scale,
                    Score(score_scale, soft_cap)};
        if (group == 0) {
            one.gradients<0>(dq, step, d_packed_map, release);
            if constexpr (SEQUENCE_TILES == 4) one.gradients<3>(dq, step, d_packed_map, release);
        } else {
            if constexpr (SEQUENCE_TILES >= 2) one.gradients<1>(dq, step, d_packed_map, release);
            if constexpr (SEQUENCE_TILES >= 3) one.gradients<2>(dq, step, d_packed_map, release);
        }
        release();

        // The first warpgroup completes dQ of the first two tiles, the second dQ of the others. The sums of
        // the previous head have been read by now.
        u32 sums = base + SUMS_AT + thread * 16;
        named_barrier(OF_BOTH, 2 * GROUP);
        if (group == 0) {
#pragma unroll
            for (int i = 2; i < SEQUENCE_TILES; i++) store_sums(sums + (i - 2) * SUM_BYTES, dq[i]);
        } else if constexpr (SEQUENCE_TILES > 1) {
            store_sums(sums + 2 * SUM_BYTES, dq[1]);
        }
        named_barrier(OF_BOTH, 2 * GROUP);
        u32 own = buffers + warp * (32 * Row::BYTES);
        if (group == 0) {
            if constexpr (SEQUENCE_TILES > 1) add_sums(dq[1], sums + 2 * SUM_BYTES);
        } else {
#pragma unroll
            for (int i = 2; i < SEQUENCE_TILES; i++) add_sums(dq[i], sums + (i - 2) * SUM_BYTES);
        }
#pragma unroll
        for (int i = 0; i < SEQUENCE_TILES; i++)
            if (i / 2 == group)
                stage_rows(dq[i], Score::gradient_scale(score_scale), own + i % 2 * (16 * Row::BYTES));
        async_proxy_fence();
        __syncwarp();
        if (lane == 0) {
#pragma unroll
            for (int i = 0; i < SEQUENCE_TILES; i++)
                if (i / 2 == group)
                    store_box(d_packed_map, own + i % 2 * (16 * Row::BYTES), 0, head, i * ROWS + warp * 16,
                              sequence);
            store_commit();
        }
        pending = true, pending_slot = at.slot;
    }
    if (lane == 0) store_wait_read();
}
