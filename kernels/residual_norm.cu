// Residual addition and the norm that follows.
#include "common.cuh"
