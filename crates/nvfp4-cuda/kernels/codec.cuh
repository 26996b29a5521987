// The codecs of NVFP4 on the device: e4m3 block scales, e2m1 codes, and the reciprocal that quantization uses.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

__device__ __forceinline__ float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- e4m3 ------------------------------------------------------------------------------------------------------

// Nearest e4m3 of s >= 0, saturating; NaN gives 0x7F.
__device__ __forceinline__ uint32_t e4m3_from_float(float s) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(s));
    return pair & 0xff;
#else
    if (s != s) return 0x7f;
    if (!(s < 464.0f)) return 0x7e;
    uint32_t bits;
    if (s < 0.015625f) {
        // Below 2^-6 the step is 2^-9: 2^14 has that unit in the last place.
        bits = __float_as_uint(s + 16384.0f) - __float_as_uint(16384.0f);
    } else {
        uint32_t u = __float_as_uint(s);
        bits = ((u + 0x7ffff + ((u >> 20) & 1)) >> 20) - (120u << 3);
    }
    return bits > 0x7e ? 0x7e : bits;
#endif
}

// Value of a non-negative e4m3 byte.
__device__ __forceinline__ float e4m3_to_float(uint32_t byte) {
    if ((byte & 0x7f) == 0x7f) return __uint_as_float(0x7fffffff);
    // As f16 bits the byte is too small by 2^8, subnormals included.
    return __half2float(__ushort_as_half(static_cast<unsigned short>(byte << 7))) * 256.0f;
}

// ---- e2m1 ------------------------------------------------------------------------------------------------------

// Eight codes, the first in the lowest nibble.
__device__ __forceinline__ uint32_t e2m1x8_from_float(const float* v) {
#if __CUDA_ARCH__ >= 1000
    uint32_t codes;
    asm("{\n"
        ".reg .b8 b0, b1, b2, b3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b0, %2, %1;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b1, %4, %3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b2, %6, %5;\n"
        "cvt.rn.satfinite.e2m1x2.f32 b3, %8, %7;\n"
        "mov.b32 %0, {b0, b1, b2, b3};\n"
        "}"
        : "=r"(codes)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
    return codes;
#else
    // For |v| in [2^e, 2^(e+1)), e = 0, 1, 2 (and e = 0 below 1), the grid's step is 2^(e-1). Adding p * 2^22 with
    // p = 2^e makes the f32 addition itself round to that step, ties to even; the sum's low bits are then |v| / step,
    // and the code is that plus 2e. The constants of all eight are taken off at the end.
    uint32_t magnitudes = 0, signs = 0;
#pragma unroll
    for (int i = 7; i >= 0; --i) {
        float a = fminf(fabsf(v[i]), 6.0f);  // NaN gives 6
        uint32_t p = max(__float_as_uint(a), 0x3f800000u) & 0x7f800000u;
        uint32_t t = __float_as_uint(__fmaf_rn(__uint_as_float(p), 4194304.0f, a));
        magnitudes = (magnitudes << 4) + (t - p - (22u << 23) + (p >> 22) - 254u);
        signs = __funnelshift_l(__float_as_uint(v[i]), signs, 1);  // a NaN that an operation made is positive
    }
    // Spread bit i of `signs` to bit 4i + 3.
    signs = (signs | (signs << 12)) & 0x000f000fu;
    signs = (signs | (signs << 6)) & 0x03030303u;
    signs = (signs | (signs << 3)) & 0x11111111u;
    return magnitudes | (signs << 3);
#endif
}

// Value of a code.
__device__ __forceinline__ float e2m1_to_float(uint32_t code) {
    uint32_t magnitude = code & 7;
    float value = magnitude < 2 ? 0.5f * static_cast<float>(magnitude)
                                : __uint_as_float(0x3f000000u + (magnitude << 22));
    return __uint_as_float(__float_as_uint(value) | ((code & 8) << 28));
}

}  // namespace
