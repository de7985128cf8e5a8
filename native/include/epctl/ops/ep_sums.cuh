// Sums of rows in float32, a segment of 2 KiB for each warp.
#pragma once

#include "epctl/ops/ep_common.cuh"

namespace epctl::ep {

constexpr uint32_t kUnroll = 4;
constexpr uint32_t kSegmentVectors = kUnroll * kWarpThreads;

// Vectors `from + i × 32` of a row, i < kUnroll; nothing past the row's end.
__device__ __forceinline__ void load_segment(uint4 (&loaded)[kUnroll], const uint8_t* row, uint32_t from,
                                             uint32_t num_vectors) {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t vector = from + i * kWarpThreads;
        if (vector < num_vectors) loaded[i] = load_vector(reinterpret_cast<const uint4*>(row) + vector);
    }
}

__device__ __forceinline__ void add_segment(float (&sums)[kUnroll][8], const uint4 (&loaded)[kUnroll]) {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) add_vector(sums[i], loaded[i]);
}

// The sum of the rows that the bits of `lanes` name, in ascending order: row_of(lane) gives the address, in all lanes.
template <class RowOf>
__device__ __forceinline__ void add_rows(float (&sums)[kUnroll][8], uint32_t lanes, uint32_t from, uint32_t num_vectors,
                                         RowOf row_of) {
    // Two rows are in flight: over the link, each takes a microsecond.
    uint4 next[kUnroll] = {};
    if (lanes != 0) load_segment(next, row_of(__ffs(static_cast<int>(lanes)) - 1), from, num_vectors);
#pragma unroll 1
    while (lanes != 0) {
        uint4 now[kUnroll];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) now[i] = next[i];
        lanes &= lanes - 1;
        if (lanes != 0) load_segment(next, row_of(__ffs(static_cast<int>(lanes)) - 1), from, num_vectors);
        add_segment(sums, now);
    }
}

__device__ __forceinline__ void store_vectors(uint8_t* row, uint32_t from, uint32_t num_vectors,
                                              const uint4 (&vectors)[kUnroll]) {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t vector = from + i * kWarpThreads;
        if (vector < num_vectors) store_vector(reinterpret_cast<uint4*>(row) + vector, vectors[i]);
    }
}

__device__ __forceinline__ void store_segment(uint8_t* row, uint32_t from, uint32_t num_vectors,
                                              const float (&sums)[kUnroll][8]) {
#pragma unroll
    for (uint32_t i = 0; i < kUnroll; ++i) {
        const uint32_t vector = from + i * kWarpThreads;
        if (vector < num_vectors) store_vector(reinterpret_cast<uint4*>(row) + vector, round_vector(sums[i]));
    }
}

__device__ __forceinline__ void add_bias(float (&sums)[kUnroll][8], const void* bias, uint64_t offset, uint32_t from,
                                         uint32_t num_vectors) {
    if (bias == nullptr) return;
    uint4 loaded[kUnroll] = {};
    load_segment(loaded, static_cast<const uint8_t*>(bias) + offset, from, num_vectors);
    add_segment(sums, loaded);
}

}  // namespace epctl::ep
