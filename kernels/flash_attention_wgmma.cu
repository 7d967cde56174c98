// Flash attention, forward, in bf16 on sm_90a: warpgroup products, and tiles copied by TMA. For rows that are
// longer than a tile or two, without dropout.
//
// Definitions: HEAD_DIM (64, 96, 128, 192), VALUE_DIM (columns of a value that are read; o is zero behind
// them), CAUSAL, BRANCHES, DROPOUT (0), SOFT_CAP, KEYS (per tile: 64, 96, 128), CONSUMERS (warpgroups that
// multiply, 64 queries each), STAGES (tiles of keys, and of values, in flight), THREADS (per block: the
// consumers and one warpgroup that copies), CONSUMER_REGISTERS and PRODUCER_REGISTERS (per thread), KEPT (1:
// queries stay in registers). src/engine/ops/attention/tuning.rs sets them.
//
// A block takes pieces of work, each of CONSUMERS·64 queries of a head, until none is left. One thread of its
// last warpgroup copies queries, keys and values into shared memory. It runs ahead of the consumers by the
// depth of two rings, across pieces. A consumer multiplies its queries by a tile of keys while its
// probabilities for the previous tile are multiplied by values. Other consumers hide what one consumer
// computes between products, mostly exponentials.
//
// Tiles of keys are taken from the last to the first, so that the masked tiles come first. The order of every
// sum is the order of the tiles, whichever block works on them.
#include "attention.cuh"
#include "mma.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

static_assert(!DROPOUT, "these kernels draw no dropout");
static_assert(VALUE_DIM == HEAD_DIM || (VALUE_DIM < HEAD_DIM && VALUE_DIM % 64 == 0 && HEAD_DIM % 64 == 0),
              "the zeros of outputs are whole panels");
constexpr int WARPGROUP = 128;
constexpr int ROWS = 64;  // Queries per consumer.
constexpr int QUERIES = CONSUMERS * ROWS;
// Shared memory holds heads in panels of 64 columns; columns beyond the head are zero and are not multiplied.
constexpr int PANELS = (HEAD_DIM + 63) / 64, VALUE_PANELS = (VALUE_DIM + 63) / 64;
constexpr int Q_PANEL = ROWS * 128, Q_BYTES = PANELS * Q_PANEL, O_BYTES = VALUE_PANELS * Q_PANEL;
constexpr int KV_PANEL = KEYS * 128, K_BYTES = PANELS * KV_PANEL, V_BYTES = VALUE_PANELS * KV_PANEL;

// Offsets in shared memory: queries and outputs of each consumer; the rings of keys and values; a panel of
// zeros, if outputs end with zeros; the tiles of each consumer; barriers.
constexpr int O_AT = CONSUMERS * Q_BYTES;
constexpr int K_AT = O_AT + CONSUMERS * O_BYTES;
constexpr int V_AT = K_AT + STAGES * K_BYTES;
constexpr int ZEROS_AT = V_AT + STAGES * V_BYTES, ZEROS_BYTES = VALUE_DIM < HEAD_DIM ? Q_PANEL : 0;
constexpr int TILES_AT = ZEROS_AT + ZEROS_BYTES;
constexpr int BARRIERS_AT = TILES_AT + 2 * 4 * (CONSUMERS + 1);

// Scores may exceed the running maximum by this much (log2) before it is raised. Most tiles leave the
// maximum, and so the sums and outputs, as they are.
constexpr float RESCALE_THRESHOLD = 8.0f;

// The barriers of a block. Each "full" barrier has an "empty" one, at which its readers arrive.
struct Barriers {
    u32 base;
    __device__ __forceinline__ u32 at(int i) const { return base + 8 * i; }
    __device__ __forceinline__ u32 q_full(int consumer) const { return at(consumer); }
    __device__ __forceinline__ u32 q_empty(int consumer) const { return at(CONSUMERS + consumer); }
    __device__ __forceinline__ u32 k_full(int slot) const { return at(2 * CONSUMERS + slot); }
    __device__ __forceinline__ u32 k_empty(int slot) const { return at(2 * CONSUMERS + STAGES + slot); }
    __device__ __forceinline__ u32 v_full(int slot) const { return at(2 * CONSUMERS + 2 * STAGES + slot); }
    __device__ __forceinline__ u32 v_empty(int slot) const { return at(2 * CONSUMERS + 3 * STAGES + slot); }
    __device__ __forceinline__ u32 tiles_full(int slot) const {
        return at(2 * CONSUMERS + 4 * STAGES + slot);
    }
    __device__ __forceinline__ u32 tiles_empty(int slot) const {
        return at(2 * CONSUMERS + 4 * STAGES + 2 + slot);
    }
};

// The numbering of the pieces of work: tile by tile over all sequences and heads, starting with the tiles
// that have the most work. So short pieces come last.
struct Pieces {
    int batch, heads, tiles;

    __device__ __forceinline__ int count() const { return batch * heads * tiles; }
    __device__ __forceinline__ BlockWork at(int piece) const {
        int place = piece % (batch * heads);
        return {place % heads, place / heads, tiles - 1 - piece / (batch * heads)};
    }
};
// Returns the piece that a block takes in a round. Every other round runs backwards, so that all blocks get
// equal shares.
__device__ __forceinline__ int piece_of_round(u32 round) {
    int place = round % 2 == 0 ? int(blockIdx.x) : int(gridDim.x - 1 - blockIdx.x);
    return int(round * gridDim.x) + place;
}

// The tiles [first, end) that contain a range of keys, in one word. Both are below 2^16, which suffices for
// sequences up to 2^22.
struct Tiles {
    u32 word;

    __device__ __forceinline__ int first() const { return word & 0xffff; }
    __device__ __forceinline__ int end() const { return word >> 16; }
    __device__ __forceinline__ bool empty() const { return first() == end(); }
    static __device__ __forceinline__ Tiles of(KeyRange keys) {
        u32 first = u32(keys.first) / KEYS;
        return {first | (keys.first < keys.end ? (keys.end + KEYS - 1) / KEYS : first) << 16};
    }
};

// The tiles that the rows of each consumer see, and the tiles that any row of the block sees. Without CAUSAL,
// a separate warp finds them one piece ahead, since reading spans takes long.
struct PieceTiles {
    Tiles own[CONSUMERS], all;
};

__device__ __forceinline__ KeyRange join(KeyRange a, KeyRange b) {
    return {min(a.first, b.first), max(a.end, b.end)};
}

__device__ __forceinline__ KeyRange overlap(KeyRange a, KeyRange b) {
    return {max(a.first, b.first), min(a.end, b.end)};
}

// Returns the keys that any of COUNT queries from `t` on sees. Every lane gets the result.
template <int COUNT>
__device__ __forceinline__ KeyRange keys_of_rows(const Span *spans, int t, int seq_len) {
    if (t >= seq_len) return {seq_len, 0};
    if (CAUSAL) return {0, min(t + COUNT, seq_len)};
    KeyRange all = {seq_len, 0};
#pragma unroll
    for (int row = 0; row < COUNT; row += WARP) {
        // Lanes beyond the sequence read the last query again, so that no read waits for another.
        KeyRange one = visible_keys(spans, min(t + row + int(threadIdx.x) % WARP, seq_len - 1), seq_len);
        if (one.first < one.end) all = join(all, one);
    }
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        all = join(all, {__shfl_xor_sync(FULL_WARP, all.first, step),
                         __shfl_xor_sync(FULL_WARP, all.end, step)});
    return all;
}

// Finds the tiles of a piece whose rows begin at query `t`, with one warp.
__device__ __forceinline__ void find_tiles(PieceTiles &tiles, const Span *spans, int t, int seq_len) {
    bool writes = threadIdx.x % WARP == 0;
    KeyRange all = {seq_len, 0};
#pragma unroll 1
    for (int i = 0; i < CONSUMERS; i++) {
        KeyRange own = keys_of_rows<ROWS>(spans, t + i * ROWS, seq_len);
        all = join(all, own);
        if (writes) tiles.own[i] = Tiles::of(own);
    }
    if (writes) tiles.all = Tiles::of(all);
}

using Position = RingPosition<STAGES>;

// The scores of a consumer's thread, later its probabilities. [4·n + 2·half + j] is row 16·warp + 8·half +
// lane / 4 of the warpgroup and column 8·n + lane % 4 · 2 + j.
using Scores = float[KEYS / 2];
using Outputs = float[VALUE_DIM / 2];
using Probabilities = u32[KEYS / 4];

// The two rows of a thread.
struct RowState {
    float running_max[2];  // The maximum that probabilities are relative to, log2.
    float row_sum[2];      // Σ p over the keys of this thread.
};

// Hides the keys that the two rows of a thread do not see. `key` is the first key of the tile.
__device__ __forceinline__ void hide(Scores &scores, const KeyRange (&visible)[2], const KeyRange (&gaps)[2],
                                     int key) {
    key += threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        KeyRange range = {visible[half].first - key, visible[half].end - key};
        KeyRange gap = {gaps[half].first - key, gaps[half].end - key};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (!is_visible(range, gap, 8 * n + j)) scores[4 * n + 2 * half + j] = -infinity();
    }
}

// Raises the running maxima if any score is far above them. Then returns true, and `factor` rescales the
// sums.
__device__ __forceinline__ bool raise_max(RowState &state, const Scores &scores, float scale,
                                          float (&factor)[2]) {
    float tile_max[2];
    bool rises = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float even = scores[2 * half], odd = scores[2 * half + 1];
#pragma unroll
        for (int n = 1; n < KEYS / 8; n++) {
            even = fmaxf(even, scores[4 * n + 2 * half]);
            odd = fmaxf(odd, scores[4 * n + 2 * half + 1]);
        }
        tile_max[half] = fmaxf(even, odd) * scale;
        rises |= tile_max[half] > state.running_max[half] + RESCALE_THRESHOLD;
    }
    if (!__any_sync(FULL_WARP, rises)) return false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float raised = quad_max(fmaxf(state.running_max[half], tile_max[half]));
        factor[half] = exp2_fast(state.running_max[half] - finite(raised));
        state.running_max[half] = raised;
        state.row_sum[half] *= factor[half];
    }
    return true;
}

// Replaces scores by probabilities, and adds them to the sums of the rows.
__device__ __forceinline__ void exponentials(RowState &state, Scores &scores, float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float shift = finite(state.running_max[half]), sums[2] = {};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float &p = scores[4 * n + 2 * half + j];
                p = exp2_fast(fmaf(p, scale, -shift));
                sums[j] += p;
            }
        state.row_sum[half] += sums[0] + sums[1];
    }
}

__device__ __forceinline__ void round_to(Probabilities &p, const Scores &scores) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) p[i] = pack(scores[2 * i], scores[2 * i + 1]);
}

// The offset of a 16-byte chunk of a row in a panel.
__device__ __forceinline__ u32 chunk_of_panel(int row, int chunk) {
    return row * 128 + (chunk ^ row % 8) * 16;
}

// The queries of a consumer: in shared memory, and with KEPT also in registers.
struct Queries {
    u32 rows;
    u32 kept[KEPT ? HEAD_DIM / 4 : 1];

    // Loads queries into registers. `row` is the row whose address this lane gives.
    __device__ __forceinline__ void load(int row) {
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            u32 a[4];
            ldmatrix_x4(a, rows + k / 4 * Q_PANEL + chunk_of_panel(row, k % 4 * 2 + threadIdx.x % WARP / 16));
#pragma unroll
            for (int i = 0; i < 4; i++) kept[KEPT * (4 * k + i)] = a[i];
        }
    }
};

// scores = queries · keysᵀ, as one group of products.
__device__ __forceinline__ void multiply_keys(Scores &scores, const Queries &queries, u32 keys) {
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        u64 b = k_columns_factor(keys + k / 4 * KV_PANEL) + k % 4 * 2;
        if (KEPT)
            product<K_COLUMNS>(scores, queries.kept + KEPT * 4 * k, b, k > 0);
        else
            product<K_COLUMNS, K_COLUMNS>(
                scores, k_columns_factor(queries.rows + k / 4 * Q_PANEL) + k % 4 * 2, b, k > 0);
    }
    products_commit();
}
// out (+)= probabilities · values, as one group of products.
__device__ __forceinline__ void multiply_values(Outputs &out, const Probabilities &p, u32 values, bool add) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        product<K_ROWS>(out, p + 4 * k, k_rows_factor(values, KV_PANEL) + 128 * k, add || k > 0);
    products_commit();
}

// Arrives at a barrier with one lane of each consumer warp.
__device__ __forceinline__ void release(u32 barrier) {
    if (threadIdx.x % WARP == 0) barrier_arrive(barrier);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
flash_attention_wgmma(
    const __grid_constant__ TensorMap q_map,   // packed [batch, seq_len, heads + 2·kv_heads, HEAD_DIM]
    const __grid_constant__ TensorMap kv_map,  // the same, in boxes of KEYS rows (others: ROWS)
    const __grid_constant__ TensorMap o_map,   // = o [batch, seq_len, heads, HEAD_DIM]
    const Span *spans,                         // [batch·seq_len], without CAUSAL
    float *lse,                                // = [batch·seq_len, heads]
    int batch, int kv_heads, int group, int seq_len, float score_scale, float soft_cap) {
    extern __shared__ __align__(1024) unsigned char shared[];
    u32 base = shared_address(shared);
    Barriers barriers = {base + BARRIERS_AT};
    int heads = kv_heads * group;
    Pieces pieces = {batch, heads, (seq_len + QUERIES - 1) / QUERIES};
    PieceTiles *passed_tiles = reinterpret_cast<PieceTiles *>(shared + TILES_AT);

    if (threadIdx.x == 0) {
        for (int i = 0; i < CONSUMERS; i++) {
            barrier_init(barriers.q_full(i), 1);
            barrier_init(barriers.q_empty(i), WARPGROUP / WARP);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barriers.k_full(i), 1);
            barrier_init(barriers.v_full(i), 1);
            barrier_init(barriers.k_empty(i), CONSUMERS * WARPGROUP / WARP);
            barrier_init(barriers.v_empty(i), CONSUMERS * WARPGROUP / WARP);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(barriers.tiles_full(i), 1);
            barrier_init(barriers.tiles_empty(i), CONSUMERS * WARPGROUP / WARP + 1);
        }
        barrier_init_fence();
    }
    if constexpr (ZEROS_BYTES > 0) {
        for (int i = threadIdx.x * 16; i < ZEROS_BYTES; i += THREADS * 16)
            *reinterpret_cast<uint4 *>(shared + ZEROS_AT + i) = make_uint4(0, 0, 0, 0);
        async_proxy_fence();
    }
    __syncthreads();

    int warpgroup = __shfl_sync(FULL_WARP, int(threadIdx.x) / WARPGROUP, 0);
    if (warpgroup == CONSUMERS) {
        give_registers<PRODUCER_REGISTERS>();
        if (!CAUSAL && threadIdx.x / WARP % 4 == 1) {
            for (u32 round = 0; round * gridDim.x < pieces.count(); round++) {
                int piece = piece_of_round(round);
                if (piece >= pieces.count()) break;
                BlockWork work = pieces.at(piece);
                barrier_wait(barriers.tiles_empty(round % 2), round / 2 % 2 ^ 1);
                find_tiles(passed_tiles[round % 2], spans + i64(work.sequence) * seq_len, work.tile * QUERIES,
                           seq_len);
                if (threadIdx.x % WARP == 0) barrier_arrive(barriers.tiles_full(round % 2));
            }
        }
        // One thread copies.
        if (threadIdx.x != CONSUMERS * WARPGROUP) return;
        prefetch_map(q_map), prefetch_map(kv_map), prefetch_map(o_map);
        Position k_at, v_at;
        for (u32 round = 0; round * gridDim.x < pieces.count(); round++) {
            int piece = piece_of_round(round);
            if (piece >= pieces.count()) break;
            BlockWork work = pieces.at(piece);
            int block_t = work.tile * QUERIES, kv_head = work.head / group;
            Tiles all;
            if (CAUSAL) {
                all = Tiles::of(keys_of_rows<QUERIES>(spans, block_t, seq_len));
            } else {
                barrier_wait(barriers.tiles_full(round % 2), round / 2 % 2);
                all = passed_tiles[round % 2].all;
                barrier_arrive(barriers.tiles_empty(round % 2));
            }
            auto load = [&](int ring, int panels, u32 full, u32 empty, Position &at, int head, int tile) {
                int bytes = panels * KV_PANEL;
                barrier_wait(empty, at.parity ^ 1);
                barrier_arrive_expect(full, bytes);
                for (int panel = 0; panel < panels; panel++)
                    load_box(base + ring + at.slot * bytes + panel * KV_PANEL, kv_map, full, panel * 64,
                             head, tile * KEYS, work.sequence);
                at.advance();
            };
            auto load_k = [&](int tile) {
                u32 full = barriers.k_full(k_at.slot), empty = barriers.k_empty(k_at.slot);
                load(K_AT, PANELS, full, empty, k_at, heads + kv_head, tile);
            };
            auto load_v = [&](int tile) {
                u32 full = barriers.v_full(v_at.slot), empty = barriers.v_empty(v_at.slot);
                load(V_AT, VALUE_PANELS, full, empty, v_at, heads + kv_heads + kv_head, tile);
            };
            // In the order in which the consumers wait for them.
            if (!all.empty()) load_k(all.end() - 1);
#pragma unroll 1
            for (int i = 0; i < CONSUMERS; i++) {
                barrier_wait(barriers.q_empty(i), round % 2 ^ 1);
                barrier_arrive_expect(barriers.q_full(i), Q_BYTES);
                for (int panel = 0; panel < PANELS; panel++)
                    load_box(base + i * Q_BYTES + panel * Q_PANEL, q_map, barriers.q_full(i), panel * 64,
                             work.head, block_t + i * ROWS, work.sequence);
            }
#pragma unroll 1
            for (int tile = all.end() - 2; tile >= all.first(); tile--) {
                load_k(tile);
                load_v(tile + 1);
            }
            if (!all.empty()) load_v(all.first());
        }
        return;
    }

    take_registers<CONSUMER_REGISTERS>();
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP % 4;
    bool first_thread = threadIdx.x % WARPGROUP == 0;
    int row = warp * 16 + lane % 16;
    Queries queries = {base + u32(warpgroup) * Q_BYTES};
    u32 staged = base + O_AT + warpgroup * O_BYTES;
    Score score(score_scale, soft_cap);
    Position k_at, v_at;
    for (u32 round = 0; round * gridDim.x < pieces.count(); round++) {
        int piece = piece_of_round(round);
        if (piece >= pieces.count()) break;
        BlockWork work = pieces.at(piece);
        int block_t = work.tile * QUERIES, first_t = block_t + warpgroup * ROWS;
        const Span *own_spans = CAUSAL ? spans : spans + i64(work.sequence) * seq_len;
        int t = first_t + warp * 16 + lane / 4;
        KeyRange visible[2] = {visible_keys(own_spans, t, seq_len), visible_keys(own_spans, t + 8, seq_len)};
        KeyRange gaps[2] = {hidden_keys(own_spans, t, seq_len), hidden_keys(own_spans, t + 8, seq_len)};

        // Keys that every row of the warp sees, ignoring rows beyond the sequence. Those after a gap do not
        // count.
        KeyRange clear = {0, first_t + 1};
        if (!CAUSAL) {
            clear.end = seq_len;
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (t + 8 * half < seq_len) {
                    clear = overlap(clear, visible[half]);
                    if (gaps[half].first < gaps[half].end) clear.end = min(clear.end, gaps[half].first);
                }
#pragma unroll
            for (int step = 4; step < WARP; step *= 2)
                clear = overlap(clear, {__shfl_xor_sync(FULL_WARP, clear.first, step),
                                        __shfl_xor_sync(FULL_WARP, clear.end, step)});
        }
        // Caps scores, and hides those that the mask excludes.
        auto mask = [&](Scores &scores, int tile) {
            int key = tile * KEYS;
            if (SOFT_CAP)
#pragma unroll
                for (int i = 0; i < KEYS / 2; i++) scores[i] = score(scores[i]);
            if (key < clear.first || key + KEYS > clear.end) hide(scores, visible, gaps, key);
        };
        // Skips tiles that only other consumers need.
        auto skip = [&](int from, int to) {
#pragma unroll 1
            for (int tile = from; tile < to; tile++) {
                barrier_wait(barriers.k_full(k_at.slot), k_at.parity);
                release(barriers.k_empty(k_at.slot));
                k_at.advance();
                barrier_wait(barriers.v_full(v_at.slot), v_at.parity);
                release(barriers.v_empty(v_at.slot));
                v_at.advance();
            }
        };

        Outputs out;
        RowState state = {{-infinity(), -infinity()}, {0.0f, 0.0f}};
        float factor[2];
        barrier_wait(barriers.q_full(warpgroup), round % 2);
        Tiles all, own;
        if (CAUSAL) {
            all = Tiles::of(keys_of_rows<QUERIES>(spans, block_t, seq_len));
            own = Tiles::of(keys_of_rows<ROWS>(spans, first_t, seq_len));
        } else {
            barrier_wait(barriers.tiles_full(round % 2), round / 2 % 2);
            all = passed_tiles[round % 2].all, own = passed_tiles[round % 2].own[warpgroup];
            __syncwarp();
            release(barriers.tiles_empty(round % 2));
        }
        if (KEPT) {
            queries.load(row);
            __syncwarp();
            release(barriers.q_empty(warpgroup));
        }
        if (!own.empty()) {
            skip(own.end(), all.end());
            Scores scores;
            Probabilities p;
            barrier_wait(barriers.k_full(k_at.slot), k_at.parity);
            products_begin();
            multiply_keys(scores, queries, base + K_AT + k_at.slot * K_BYTES);
            products_wait<0>();
            hold(scores);
            release(barriers.k_empty(k_at.slot));
            k_at.advance();
            mask(scores, own.end() - 1);
            raise_max(state, scores, score.factor, factor);
            exponentials(state, scores, score.factor);
            round_to(p, scores);
            bool add = false;
#pragma unroll 1
            for (int tile = own.end() - 2; tile >= own.first(); tile--) {
                barrier_wait(barriers.k_full(k_at.slot), k_at.parity);
                hold(scores), hold(p), hold(out);
                products_begin();
                multiply_keys(scores, queries, base + K_AT + k_at.slot * K_BYTES);
                barrier_wait(barriers.v_full(v_at.slot), v_at.parity);
                products_begin();
                multiply_values(out, p, base + V_AT + v_at.slot * V_BYTES, add);
                add = true;
                products_wait<1>();
                hold(scores);
                release(barriers.k_empty(k_at.slot));
                k_at.advance();
                mask(scores, tile);
                bool raised = raise_max(state, scores, score.factor, factor);
                exponentials(state, scores, score.factor);
                products_wait<0>();
                hold(out), hold(p);
                release(barriers.v_empty(v_at.slot));
                v_at.advance();
                if (raised) {
#pragma unroll
                    for (int i = 0; i < VALUE_DIM / 2; i++) out[i] *= factor[i / 2 % 2];
                }
                round_to(p, scores);
            }
            if (!KEPT) release(barriers.q_empty(warpgroup));
            barrier_wait(barriers.v_full(v_at.slot), v_at.parity);
            hold(p), hold(out);
            products_begin();
            multiply_values(out, p, base + V_AT + v_at.slot * V_BYTES, add);
            products_wait<0>();
            hold(out);
            release(barriers.v_empty(v_at.slot));
            v_at.advance();
            skip(all.first(), own.first());
        } else {
            if (!KEPT) release(barriers.q_empty(warpgroup));
            skip(all.first(), all.end());
#pragma unroll
            for (int i = 0; i < VALUE_DIM / 2; i++) out[i] = 0.0f;
        }

        // The four lanes of a row hold the same sums; two of them store the lse of one of their two rows.
        float lane_max = 0.0f, lane_sum = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row_sum = quad_sum(state.row_sum[half]);
            // A query without visible keys yields zeros.
            factor[half] = row_sum == 0.0f ? 0.0f : reciprocal_fast(row_sum);
            if (lane % 4 == half) lane_sum = row_sum, lane_max = state.running_max[half];
        }
        int lane_t = t + lane % 4 * 8;
        if (lane % 4 < 2 && lane_t < seq_len)
            lse[(i64(work.sequence) * seq_len + lane_t) * heads + work.head] =
                score.absolute(lane_max + log2_fast(lane_sum)) * LN_2;

        // Outputs are staged only after the previous piece's outputs have left.
        if (first_thread) store_wait_read();
        named_barrier(1 + warpgroup, WARPGROUP);
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 16; n++) {
            u32 pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                pairs[i] = pack(out[8 * n + 2 * i] * factor[i % 2], out[8 * n + 2 * i + 1] * factor[i % 2]);
            stmatrix_x4(staged + n / 4 * Q_PANEL + chunk_of_panel(row, n % 4 * 2 + lane / 16), pairs);
        }
        async_proxy_fence();
        named_barrier(1 + warpgroup, WARPGROUP);
        if (first_thread && first_t < seq_len) {
            for (int panel = 0; panel < VALUE_PANELS; panel++)
                store_box(o_map, staged + panel * Q_PANEL, panel * 64, work.head, first_t, work.sequence);
            for (int panel = VALUE_PANELS; panel < PANELS; panel++)
                store_box(o_map, base + ZEROS_AT, panel * 64, work.head, first_t, work.sequence);
            store_commit();
        }
    }
    if (first_thread) store_wait_read();
}
