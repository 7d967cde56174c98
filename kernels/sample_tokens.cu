// Samples the next token of every sequence from its logits, for generation, as in
// src/engine/ops/sample_tokens.rs.
//
// A block handles a row. Logits are ordered by their bits: a larger logit has a larger key. A cut is
// described by the key of the last token kept, and by how many tokens with that key are kept, the first ones
// by id. The key is found digit by digit, from the highest. In every pass each thread sums the weights (or
// the number) of its tokens per digit value, in a column of its own. Integer sums are the same in any order.
//
// Definitions: T; KEY_BITS (bits of a logit); VEC (a divisor of the width of a row); WEIGHT_BITS (bits of the
// likeliest token's weight); THREADS (per block: 16 warps, one per value of a digit).
#include "common.cuh"

constexpr int DIGIT_BITS = 4, DIGITS = 1 << DIGIT_BITS, WARPS = THREADS / WARP;
static_assert(WARPS == DIGITS, "a warp sums up a digit");
// Packs that a thread loads at a time.
constexpr int PACKS = 4;

// Returns the bits of a logit as an unsigned number of KEY_BITS bits, in the order of logits. It is 0 only
// for NaN.
__device__ __forceinline__ u32 key_of(float logit) {
    u32 bits = __float_as_uint(logit);
    return (bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u)) >> (32 - KEY_BITS);
}
__device__ __forceinline__ float logit_of(u32 key) {
    u32 bits = key << (32 - KEY_BITS);
    return __uint_as_float(bits >> 31 ? bits ^ 0x80000000u : ~bits & (0xffffffffu << (32 - KEY_BITS)));
}

// Calls f(id, logit) for the elements [begin, end) of a row; `lane` of `lanes` takes every lanes-th pack.
// `begin` is a multiple of VEC.
template <typename F>
__device__ __forceinline__ void for_each(const T *__restrict__ row, int begin, int end, int lane, int lanes,
                                         F f) {
    for (int from = begin + lane * VEC; from < end; from += lanes * VEC * PACKS) {
        Pack<T, VEC> packs[PACKS];
#pragma unroll
        for (int n = 0; n < PACKS; n++) {
            int at = from + n * lanes * VEC;
            packs[n] = Pack<T, VEC>{};
            if (at < end) packs[n] = *reinterpret_cast<const Pack<T, VEC> *>(row + at);
        }
#pragma unroll
        for (int n = 0; n < PACKS; n++) {
            float logits[VEC];
            unpack(packs[n], logits);
#pragma unroll
            for (int c = 0; c < VEC; c++) {
                int at = from + n * lanes * VEC + c;
                if (at < end) f(at, logits[c]);
            }
        }
    }
}

__device__ __forceinline__ u64 warp_sum(u64 x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}
__device__ __forceinline__ u64 warp_max(u64 x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(FULL_WARP, x, step));
    return x;
}

// What is kept of a row: tokens with larger keys than `key`, and the first `equals` (by id) with that key.
struct Kept {
    u32 key, equals;
};

// A row, and the weights of its tokens relative to the likeliest.
struct Row {
    const T *logits;
    int vocab;
    float highest, inverse_temperature;

    __device__ __forceinline__ u64 weight(float logit) const {
        return __float2ull_rn(expf((logit - highest) * inverse_temperature) * float(1ull << WEIGHT_BITS));
    }
};

// Shared by the threads of a block.
struct Shared {
    u64 sums[DIGITS];
    u32 equals[WARPS];
};

// Finds, from the largest key down, the key at which the sum of value(logit) over `kept` reaches the target
// wanted(sum of all). Returns the key; `above` becomes the sum over larger keys, and `target` the target.
// `columns` has room for DIGITS sums of every thread; `value_of_equal` is the value of a token with kept.key.
template <typename Value, typename Wanted>
__device__ __forceinline__ u32 find_key(const Row &row, const Kept &kept, u64 value_of_equal, u64 *columns,
                                        Shared &shared, u64 &above, u64 &target, Value value, Wanted wanted) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 prefix = 0, mask = 0;
    above = 0;
    target = 0;
    for (int shift = KEY_BITS - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
#pragma unroll
        for (int digit = 0; digit < DIGITS; digit++) columns[digit * THREADS + threadIdx.x] = 0;
        for_each(row.logits, 0, row.vocab, threadIdx.x, THREADS, [&](int, float logit) {
            u32 key = key_of(logit);
            if ((key & mask) == prefix && key > kept.key)
                columns[(key >> shift) % DIGITS * THREADS + threadIdx.x] += value(logit);
        });
        if (threadIdx.x == 0 && (kept.key & mask) == prefix)
            columns[(kept.key >> shift) % DIGITS * THREADS] += kept.equals * value_of_equal;
        __syncthreads();
        u64 sum = 0;
        for (int t = lane; t < THREADS; t += WARP) sum += columns[warp * THREADS + t];
        sum = warp_sum(sum);
        if (lane == 0) shared.sums[warp] = sum;
        __syncthreads();
        if (mask == 0) {
            u64 all = 0;
            for (int digit = 0; digit < DIGITS; digit++) all += shared.sums[digit];
            target = wanted(all);
        }
        int digit = DIGITS - 1;
        while (digit > 0 && above + shared.sums[digit] < target) above += shared.sums[digit--];
        prefix |= u32(digit) << shift;
        mask |= u32(DIGITS - 1) << shift;
    }
    // The sums may be overwritten now.
    __syncthreads();
    return prefix;
}

// tokens[row] = the chosen token, or 0 and bad[row] += 1. positions[row] counts up by one, at most to `last`.
// logits: [rows, width]; only the first `vocab` columns count. There is one block per row. top_k: 0 means
// all; top_p: the bits of a double. `add_position` and `add_bad` say whether the old contents count.
extern "C" __global__ void __launch_bounds__(THREADS)
    sample_tokens(const T *__restrict__ logits, u32 *__restrict__ tokens, u32 *__restrict__ positions,
                  u32 *__restrict__ bad, int vocab, int width, u32 greedy, float inverse_temperature, u32 top_k,
                  u64 top_p, u32 key0, u32 key1, u32 last, u32 add_position, u32 add_bad) {
    extern __shared__ __align__(16) u64 columns[];
    __shared__ Shared shared;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    Row row = {logits + i64(blockIdx.x) * width, vocab, 0.0f, inverse_temperature};
    u32 position = add_position ? positions[blockIdx.x] : 0;

    // The largest key, and the lowest id that has it.
    u64 best = 0;
    bool broken = false;
    for_each(row.logits, 0, vocab, threadIdx.x, THREADS, [&](int id, float logit) {
        broken |= logit != logit;
        best = max(best, u64(key_of(logit)) << 32 | ~u32(id));
    });
    best = warp_max(best);
    if (lane == 0) shared.sums[warp] = best;
    broken = __syncthreads_or(broken);
    for (int w = 0; w < WARPS; w++) best = max(best, shared.sums[w]);
    __syncthreads();
    row.highest = logit_of(u32(best >> 32));
    broken |= !(row.highest > -infinity() && row.highest < infinity());
    if (greedy || broken) {
        if (threadIdx.x == 0) {
            tokens[blockIdx.x] = broken ? 0 : ~u32(best);
            positions[blockIdx.x] = min(position + 1, last);
            bad[blockIdx.x] = (add_bad ? bad[blockIdx.x] : 0) + broken;
        }
        return;
    }

    // No token has key 0.
    Kept kept = {0, 0};
    u64 above, target;
    if (top_k > 0) {
        u32 key = find_key(
            row, kept, 0, columns, shared, above, target, [](float) { return u64(1); },
            [&](u64) { return u64(top_k); });
        kept = {key, u32(target - above)};
    }
    double fraction = __longlong_as_double(i64(top_p));
    if (fraction < 1.0) {
        u64 equal = kept.key == 0 ? 0 : row.weight(logit_of(kept.key));
        u32 key = find_key(
            row, kept, equal, columns, shared, above, target, [&](float logit) { return row.weight(logit); },
            [&](u64 all) {
                u64 wanted = u64(ceil(fraction * double(all)));
                return min(max(wanted, u64(1)), all);
            });
        u64 weight = row.weight(logit_of(key));
        u32 equals = weight == 0 ? 1 : u32((target - above + weight - 1) / weight);
        kept = {key, key == kept.key ? min(equals, kept.equals) : equals};
    }

    // The draw: among the kept tokens in the order of ids, the one at which the running sum of weights
    // exceeds a random share of the total. Every pass divides a range of tokens among the warps and continues
    // with the part that contains this token.
    u64 equal = kept.key == 0 ? 0 : row.weight(logit_of(kept.key)), left = 0;
    int from = 0, to = vocab, part;
    u32 equals = kept.equals;
    bool drawn = false;
    do {
        part = ((to - from + WARPS - 1) / WARPS + WARP - 1) / WARP * WARP;
        int begin = from + warp * part;
        u64 mass = 0;
        u32 same = 0;
        for_each(row.logits, begin, min(to, begin + part), lane, WARP, [&](int, float logit) {
            u32 key = key_of(logit);
            if (key > kept.key) mass += row.weight(logit);
            same += key == kept.key;
        });
        mass = warp_sum(mass);
        same = u32(warp_sum(u64(same)));
        if (lane == 0) shared.sums[warp] = mass, shared.equals[warp] = same;
        __syncthreads();
        if (!drawn) {
            u64 all = 0;
            u32 rest = equals;
            for (int w = 0; w < WARPS; w++) {
                u32 taken = min(shared.equals[w], rest);
                all += shared.sums[w] + taken * equal;
                rest -= taken;
            }
            uint4 bits = philox(make_uint4(position, blockIdx.x, 0, 0), key0, key1);
            left = __umul64hi(u64(bits.x) << 32 | bits.y, all);
            drawn = true;
        }
        int owner = 0;
        for (; owner < WARPS - 1; owner++) {
            u32 taken = min(shared.equals[owner], equals);
            u64 weight = shared.sums[owner] + taken * equal;
            if (left < weight) break;
            left -= weight;
            equals -= taken;
        }
        __syncthreads();
        from += owner * part;
        to = min(to, from + part);
    } while (part > WARP);
    if (warp > 0) return;
    // One token per lane.
    float logit = from + lane < to ? up(row.logits[from + lane]) : -infinity();
    u32 key = key_of(logit);
    bool same = from + lane < to && key == kept.key;
    u32 rank = __popc(__ballot_sync(FULL_WARP, same) & ((1u << lane) - 1));
    bool live = from + lane < to && (key > kept.key || (same && rank < equals));
    u64 sum = live ? row.weight(logit) : 0;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        u64 before = __shfl_up_sync(FULL_WARP, sum, step);
        if (lane >= step) sum += before;
    }
    u32 reached = __ballot_sync(FULL_WARP, left < sum);
    if (lane == 0) {
        tokens[blockIdx.x] = from + __ffs(reached) - 1;
        positions[blockIdx.x] = min(position + 1, last);
        bad[blockIdx.x] = add_bad ? bad[blockIdx.x] : 0;
    }
}
