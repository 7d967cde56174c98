// The keys that each query sees through a sliding window.
//
// Definitions: CAUSAL (1: without a window query t sees keys 0 to t; 0: the keys of its span).
#include "common.cuh"

// windows[row] = the keys of query t from t + 1 − window on. spans: [rows], without CAUSAL; windows: [rows].
extern "C" __global__ void window_spans(const uint2 *spans, uint2 *windows, int rows, int seq_len, int window) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int t = row % seq_len;
    uint2 span = CAUSAL ? make_uint2(0, t + 1) : spans[row];
    u32 end = min(span.y, u32(seq_len));
    windows[row] = make_uint2(min(max(span.x, u32(max(t + 1 - window, 0))), end), end);
}
