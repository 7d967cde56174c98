// Norms of queries and keys, and the rotary embedding.
#include "common.cuh"
