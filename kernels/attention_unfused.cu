// Attention with its scores and probabilities as tensors.
#include "common.cuh"
