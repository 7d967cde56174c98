// AdamW, with the same bits as src/engine/optim/adamw.rs.
#include "elementwise.cuh"

__device__ __forceinline__ void update(const Scalars &s, bool decays, float &p, float (&slots)[HELD], float g) {
    float decay = s.row[0], size = s.row[1], correction = s.row[2];
    float one_minus_beta1 = s.constants[0], beta2 = s.constants[1], one_minus_beta2 = s.constants[2];
    float &m = slots[0], &v = slots[1];
    m = __fmaf_rn(one_minus_beta1, __fsub_rn(g, m), m);
    v = __fmaf_rn(__fmul_rn(one_minus_beta2, g), g, __fmul_rn(beta2, v));
    float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), correction), s.constants[3]);
    p = __fsub_rn(__fmul_rn(p, decays ? decay : 1.0f), __fdiv_rn(__fmul_rn(size, m), denominator));
}
