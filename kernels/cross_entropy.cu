// Cross-entropy.
#include "common.cuh"
