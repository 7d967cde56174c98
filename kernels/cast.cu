// Conversion.
#include "common.cuh"
