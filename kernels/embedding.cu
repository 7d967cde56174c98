// Token embedding.
#include "common.cuh"
