// Lion, with the same bits as src/engine/optim/lion.rs.
#include "elementwise.cuh"

__device__ __forceinline__ void update(const Scalars &s, bool decays, float &p, float (&slots)[HELD], float g) {
    float decay = s.row[0], lr = s.row[1], &m = slots[0];
    float beta1 = s.constants[0], one_minus_beta1 = s.constants[1];
    float beta2 = s.constants[2], one_minus_beta2 = s.constants[3];
    float direction = __fadd_rn(__fmul_rn(m, beta1), __fmul_rn(g, one_minus_beta1));
    if (decays) p = __fmul_rn(p, decay);
    if (direction > 0.0f) {
        p = __fsub_rn(p, lr);
    } else if (direction < 0.0f) {
        p = __fadd_rn(p, lr);
    }
    m = __fmaf_rn(one_minus_beta2, g, __fmul_rn(m, beta2));
}
