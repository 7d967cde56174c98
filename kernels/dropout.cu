// Dropout.
#include "common.cuh"
