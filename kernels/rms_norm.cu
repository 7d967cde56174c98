// Root-mean-square norm and its gradient.
#include "common.cuh"
