// The kernel of optimizers that treat every element alike. Each optimizer has a file with its rule.
// Definitions: UPDATE (the kernel's name), SLOTS (numbers that the rule keeps per element), COLUMNS of the
// schedule (1, 2 or 4), T and HAS_COMPUTE_COPY (for the compute copy), and the definitions of optimizer.cuh.
#pragma once
#include "optimizer.cuh"

// The numbers that a rule computes with besides the element: the step's row of the schedule, and the rule's
// constants in the order of src/engine/optim/.
struct Scalars {
    float row[4], constants[4];
};

// Arrays need at least one element, even without slots.
constexpr int HELD = SLOTS > 0 ? SLOTS : 1;

// The rule: updates a parameter and its slots by the clipped gradient `g`. An operation is fused exactly
// where the CPU fuses it. The others use the __f…_rn functions, which keep the compiler from fusing them.
__device__ __forceinline__ void update(const Scalars &s, bool decays, float &p, float (&slots)[HELD], float g);

struct Slots {
    float *at[8];
};

// (params, slots, compute_copy)[n] ← rule(grads[n]) with row step[1] of schedule[steps + 1, COLUMNS]. Nothing
// changes if bad[1] is set. `compute_copy` is written only with HAS_COMPUTE_COPY. The kernel updates the slot
// elements from first to n. The slots hold only elements of the parameter group and of this rank; params
// holds only the rank's shard if masters are sharded.
extern "C" __global__ void __launch_bounds__(THREADS)
UPDATE(const float *grads, const float *schedule, const u32 *step, const float *clip, const u32 *bad, float *params,
       Slots slots, T *compute_copy, float c0, float c1, float c2, float c3, u64 first, u64 n, int rank_row) {
    ThreadElements elements = elements_of_thread(first, rank_row);
    auto [at, flat, master] = elements;
    bool whole = at + VEC <= n;
    float g4[VEC], p4[VEC], slots4[HELD][VEC] = {};
    // These loads come before anything that depends on another load.
    if (whole) {
        load_streaming(grads + flat, g4);
        load_streaming(params + master, p4);
#pragma unroll
        for (int k = 0; k < SLOTS; k++) load_streaming(slots.at[k] + at, slots4[k]);
    }
    if (*bad != 0) return;
    float row[COLUMNS], factor = *clip;
    load(schedule + u64(*step) * COLUMNS, row);
    Scalars s = {{}, {c0, c1, c2, c3}};
#pragma unroll
    for (int column = 0; column < COLUMNS; column++) s.row[column] = row[column];
    float held[HELD] = {};
    if (whole) {
        Decays decays = decays_of(elements);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
#pragma unroll
            for (int k = 0; k < SLOTS; k++) held[k] = slots4[k][i];
            update(s, decays[i], p4[i], held, __fmul_rn(g4[i], factor));
#pragma unroll
            for (int k = 0; k < SLOTS; k++) slots4[k][i] = held[k];
        }
        store_streaming(params + master, p4);
#pragma unroll
        for (int k = 0; k < SLOTS; k++) store_streaming(slots.at[k] + at, slots4[k]);
        if (HAS_COMPUTE_COPY) store(compute_copy + flat, p4);
        return;
    }
    for (; at < n; at++, flat++, master++) {
#pragma unroll
        for (int k = 0; k < SLOTS; k++) held[k] = slots.at[k][at];
        update(s, switches_up_to(flat) % 2 == 1, params[master], held, __fmul_rn(grads[flat], factor));
#pragma unroll
        for (int k = 0; k < SLOTS; k++) slots.at[k][at] = held[k];
        if (HAS_COMPUTE_COPY) compute_copy[flat] = down<T>(params[master]);
    }
}
