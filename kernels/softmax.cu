// Softmax.
#include "common.cuh"
