// SGD with momentum, or without momentum and slots, with the same bits as src/engine/optim/sgd.rs.
#include "elementwise.cuh"

__device__ __forceinline__ void update(const Scalars &s, bool decays, float &p, float (&slots)[HELD], float g) {
    float lr = s.row[0], decay = s.constants[0], momentum = s.constants[1];
    if (decays) g = __fmaf_rn(decay, p, g);
    if (SLOTS > 0) g = slots[0] = __fadd_rn(__fmul_rn(momentum, slots[0]), g);
    p = __fmaf_rn(-lr, g, p);
}
