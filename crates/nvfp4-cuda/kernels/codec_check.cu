// Checks of the device codecs against their definitions, for every f32. Used by the GPU tests only.
#include "codec.cuh"

namespace {

// The code of x by comparing with the midpoints of the grid; ties go to the even code.
__device__ uint32_t e2m1_by_definition(float x) {
    float a = fabsf(x);
    uint32_t code = a != a      ? 7
                    : a <= 0.25f ? 0
                    : a < 0.75f  ? 1
                    : a <= 1.25f ? 2
                    : a < 1.75f  ? 3
                    : a <= 2.5f  ? 4
                    : a < 3.5f   ? 5
                    : a <= 5.0f  ? 6
                                 : 7;
    return a != a ? 7 : code | (signbit(x) ? 8 : 0);
}

// The byte of s >= 0 by bisection of the table of values; ties go to the even byte.
__device__ uint32_t e4m3_by_definition(float s) {
    if (s != s) return 0x7f;
    uint32_t low = 0, high = 0x7e;
    if (s >= 448.0f) return 0x7e;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (e4m3_to_float(middle) <= s) low = middle;
        else high = middle;
    }
    // The values are exact in f64, and so is twice their midpoint.
    double below = e4m3_to_float(low), above = e4m3_to_float(high), twice = 2.0 * s;
    if (twice != below + above) return twice < below + above ? low : high;
    return low & 1 ? high : low;
}

}  // namespace

// counts[0]: e2m1 codes that differ from the definition; counts[1]: e4m3 bytes; over all f32 whose bits are
// first ... first + gridDim.x * blockDim.x - 1. A negative NaN is left out: no operation makes one.
extern "C" __global__ void nvfp4_check_codecs(uint32_t first, uint32_t* counts) {
    uint32_t bits = first + blockIdx.x * blockDim.x + threadIdx.x;
    float x = __uint_as_float(bits);
    if (!(x != x && signbit(x))) {
        // The value in each of the eight places, beside others.
        float v[8];
        for (int place = 0; place < 8; ++place) {
            for (int i = 0; i < 8; ++i) v[i] = i == place ? x : static_cast<float>(i) - 3.5f;
            uint32_t codes = e2m1x8_from_float(v);
            if ((codes >> (4 * place) & 15) != e2m1_by_definition(x)) atomicAdd(&counts[0], 1);
            for (int i = 0; i < 8; ++i)
                if ((codes >> (4 * i) & 15) != e2m1_by_definition(v[i])) atomicAdd(&counts[0], 1);
        }
    }
    if (!signbit(x) && e4m3_from_float(x) != e4m3_by_definition(x)) atomicAdd(&counts[1], 1);
}

// values[i] = rcp.approx.ftz(values[i]): the tests' reference takes the hardware's reciprocals.
extern "C" __global__ void nvfp4_rcp(float* values, uint32_t count) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = rcp(values[i]);
}

// decoded[i] = value of e4m3 byte i; decoded[128 + i] = value of e2m1 code i.
extern "C" __global__ void nvfp4_decode_tables(float* decoded) {
    decoded[threadIdx.x] = e4m3_to_float(threadIdx.x);
    if (threadIdx.x < 16) decoded[128 + threadIdx.x] = e2m1_to_float(threadIdx.x);
}
