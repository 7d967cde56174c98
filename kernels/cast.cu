// Converts between number formats, rounding to nearest even: y = x.
#include "common.cuh"

// x: n elements of FROM; y: n elements of TO.
extern "C" __global__ void cast(const FROM *__restrict__ x, TO *__restrict__ y, int n) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) * VEC;
    if (at >= n) return;
    float value[VEC];
    load(x + at, value);
    store(y + at, value);
}
