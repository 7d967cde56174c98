// The scales of the next step from the maxima of this one, as in src/engine/ops/update_scales.rs.
//
// Definitions: SITES, RANKS, LARGEST_NUMBERS (of the formats of consecutive sites; 0 for a site that keeps
// its scales), MARGINS (how many times larger than before their maxima may be), ROLES (of weights, which have
// one site of each format), MOST_ROLES. One block.
#include "common.cuh"

constexpr float LARGEST[] = LARGEST_NUMBERS, MARGIN[] = MARGINS;
constexpr int KINDS = sizeof(LARGEST) / sizeof(float);
__constant__ u8 ROLE[] = ROLES;
constexpr int ROW = 8; // Numbers in a row: a scale begins it, and its inverse the second half.

// all: [RANKS, SITES], possibly the same memory as maxima; bad: [1]; scales: [SITES, ROW]; counts: [SITES,
// 2]; maxima: [SITES]; health: [2·KINDS + 1 + MOST_ROLES·KINDS].
extern "C" __global__ void update_scales(const float *all, u32 *bad, float *scales, float *maxima,
                                         double *counts, float *health) {
    __shared__ u32 finite, growth;
    __shared__ double sums[2 * KINDS];
    // The bits of the smallest scales, which order like the scales.
    __shared__ u32 smallest[MOST_ROLES * KINDS];
    if (threadIdx.x < MOST_ROLES * KINDS) smallest[threadIdx.x] = 0xffffffffu;
    if (threadIdx.x == 0) finite = *bad == 0, growth = 0;
    if (threadIdx.x < 2 * KINDS) {
        double sum = 0.0;
        int which = threadIdx.x % 2;
        for (int site = threadIdx.x / 2; site < SITES; site += KINDS) sum += counts[2 * site + which];
        sums[threadIdx.x] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < RANKS * SITES; i += blockDim.x) {
        if (!(fabsf(all[i]) < infinity())) finite = 0;
    }
    __syncthreads();
    for (int site = threadIdx.x; site < SITES; site += blockDim.x) {
        u32 most = 0;
        for (int rank = 0; rank < RANKS; rank++) most = max(most, __float_as_uint(all[rank * SITES + site]));
        float maximum = __uint_as_float(most), largest = LARGEST[site % KINDS];
        float margin = MARGIN[site % KINDS];
        if (finite && largest > 0.0f && maximum > 0.0f) {
            float before = scales[ROW * site];
            float ratio = before > 0.0f ? __fdiv_rn(__fmul_rn(maximum, before), largest / margin) : 0.0f;
            atomicMax(&growth, __float_as_uint(ratio));
            double size = double(__fmul_rn(maximum, margin));
            float scale = float(double(largest) / (size < 1e-12 ? 1e-12 : size));
            for (int i = 0; i < ROW; i++) scales[ROW * site + i] = 0.0f;
            scales[ROW * site] = scale;
            scales[ROW * site + ROW / 2] = float(1.0 / double(scale));
        }
        u32 scale = __float_as_uint(scales[ROW * site]);
        if (scale > 0) atomicMin(&smallest[ROLE[site / KINDS] * KINDS + site % KINDS], scale);
        maxima[site] = 0.0f;
        counts[2 * site] = counts[2 * site + 1] = 0.0;
    }
    __syncthreads();
    if (threadIdx.x < 2 * KINDS) health[threadIdx.x] = float(sums[threadIdx.x]);
    if (threadIdx.x < MOST_ROLES * KINDS) {
        u32 bits = smallest[threadIdx.x];
        health[2 * KINDS + 1 + threadIdx.x] = bits == 0xffffffffu ? 0.0f : __uint_as_float(bits);
    }
    if (threadIdx.x == 0) {
        health[2 * KINDS] = __uint_as_float(growth);
        if (!finite) *bad = 1;
    }
}
