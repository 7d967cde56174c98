// Rotary embedding.
#include "common.cuh"
