// SiLU.
#include "common.cuh"
