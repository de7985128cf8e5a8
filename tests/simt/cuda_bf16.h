// The little of CUDA's header that the kernels use.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

struct __nv_bfloat162 {
    uint16_t x, y;
};

// To nearest, ties to even; NaN is CUDA's.
inline uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (std::isnan(value)) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {to_bf16(x), to_bf16(y)};
}
