// Step counter: step[1] += 1, unless bad[1] is set.
#include "common.cuh"

extern "C" __global__ void advance(const u32 *bad, u32 *step) {
    if (*bad == 0) *step += 1;
}
