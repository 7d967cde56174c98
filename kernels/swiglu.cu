// SwiGLU.
#include "common.cuh"
