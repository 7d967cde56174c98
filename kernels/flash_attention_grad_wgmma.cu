// Flash attention, backward, in bf16 on sm_90a: one pass over keys with five products, fed by TMA.
//
// Definitions: HEAD_DIM (64, 96, 128, 192), VALUE_DIM (columns of values and dO that are read, at most 128;
// dV is zero behind them), CAUSAL, DROPOUT (0), SOFT_CAP, THREADS (384), SUMS_REGISTERS and ROWS_REGISTERS
// (per thread of the warpgroup that computes dQ, and of the others). src/engine/ops/attention/tuning.rs sets
// them.
//
// A block has a tile of KEYS keys of a kv head. It goes through the tiles of QUERIES queries that see any of
// them, for all heads of the group in order. Two warpgroups own 64 keys each: S = K·Qᵀ, dP = V·dOᵀ, P = e^(S
// − lse), dS = P∘(dP − D), dV += P·dO and dK += dS·Q, all with keys as rows, so that P and dS go from
// registers into the next products. dS is also written to shared memory, from which the third warpgroup
// computes the block's share of dQ = dSᵀ·K. The three meet at barriers in shared memory and are at most
// DS_BUFFERS steps apart, so that exponentials of one run beside products of another.
//
// dQ is summed over the blocks of a head in fp32 in memory, in the order of their keys: a warp adds its share
// of a tile of queries when the counter of that share says that it is its turn. A block draws its tile as a
// ticket, and waits only for turns of earlier tickets, which are running or done. So no block waits for one
// that has not begun, however few run at a time. All blocks go through the queries from the last to the
// first, so that a block that starts no earlier than its predecessor hardly waits. The last block to add
// writes dQ.
//
// Blocks that work on tile after tile, with copies ahead for the next one, took 10 to 20 % longer on an H200:
// the third warpgroup sets the pace, and it had the bookkeeping to do.
//
// Heads of 192 columns with values of 128: dK and dV take 160 registers of a thread, which leaves room for S
// and dP of 32 queries, so a tile of queries is multiplied in two slices. The products with dS still take the
// whole tile, because a product has 64 rows.
#include "attention.cuh"
#include "mma.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int KEYS = 128, QUERIES = 64;    // Per tile.
// Queries for which S and dP are in registers at once, and such slices per tile.
constexpr int SLICE = HEAD_DIM > 128 ? 32 : 64, SLICES = QUERIES / SLICE;
constexpr int STAGES = HEAD_DIM > 128 ? 2 : 3;    // Tiles of queries in shared memory.
constexpr int PREPARE_THREADS = 256;
constexpr int GROUP = 128;                 // Threads per warpgroup.
constexpr int MAX_TILES = 512;             // Tiles of queries in a sequence.
constexpr int PANELS = (HEAD_DIM + 63) / 64, VALUE_PANELS = (VALUE_DIM + 63) / 64;
constexpr int KEY_PANEL = KEYS * 128, QUERY_PANEL = QUERIES * 128;    // Bytes of 64 columns.
// True if the keys and values of a warpgroup stay in registers; narrow heads leave room for them.
constexpr bool KEPT = HEAD_DIM == 64;
// dQ is computed in parts of as many columns as registers hold.
constexpr int PART = HEAD_DIM >= 128 ? 32 : HEAD_DIM, PARTS = HEAD_DIM / PART;
static_assert(THREADS == 3 * GROUP, "two warpgroups for dK and dV, one for dQ");
static_assert(VALUE_DIM <= 128 && VALUE_DIM <= HEAD_DIM && (HEAD_DIM - VALUE_DIM) % 32 == 0,
              "dK and dV fit in registers");

// Layout of shared memory, from a multiple of 1,024 bytes on.
constexpr u32 KEYS_AT = 0, VALUES_AT = PANELS * KEY_PANEL,
              STAGES_AT = VALUES_AT + VALUE_PANELS * KEY_PANEL;
constexpr u32 STAGE_BYTES = (PANELS + VALUE_PANELS) * QUERY_PANEL;    // Queries, then dO.
constexpr u32 DS_AT = STAGES_AT + STAGES * STAGE_BYTES, DS_BYTES = KEYS * 128;
constexpr int DS_BUFFERS = 2;
constexpr u32 STATS_AT = DS_AT + DS_BUFFERS * DS_BYTES, STATS_BYTES = QUERIES * 8;    // Shifts, then D.
constexpr u32 SPANS_AT = STATS_AT + STAGES * STATS_BYTES, SPANS_BYTES = CAUSAL ? 0 : QUERIES * 8;
constexpr u32 BARRIERS_AT = SPANS_AT + STAGES * SPANS_BYTES;
constexpr u32 FULL = 0, EMPTY = FULL + 8 * STAGES, DS_FULL = EMPTY + 8 * STAGES,
              DS_EMPTY = DS_FULL + 8 * DS_BUFFERS,
              FIXED_FULL = DS_EMPTY + 8 * DS_BUFFERS, BARRIERS_BYTES = FIXED_FULL + 8;
constexpr u32 LIST_AT = BARRIERS_AT + BARRIERS_BYTES;    // Without CAUSAL: the tiles of queries, u16.
constexpr u32 LIST_BYTES = CAUSAL ? 0 : MAX_TILES * 2;
constexpr u32 SHARED_BYTES = LIST_AT + LIST_BYTES + 4 * 4;    // And `words`.

// The tiles of keys [first, end) that any query of a tile sees; all its queries see keys [all_first,
// all_end).
struct __align__(16) TileRange {
    int first, end, all_first, all_end;
};

// ---- Before the pass: D and the data of queries, in the order in which steps read it.

// The grid counts (tile, sequence, head). Queries that see nothing pad `stats` to whole tiles.
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS)
flash_attention_grad_prepare(const bf16 *o,        // [batch·seq_len, heads·HEAD_DIM]
                             const float *lse,     // [batch·seq_len, heads]
                             const bf16 *d_o,      // [batch·seq_len, heads·HEAD_DIM]
                             const uint2 *spans,   // [batch·seq_len], without CAUSAL
                             float *stats,         // = [batch, heads, tiles, 2, QUERIES]: lse, D
                             uint2 *tile_spans,    // = [batch, tiles, QUERIES], without CAUSAL
                             TileRange *ranges,    // = [batch, tiles], without CAUSAL
                             u32 *turns,           // = [1 + batch·heads·tiles·4]: zeros
                             bf16 *d_packed,       // = zeros in dQ of queries in tiles that see nothing
                             int heads, int kv_heads, int seq_len) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, head = blockIdx.z;
    int tile = blockIdx.x, tiles = gridDim.x, sequence = blockIdx.y, first = tile * QUERIES;
    i64 first_row = i64(sequence) * seq_len;
    int o_width = heads * HEAD_DIM;
    __shared__ bool nothing;
    i64 tile_of_all = (i64(sequence) * heads + head) * tiles + tile;
    if (threadIdx.x < 4) turns[1 + tile_of_all * 4 + threadIdx.x] = 0;
    if (threadIdx.x == 4 && tile == 0 && sequence == 0 && head == 0) turns[0] = 0;
    if (!CAUSAL && warp == 0) {
        int low = seq_len, high = 0, all_first = 0, all_end = seq_len;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int t = first + half * WARP + lane;
            KeyRange one = visible_keys(spans + first_row, t, seq_len);
            if (head == 0)
                tile_spans[(i64(sequence) * tiles + tile) * QUERIES + half * WARP + lane] =
                    make_uint2(one.first, one.end);
            if (one.first < one.end) low = min(low, one.first), high = max(high, one.end);
            if (t < seq_len) all_first = max(all_first, one.first), all_end = min(all_end, one.end);
        }
#pragma unroll
        for (int step = WARP / 2; step > 0; step /= 2) {
            low = min(low, __shfl_xor_sync(FULL_WARP, low, step));
            high = max(high, __shfl_xor_sync(FULL_WARP, high, step));
            all_first = max(all_first, __shfl_xor_sync(FULL_WARP, all_first, step));
            all_end = min(all_end, __shfl_xor_sync(FULL_WARP, all_end, step));
        }
        if (lane == 0) {
            TileRange range = {low / KEYS, (high + KEYS - 1) / KEYS, all_first, all_end};
            if (low >= high) range.first = range.end = 0;
            if (head == 0) ranges[i64(sequence) * tiles + tile] = range;
            nothing = low >= high;
        }
    }
    // Four lanes per row, eight rows per warp.
    static_assert(PREPARE_THREADS == 4 * QUERIES, "four threads per row");
    int row = threadIdx.x / 4, t = first + row;
    i64 at = (first_row + min(t, seq_len - 1)) * o_width + head * HEAD_DIM + lane % 4 * 8;
    float a[VALUE_DIM / 32][8], b[VALUE_DIM / 32][8], sum = 0.0f;
    // Probabilities relative to infinity are zero, as they must be for queries that see nothing.
    float log = t < seq_len ? lse[(first_row + t) * heads + head] : -infinity();
#pragma unroll
    for (int i = 0; i < VALUE_DIM / 32; i++) load<8>(o + at + i * 32, a[i]), load<8>(d_o + at + i * 32, b[i]);
#pragma unroll
    for (int i = 0; i < VALUE_DIM / 32 * 8; i++) sum = fmaf(a[i / 8][i % 8], b[i / 8][i % 8], sum);
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    if (lane % 4 == 0) {
        float *to = stats + tile_of_all * (2 * QUERIES) + row;
        to[0] = log == -infinity() ? infinity() : log * LOG2_E;
        to[QUERIES] = t < seq_len ? sum : 0.0f;
    }
    if (CAUSAL) return;
    __syncthreads();
    if (!nothing) return;
    int width = (heads + 2 * kv_heads) * HEAD_DIM;
    for (int i = lane % 4 * 8; i < HEAD_DIM && t < seq_len; i += 32)
        *reinterpret_cast<uint4 *>(d_packed + (first_row + t) * width + head * HEAD_DIM + i) =
            make_uint4(0, 0, 0, 0);
}

// ---- Pieces of the pass.

__device__ __forceinline__ uint4 load_shared_spans(u32 at) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at));
    return x;
}
// Accesses to memory that bypass the L1 cache: add, store, load.
__device__ __forceinline__ void add_global_4(float *to, float a, float b, float c, float d) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b),
                 "f"(c), "f"(d)
                 : "memory");
}
__device__ __forceinline__ void store_global_4(float *to, float a, float b, float c, float d) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b),
                 "f"(c), "f"(d)
                 : "memory");
}
__device__ __forceinline__ float4 load_global_4(const float *from) {
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from)
                 : "memory");
    return x;
}
__device__ __forceinline__ void store_relaxed(u32 *to, u32 x) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
__device__ __forceinline__ u32 load_relaxed(const u32 *from) {
    u32 x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
__device__ __forceinline__ u32 load_acquire(const u32 *from) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

// The number of the thread, read again so that nothing derived from it occupies registers in between.
__device__ __forceinline__ u32 thread_again() {
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

__device__ __forceinline__ void exchange(u32 &low, u32 &high, int lanes, bool upper) {
    u32 give = upper ? low : high;
    u32 got = __shfl_xor_sync(FULL_WARP, give, lanes);
    if (upper) low = got;
    else high = got;
}
// Returns the same number, but the compiler knows nothing about it, so it keeps no value derived from it from
// step to step.
__device__ __forceinline__ u32 forget(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}
// Rounds the C of a warp times `factor` to rows of `to`, which are `stride` elements apart. Only the first
// `rows` of 16 rows are stored.
template <int N>
__device__ __forceinline__ void store_rows(const float (&c)[N], float factor, bf16 *to, int stride,
                                           int rows) {
    int lane = thread_again() % WARP, quad = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = half * 8 + lane / 4;
#pragma unroll
        for (int n = 0; n < N / 4; n += 4) {
            u32 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = pack(c[4 * (n + i) + 2 * half] * factor, c[4 * (n + i) + 2 * half + 1] * factor);
            // A lane has a pair of columns from each of four chunks, and gets four pairs of one chunk.
            exchange(x[0], x[1], 1, quad & 1), exchange(x[2], x[3], 1, quad & 1);
            exchange(x[0], x[2], 2, quad & 2), exchange(x[1], x[3], 2, quad & 2);
            if (row < rows)
                *reinterpret_cast<uint4 *>(to + i64(row) * stride + (n + quad) * 8) =
                    make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

// The tiles of queries of a block, starting with the last.
struct QueryTiles {
    const unsigned char *shared;
    int count, last;

    __device__ __forceinline__ u32 entry(int i) const {
        return CAUSAL ? last - i : reinterpret_cast<const u16 *>(shared + LIST_AT)[i];
    }
    __device__ __forceinline__ int tile(int i) const { return int(entry(i) & 0x7fff); }
    // True if any of the queries does not see all of the 64 keys from `key` on.
    __device__ __forceinline__ bool masked(int i, int key) const {
        return CAUSAL ? tile(i) * QUERIES < key + 63 : entry(i) >> 15 != 0;
    }
};

// A position in the ring of stages. Two stages take one register, which heads of 192 columns need.
template <int SLOTS> struct StagePosition {
    RingPosition<SLOTS> ring;
    __device__ __forceinline__ u32 slot() const { return ring.slot; }
    __device__ __forceinline__ u32 parity() const { return ring.parity; }
    __device__ __forceinline__ void advance() { ring.advance(); }
};
template <> struct StagePosition<2> {
    u32 count = 0;
    __device__ __forceinline__ u32 slot() const { return count % 2; }
    __device__ __forceinline__ u32 parity() const { return count / 2 % 2; }
    __device__ __forceinline__ void advance() { count++; }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_attention_grad_wgmma(
    const __grid_constant__ TensorMap packed_map,    // [batch, seq_len, heads + 2·kv_heads, HEAD_DIM]
    const __grid_constant__ TensorMap d_o_map,       // [batch, seq_len, heads, HEAD_DIM]
    const float *stats, const uint2 *tile_spans, const TileRange *ranges,    // As above.
    u32 *turns,        // [1 + batch·heads·tiles·4]: the next ticket, then counters of turns, one per warp
    float *dq_sums,    // [batch, heads, tiles, QUERIES·HEAD_DIM]: in the order of threads and their registers
    bf16 *d_packed,    // = [batch·seq_len, (heads + 2·kv_heads)·HEAD_DIM], except for what is zeroed above
    int batch, int kv_heads, int group, int seq_len,
    int section,       // kv heads, over all sequences, whose tiles are drawn next to each other
    float score_scale, float soft_cap) {
    extern __shared__ __align__(1024) unsigned char shared[];
    u32 base = shared_address(shared), barriers = base + BARRIERS_AT;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    // The number of tiles of queries, then the tile of keys, the sequence and the kv head. These are read
    // again at the end instead of occupying registers.
    volatile int *words = reinterpret_cast<volatile int *>(shared + LIST_AT + LIST_BYTES);
    if (threadIdx.x == 0) {
        int key_tiles = (seq_len + KEYS - 1) / KEYS, ticket = int(atomicAdd(turns, 1u));
        int of_section = section * key_tiles, first_pair = ticket / of_section * section;
        int pairs = min(section, batch * kv_heads - first_pair), in_section = ticket % of_section;
        int pair = first_pair + in_section % pairs;    // Sequence and kv head.
        words[1] = in_section / pairs, words[2] = pair / kv_heads, words[3] = pair % kv_heads;
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barriers + FULL + 8 * i, 1);
            barrier_init(barriers + EMPTY + 8 * i, 8);
        }
        for (int i = 0; i < DS_BUFFERS; i++) {
            barrier_init(barriers + DS_FULL + 8 * i, 2 * GROUP);
            barrier_init(barriers + DS_EMPTY + 8 * i, 4);
        }
        barrier_init(barriers + FIXED_FULL, 1);
        barrier_init_fence();
    }
    __syncthreads();
    int heads = kv_heads * group, tiles = (seq_len + QUERIES - 1) / QUERIES;
    int key_tile = words[1], sequence = words[2], kv_head = words[3], first_key = key_tile * KEYS;
    turns += 1 + i64(sequence) * heads * tiles * 4;
    ranges += i64(sequence) * tiles;
    QueryTiles queries = {shared, tiles - key_tile * (KEYS / QUERIES), tiles - 1};
    if (!CAUSAL) {
        if (warp == 0) {
            u16 *list = reinterpret_cast<u16 *>(shared + LIST_AT);
            int count = 0;
            for (int from = tiles - 1; from >= 0; from -= WARP) {
                int tile = from - lane;
                TileRange range = {0, 0, 0, 0};
                if (tile >= 0) range = ranges[tile];
                bool sees = range.first <= key_tile && key_tile < range.end;
                bool all = range.all_first <= first_key && range.all_end >= first_key + KEYS;
                u32 found = __ballot_sync(FULL_WARP, sees);
                if (sees) list[count + __popc(found & ((1u << lane) - 1))] = u16(tile | (all ? 0 : 0x8000));
                count += __popc(found);
            }
            if (lane == 0) words[0] = count;
        }
        __syncthreads();
        queries.count = words[0];
    }
    int steps = queries.count * group;

    if (warp >= 8) {
        // ---- The third warpgroup: copies, and dQ.
        give_registers<SUMS_REGISTERS>();
        int thread = threadIdx.x % GROUP;
        bool copies = warp == 11 && lane == 0;
        auto copy_step = [&](u32 copied) {
            u32 slot = copied % STAGES;
            u32 full = barriers + FULL + 8 * slot, to = base + STAGES_AT + slot * STAGE_BYTES;
            u32 copied_head = copied / u32(queries.count), copied_i = copied - copied_head * queries.count;
            int head = kv_head * group + copied_head, tile = queries.tile(copied_i);
            barrier_arrive_expect(full, STAGE_BYTES + STATS_BYTES + SPANS_BYTES);
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                load_box(to + panel * QUERY_PANEL, packed_map, full, panel * 64, head, tile * QUERIES,
                         sequence);
                if (panel < VALUE_PANELS)
                    load_box(to + (PANELS + panel) * QUERY_PANEL, d_o_map, full, panel * 64, head,
                             tile * QUERIES, sequence);
            }
            i64 at = (i64(sequence) * heads + head) * tiles + tile;
            load_bytes(base + STATS_AT + slot * STATS_BYTES, stats + at * (2 * QUERIES), STATS_BYTES,
                       full);
            if (!CAUSAL)
                load_bytes(base + SPANS_AT + slot * SPANS_BYTES,
                           tile_spans + (i64(sequence) * tiles + tile) * QUERIES, SPANS_BYTES, full);
        };
        if (copies && steps > 0) {
            u32 full = barriers + FIXED_FULL;
            barrier_arrive_expect(full, (PANELS + VALUE_PANELS) * KEY_PANEL);
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 to = base + panel * KEY_PANEL + half * QUERY_PANEL;
                    int t = first_key + half * QUERIES;
                    load_box(to + KEYS_AT, packed_map, full, panel * 64, heads + kv_head, t, sequence);
                    if (panel < VALUE_PANELS)
                        load_box(to + VALUES_AT, packed_map, full, panel * 64, heads + kv_heads + kv_head, t,
                                 sequence);
                }
            for (int i = 0; i < min(STAGES, steps); i++) copy_step(i);
        }
        int step = 0, width = (heads + 2 * kv_heads) * HEAD_DIM;
        u32 *done = nullptr, done_turn = 0;    // The counter that this warp is about to raise.
        for (int g = 0; g < group; g++) {
            int head = kv_head * group + g;
            for (int i = 0; i < queries.count; i++, step++) {
                // The slot of the previous step is free, or soon will be.
                if (copies && step >= 1 && step - 1 + STAGES < steps) {
                    int copied = step - 1 + STAGES;
                    barrier_wait(barriers + EMPTY + 8 * (copied % STAGES), copied / STAGES % 2 ^ 1);
                    copy_step(copied);
                }
                __syncwarp();
                int tile = queries.tile(i), turn = key_tile;
                bool last = key_tile == tile / (KEYS / QUERIES);
                if (!CAUSAL) {
                    TileRange range = ranges[tile];
                    turn = key_tile - range.first;
                    last = key_tile == range.end - 1;
                }
                u32 *counter = turns + (i64(head) * tiles + tile) * 4 + warp % 4;
                u32 seen = turn == 0 ? 0 : load_relaxed(counter);
                i64 of_all = (i64(sequence) * heads + head) * tiles + tile;
                float *sums = dq_sums + of_all * (QUERIES * HEAD_DIM) + thread * 4;
                u32 buffer = step % DS_BUFFERS;
                barrier_wait(barriers + DS_FULL + 8 * buffer, step / DS_BUFFERS % 2);
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    float dq[PART / 2];
                    u64 a = k_rows_factor(base + DS_AT + buffer * DS_BYTES, 0);
                    u32 columns = part * PART / 64 * KEY_PANEL + part * PART % 64 * 2;
                    u64 b = k_rows_factor(base + KEYS_AT + columns, KEY_PANEL);
                    products_begin();
#pragma unroll
                    for (int k = 0; k < KEYS / 16; k++)
                        product<K_ROWS, K_ROWS>(dq, a + 128 * k, b + 128 * k, k > 0);
                    products_commit();
                    if (part == 0) {
                        // The products run meanwhile. Whoever sees this warp's counter raised also sees what
                        // the warp has added before, and what follows here sees what others added before this
                        // warp's turn.
                        __threadfence();
                        if (lane == 0 && done != nullptr) store_relaxed(done, done_turn);
                        while (seen != u32(turn)) seen = load_acquire(counter);
                        __syncwarp();
                    }
                    products_wait<0>();
                    hold(dq);
                    if (part == PARTS - 1 && lane == 0) barrier_arrive(barriers + DS_EMPTY + 8 * buffer);
                    float *to = sums + part * (QUERIES * PART);
                    if (last) {
                        if (turn > 0)
#pragma unroll
                            for (int n = 0; n < PART / 2; n += 4) {
                                float4 sum = load_global_4(to + n * GROUP);
                                dq[n] += sum.x, dq[n + 1] += sum.y, dq[n + 2] += sum.z, dq[n + 3] += sum.w;
                            }
                        int row = tile * QUERIES + warp % 4 * 16;
                        bf16 *to_rows = d_packed + (i64(sequence) * seq_len + row) * width + head * HEAD_DIM;
                        store_rows(dq, Score::gradient_scale(score_scale), to_rows + part * PART, width,
                                   seq_len - row);
                    } else if (turn == 0) {
#pragma unroll
                        for (int n = 0; n < PART / 2; n += 4)
                            store_global_4(to + n * GROUP, dq[n], dq[n + 1], dq[n + 2], dq[n + 3]);
                    } else {
#pragma unroll
                        for (int n = 0; n < PART / 2; n += 4)
                            add_global_4(to + n * GROUP, dq[n], dq[n + 1], dq[n + 2], dq[n + 3]);
                    }
                }
                __syncwarp();
                done = last ? nullptr : counter, done_turn = turn + 1;
            }
        }
        __threadfence();
        if (lane == 0 && done != nullptr) store_relaxed(done, done_turn);
    } else {
        // ---- dK and dV of 64 keys.
        take_registers<ROWS_REGISTERS>();
        int own = warp / 4 * 64;    // The first key of the warpgroup within the tile.
        float dk[HEAD_DIM / 2], dv[VALUE_DIM / 2];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) dk[i] = dv[min(i, VALUE_DIM / 2 - 1)] = 0.0f;
        Score score(score_scale, soft_cap);
        u32 kept[KEPT ? 2 : 1][HEAD_DIM / 16][4];
        u32 own_keys = base + KEYS_AT + own * 128, own_values = base + VALUES_AT + own * 128;
        float s[SLICE / 2], dp[SLICE / 2];
        u32 p[SLICE / 16][4], ds[SLICE / 16][4];
        StagePosition<STAGES> at;
        int i = 0;
        // Computes S or dP: the keys or values in `a`, or in registers, times the rows from `b` on.
        auto multiply = [&](float (&c)[SLICE / 2], int which, u32 a, u32 b) {
            a = forget(a), b = forget(b);
            products_begin();
#pragma unroll
            for (int k = 0; k < (which == 0 ? HEAD_DIM : VALUE_DIM) / 16; k++) {
                u64 left = k_columns_factor(a + k / 4 * KEY_PANEL) + 2 * (k % 4);
                u64 right = k_columns_factor(b + k / 4 * QUERY_PANEL) + 2 * (k % 4);
                if constexpr (KEPT) product<K_COLUMNS>(c, kept[which][k], right, k > 0);
                else product<K_COLUMNS, K_COLUMNS>(c, left, right, k > 0);
            }
            products_commit();
        };
        // Computes P and dS, rounded, of a slice of the queries in slot `at`. S (with SOFT_CAP, all products)
        // must have been waited for.
        auto exponentials = [&](int slice) {
            hold(s);
            u32 stat = base + STATS_AT + at.slot() * STATS_BYTES + slice * (SLICE * 4) + lane % 4 * 8;
            if (queries.masked(i, first_key + own)) {
                int thread = thread_again(), column = slice * SLICE + thread % 4 * 2;
                int query = queries.tile(i) * QUERIES + column;
                // The lane has the keys `key` and `key + 8`.
                int key = first_key + thread / WARP * 16 + thread % WARP / 4;
#pragma unroll
                for (int n = 0; n < SLICE / 8; n++) {
                    KeyRange visible[2] = {{0, query + n * 8 + 1}, {0, query + n * 8 + 2}};
                    if (!CAUSAL) {
                        u32 spans = base + SPANS_AT + at.slot() * SPANS_BYTES;
                        uint4 pair = load_shared_spans(spans + (n * 8 + column) * 8);
                        visible[0] = {int(pair.x), int(pair.y)}, visible[1] = {int(pair.z), int(pair.w)};
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        if (!contains(visible[j % 2], key + j / 2 * 8)) s[4 * n + j] = -infinity();
                }
            }
            if (SOFT_CAP) {
                // Slopes go into dP at once, so that no registers keep them.
                products_wait<0>();
                hold(dp);
#pragma unroll
                for (int n = 0; n < SLICE / 8; n++) {
                    float2 shift = load_shared_2(stat + n * 32);
                    shift.x = score.relative(shift.x), shift.y = score.relative(shift.y);
                    float2 delta = load_shared_2(stat + QUERIES * 4 + n * 32);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float &x = s[4 * n + j], &dx = dp[4 * n + j];
                        float slope;
                        x = exp2_fast(score.exponent(x, j % 2 == 0 ? shift.x : shift.y, slope));
                        dx = (dx - (j % 2 == 0 ? delta.x : delta.y)) * slope;
                    }
                }
            } else {
#pragma unroll
                for (int n = 0; n < SLICE / 8; n++) {
                    float2 shift = load_shared_2(stat + n * 32);
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        s[4 * n + j] =
                            exp2_fast(fmaf(s[4 * n + j], score.factor, j % 2 == 0 ? -shift.x : -shift.y));
                }
                products_wait<0>();
                hold(dp);
            }
#pragma unroll
            for (int k = 0; k < SLICE / 16; k++) {
#pragma unroll
                for (int n = 2 * k; n < 2 * k + 2; n++) {
                    float2 delta = make_float2(0.0f, 0.0f);    // With SOFT_CAP, subtracted above.
                    if (!SOFT_CAP) delta = load_shared_2(stat + QUERIES * 4 + n * 32);
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        dp[4 * n + j] = s[4 * n + j] * (dp[4 * n + j] - (j % 2 == 0 ? delta.x : delta.y));
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int from = 8 * k + j / 2 * 4 + j % 2 * 2;
                    p[k][j] = pack(s[from], s[from + 1]);
                    ds[k][j] = pack(dp[from], dp[from + 1]);
                }
            }
            if (slice == SLICES - 1 && ++i == queries.count) i = 0;
        };
        // Hands dS of a slice to the third warpgroup, and starts dV += P·dO and dK += dS·Q.
        auto accumulate = [&](int step, int slice, u32 stage) {
            u32 buffer = step % DS_BUFFERS;
            if (slice == 0) barrier_wait(barriers + DS_EMPTY + 8 * buffer, (step / DS_BUFFERS % 2) ^ 1);
            u32 row = thread_again() / WARP * 16 + thread_again() % 16;
            u32 to = base + DS_AT + buffer * DS_BYTES + row * 128;
#pragma unroll
            for (int k = 0; k < SLICE / 16; k++)
                stmatrix_x4(to + ((slice * (SLICE / 8) + 2 * k + lane / 16) ^ (row % 8)) * 16, ds[k]);
            async_proxy_fence();
            if (slice == SLICES - 1) barrier_arrive(barriers + DS_FULL + 8 * buffer);
            stage += slice * (SLICE * 128);
            products_begin();
#pragma unroll
            for (int k = 0; k < SLICE / 16; k++)
                product<K_ROWS>(dv, p[k], k_rows_factor(stage + PANELS * QUERY_PANEL, QUERY_PANEL) + 128 * k,
                                true);
#pragma unroll
            for (int k = 0; k < SLICE / 16; k++)
                product<K_ROWS>(dk, ds[k], k_rows_factor(stage, QUERY_PANEL) + 128 * k, true);
            products_commit();
        };
        if (steps > 0) {
            barrier_wait(barriers + FIXED_FULL, 0);
            if constexpr (KEPT) {
                int row = warp % 4 * 16 + lane % 16;
#pragma unroll
                for (int k = 0; k < HEAD_DIM / 16; k++) {
                    u32 chunk = ((2 * k + lane / 16) ^ (row % 8)) * 16;
                    ldmatrix_x4(kept[0][k], own_keys + row * 128 + chunk);
                    ldmatrix_x4(kept[1][k], own_values + row * 128 + chunk);
                }
            }
            barrier_wait(barriers + FULL, 0);
            u32 stage = base + STAGES_AT;
            multiply(s, 0, own_keys, stage);
            multiply(dp, 1, own_values, stage + PANELS * QUERY_PANEL);
            products_wait<1>();
            exponentials(0);
#pragma unroll 1
            for (int next = 1; next < steps * SLICES; next++) {
                accumulate((next - 1) / SLICES, (next - 1) % SLICES, stage);
                int slice = next % SLICES;
                u32 empty = barriers + EMPTY + 8 * at.slot();
                if (slice == 0) {
                    at.advance();
                    stage = base + STAGES_AT + at.slot() * STAGE_BYTES;
                    barrier_wait(barriers + FULL + 8 * at.slot(), at.parity());
                }
                u32 rows = stage + slice * (SLICE * 128);
                multiply(s, 0, own_keys, rows);
                products_wait<1>();
                hold(dv), hold(dk);
                if (slice == 0 && lane == 0) barrier_arrive(empty);
                __syncwarp();
                multiply(dp, 1, own_values, rows + PANELS * QUERY_PANEL);
                products_wait<1>();
                exponentials(slice);
            }
            accumulate(steps - 1, SLICES - 1, stage);
            products_wait<0>();
            hold(dk), hold(dv);
        }
        int width = (heads + 2 * kv_heads) * HEAD_DIM, row = words[1] * KEYS + thread_again() / WARP * 16;
        bf16 *to = d_packed + (i64(words[2]) * seq_len + row) * width + (heads + words[3]) * HEAD_DIM;
        store_rows(dk, Score::gradient_scale(score_scale), to, width, seq_len - row);
        store_rows(dv, 1.0f, to + kv_heads * HEAD_DIM, width, seq_len - row);
        if constexpr (VALUE_DIM < HEAD_DIM) {
            float zeros[VALUE_DIM < HEAD_DIM ? (HEAD_DIM - VALUE_DIM) / 2 : 16] = {};
            store_rows(zeros, 1.0f, to + kv_heads * HEAD_DIM + VALUE_DIM, width, seq_len - row);
        }
    }
}
