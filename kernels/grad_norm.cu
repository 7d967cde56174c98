// Gradient norm.
#include "common.cuh"
