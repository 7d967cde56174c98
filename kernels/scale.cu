// Multiplication by a constant.
#include "common.cuh"
