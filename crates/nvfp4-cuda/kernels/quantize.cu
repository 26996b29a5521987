// Activation quantization to NVFP4: bf16/f16/f32 -> packed e2m1 codes + e4m3 block scales, and back onto the grid.
//
// The arithmetic, in this order, all f32 (G is the encode multiplier, rcp is rcp.approx.ftz):
//     amax = max |x|                       over the 16 values of a block; NaN is skipped unless all are NaN
//     S    = e4m3( G * (amax * rcp(6)) )   nearest even, saturating at 448
//     o    = S == 0 ? 0 : rcp( f32(S) * rcp(G) )
//     q    = e2m1( x * o )                 nearest even, saturating at 6; NaN gives +6
// `exact` replaces the reciprocals by correctly rounded divisions.
//
// SM100 and later convert with cvt.rn.satfinite.e2m1x2; earlier ones with integer and f32 arithmetic that gives the
// same bits. No multiplication here flushes subnormals.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "codec.cuh"

namespace {

constexpr int kBlock = 16;        // values that share a scale
constexpr int kThreads = 256;
constexpr int kMinCtas = 5;       // CTAs a multiprocessor: 40 warps
constexpr int kUnits = 4;         // blocks a thread handles, all in one column

// Mirrors `QuantizeParams` in src/quantize.rs, field for field.
struct QuantizeParams {
    const void* x;                // [m, k], or [m, 2k] for silu_and_mul
    int64_t x_row_stride;         // elements
    uint8_t* codes;               // [m, padded_k / 2]
    uint8_t* scales;              // in `layout`
    const float* encode_scale;    // one value; null: encode_scale_value
    const float* row_decode;      // one value a row (per-token); null: one scale for the tensor
    __nv_bfloat16* grid;          // quantize_dequantize only: [m, k] values on the NVFP4 grid
    int64_t grid_row_stride;      // elements
    int64_t m;
    int32_t k;
    int32_t padded_k;
    float encode_scale_value;
    uint32_t flags;
};
constexpr uint32_t kFlagVectorLoads = 1;  // rows of x start at multiples of 16 bytes
constexpr uint32_t kFlagExact = 2;

// Programmatic dependent launch: wait for the producer of x; let the consumer start its prologue.
__device__ __forceinline__ void wait_for_producer() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void release_consumer() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- blocks ----------------------------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ float widen(T x);
template <>
__device__ __forceinline__ float widen(float x) { return x; }
template <>
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
template <>
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ float narrow(float x) { return x; }
template <>
__device__ __forceinline__ __half narrow(float x) { return __float2half_rn(x); }
template <>
__device__ __forceinline__ __nv_bfloat16 narrow(float x) { return __float2bfloat16_rn(x); }

// Sixteen elements as they lie in memory.
template <typename T>
struct alignas(16) Raw {
    T e[kBlock];
};

template <typename T>
__device__ __forceinline__ Raw<T> load_raw(const T* p, bool vector) {
    Raw<T> raw;
    if (vector) {
        constexpr int kVectors = sizeof(raw) / 16;
        uint4* to = reinterpret_cast<uint4*>(raw.e);
        const uint4* from = reinterpret_cast<const uint4*>(p);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) to[i] = __ldcs(from + i);
    } else {
#pragma unroll
        for (int i = 0; i < kBlock; ++i) raw.e[i] = p[i];
    }
    return raw;
}

// What a block is made from: the elements themselves, or silu(gate) * up.
template <typename T, bool kSiluAndMul>
struct Source {
    Raw<T> x;
    Raw<T> up;  // used by silu_and_mul only

    __device__ __forceinline__ void load(const QuantizeParams& q, int64_t row, int column) {
        const T* p = static_cast<const T*>(q.x) + row * q.x_row_stride + column;
        bool vector = q.flags & kFlagVectorLoads;
        x = load_raw(p, vector);
        if constexpr (kSiluAndMul) up = load_raw(p + q.k, vector);
    }

    __device__ __forceinline__ void widen_into(float (&v)[kBlock]) const {
#pragma unroll
        for (int i = 0; i < kBlock; ++i) {
            float a = widen(x.e[i]);
            if constexpr (kSiluAndMul) {
                a = __fmul_rn(__fdiv_rn(a, __fadd_rn(1.0f, expf(-a))), widen(up.e[i]));
                a = widen(narrow<T>(a));
            }
            v[i] = a;
        }
    }
};

// Scale byte and multiplier of a block.
struct BlockScale {
    uint32_t byte;
    float multiplier;
};

// Kept out of line: divisions are long, and the loop around the usual path must stay in the instruction cache.
__device__ __noinline__ BlockScale exact_block_scale(float amax, float encode) {
    uint32_t byte = e4m3_from_float(amax * (encode * (1.0f / 6.0f)));
    float quotient = __fdiv_rn(1.0f, e4m3_to_float(byte) * __fdiv_rn(1.0f, encode));
    // fminf would take the number for NaN.
    return {byte, byte == 0 ? 0.0f : quotient > 3.402823466e38f ? 3.402823466e38f : quotient};
}

__device__ __forceinline__ BlockScale block_scale(float amax, float encode, bool exact) {
    if (exact) return exact_block_scale(amax, encode);
    uint32_t byte = e4m3_from_float(encode * (amax * rcp(6.0f)));
    return {byte, byte == 0 ? 0.0f : rcp(e4m3_to_float(byte) * rcp(encode))};
}

template <typename T, bool kSiluAndMul>
__device__ __forceinline__ uint32_t quantize_block(const Source<T, kSiluAndMul>& source, float encode, bool exact,
                                                   uint2& codes) {
    float v[kBlock];
    source.widen_into(v);
    float amax = fabsf(v[0]);
#pragma unroll
    for (int i = 1; i < kBlock; ++i) amax = fmaxf(amax, fabsf(v[i]));
    BlockScale s = block_scale(amax, encode, exact);
#pragma unroll
    for (int i = 0; i < kBlock; ++i) v[i] = v[i] * s.multiplier;
    codes.x = e2m1x8_from_float(v);
    codes.y = e2m1x8_from_float(v + 8);
    return s.byte;
}

// The encode scale of a row. A per-token scale of zero (a row of zeros) gives zeros, not NaN.
__device__ __forceinline__ float encode_scale(const QuantizeParams& q, int64_t row) {
    if (q.row_decode != nullptr) {
        float decode = q.row_decode[row];
        return decode > 0.0f ? (q.flags & kFlagExact ? __fdiv_rn(1.0f, decode) : rcp(decode)) : 0.0f;
    }
    return q.encode_scale != nullptr ? *q.encode_scale : q.encode_scale_value;
}

// ---- layouts ---------------------------------------------------------------------------------------------------
// Each layout says which rows and columns (blocks along k) a thread handles: `kUnits` rows, `kRowStep` apart, of one
// column; and how the scales of its units, one byte of a word each, are
// written, padding included.

struct Linear {
    static constexpr int kTileColumns = 32, kRowStep = kThreads / 32, kTileRows = kRowStep * kUnits;
    static constexpr int kRowAlignment = 1, kColumnAlignment = 1;
    static __device__ __forceinline__ int row(int t) { return t / 32; }
    static __device__ __forceinline__ int column(int t) { return t % 32; }
    static __device__ __forceinline__ void store(uint8_t* scales, int64_t row, int column, int64_t rows, int columns,
                                                 uint32_t word) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            int64_t r = row + i * kRowStep;
            if (r < rows && column < columns) scales[r * columns + column] = word >> (8 * i);
        }
    }
};

struct Swizzled8x4 {
    static constexpr int kTileColumns = 4 * (kThreads / 32), kRowStep = 8, kTileRows = kRowStep * kUnits;
    static constexpr int kRowAlignment = 8, kColumnAlignment = 4;
    static __device__ __forceinline__ int row(int t) { return t % 32 / 4; }
    static __device__ __forceinline__ int column(int t) { return t / 32 * 4 + t % 4; }
    static __device__ __forceinline__ void store(uint8_t* scales, int64_t row, int column, int64_t rows, int columns,
                                                 uint32_t word) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            int64_t r = row + i * kRowStep;
            if (r < rows && column < columns)
                scales[((r / 8) * (columns / 4) + column / 4) * 32 + (r % 8) * 4 + column % 4] = word >> (8 * i);
        }
    }
};

struct Swizzled128x4 {
    static constexpr int kTileColumns = 8, kRowStep = 32, kTileRows = kRowStep * kUnits;
    static constexpr int kRowAlignment = 128, kColumnAlignment = 4;
    static __device__ __forceinline__ int row(int t) { return t / 8; }
    static __device__ __forceinline__ int column(int t) { return t % 8; }
    // Four lanes hold a 4x4 patch of bytes: lane = column, byte = unit. In memory, the four columns of a unit are one
    // word and the words of the four units follow each other: transpose, and each lane stores the word of one unit.
    static __device__ __forceinline__ void store(uint8_t* scales, int64_t row, int column, int64_t rows, int columns,
                                                 uint32_t word) {
        uint32_t other = __shfl_xor_sync(0xffffffff, word, 1);
        word = __byte_perm(word, other, column & 1 ? 0x3715 : 0x6240);
        other = __shfl_xor_sync(0xffffffff, word, 2);
        word = __byte_perm(word, other, column & 2 ? 0x3276 : 0x5410);
        if (row < rows && column < columns) {
            int64_t tile = (row / 128) * (columns / 4) + column / 4;
            *reinterpret_cast<uint32_t*>(scales + tile * 512 + (row % 32) * 16 + column % 4 * 4) = word;
        }
    }
};

__device__ __forceinline__ int64_t round_up(int64_t value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

template <typename T, typename Layout, bool kSiluAndMul>
__device__ __forceinline__ void quantize(const QuantizeParams& q) {
    const int columns = q.padded_k / kBlock;
    const int scale_columns = static_cast<int>(round_up(columns, Layout::kColumnAlignment));
    const int64_t scale_rows = round_up(q.m, Layout::kRowAlignment);
    const int column_tiles = (scale_columns + Layout::kTileColumns - 1) / Layout::kTileColumns;
    const int64_t row = static_cast<int64_t>(blockIdx.x / column_tiles) * Layout::kTileRows + Layout::row(threadIdx.x);
    const int column = static_cast<int>(blockIdx.x % column_tiles) * Layout::kTileColumns + Layout::column(threadIdx.x);
    const bool exact = q.flags & kFlagExact;

    wait_for_producer();
    static_assert(kUnits == 4, "a word holds the scales of all units");
    uint32_t word = 0;
    // One block at a time: more loads in flight would cost registers, and so warps (measured on an H200).
#pragma unroll 1
    for (int i = 0; i < kUnits; ++i) {
        int64_t r = row + i * Layout::kRowStep;
        if (r >= q.m || column >= columns) break;
        uint2 codes = make_uint2(0, 0);
        if (column * kBlock < q.k) {
            float encode = encode_scale(q, r);
            if (encode != 0.0f) {
                Source<T, kSiluAndMul> source;
                source.load(q, r, column * kBlock);
                word |= quantize_block(source, encode, exact, codes) << (8 * i);
            }
        }
        *reinterpret_cast<uint2*>(q.codes + r * (q.padded_k / 2) + column * (kBlock / 2)) = codes;
    }
    release_consumer();
    Layout::store(q.scales, row, column, scale_rows, scale_columns, word);
}

// x onto the NVFP4 grid: e2m1 * e4m3 as bf16 (exact: at most six significant bits), without the global scale.
template <typename T>
__device__ __forceinline__ void quantize_dequantize(const QuantizeParams& q) {
    const int columns = q.k / kBlock;
    const int column_tiles = (columns + Linear::kTileColumns - 1) / Linear::kTileColumns;
    const int64_t row = static_cast<int64_t>(blockIdx.x / column_tiles) * Linear::kTileRows + Linear::row(threadIdx.x);
    const int column = static_cast<int>(blockIdx.x % column_tiles) * Linear::kTileColumns + Linear::column(threadIdx.x);
    const bool exact = q.flags & kFlagExact;

    wait_for_producer();
#pragma unroll 1
    for (int i = 0; i < kUnits; ++i) {
        int64_t r = row + i * Linear::kRowStep;
        if (r >= q.m || column >= columns) continue;
        uint2 codes = make_uint2(0, 0);
        uint32_t byte = 0;
        float encode = encode_scale(q, r);
        if (encode != 0.0f) {
            Source<T, false> source;
            source.load(q, r, column * kBlock);
            byte = quantize_block(source, encode, exact, codes);
        }
        float scale = e4m3_to_float(byte);
        __nv_bfloat162 grid[kBlock / 2];
#pragma unroll
        for (int j = 0; j < kBlock / 2; ++j) {
            uint32_t pair = (j < 4 ? codes.x : codes.y) >> (8 * (j % 4));
            grid[j] = __floats2bfloat162_rn(e2m1_to_float(pair) * scale, e2m1_to_float(pair >> 4) * scale);
        }
        uint4* to = reinterpret_cast<uint4*>(q.grid + r * q.grid_row_stride + column * kBlock);
        to[0] = reinterpret_cast<uint4*>(grid)[0];
        to[1] = reinterpret_cast<uint4*>(grid)[1];
    }
    release_consumer();
}

// ---- absolute maxima -------------------------------------------------------------------------------------------

// Largest magnitude of the calling block's threads; valid in thread 0. NaN is skipped.
__device__ __forceinline__ float block_max(float value) {
    __shared__ float warp_max[kThreads / 32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
    if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
#pragma unroll
    for (int i = 0; i < kThreads / 32; ++i) value = fmaxf(value, warp_max[i]);
    return value;
}

template <typename T>
__device__ __forceinline__ float row_max(const QuantizeParams& q, int64_t row, int first, int step) {
    float amax = 0.0f;
    for (int column = first; column < q.k / kBlock; column += step) {
        Source<T, false> source;
        source.load(q, row, column * kBlock);
#pragma unroll
        for (int i = 0; i < kBlock; ++i) amax = fmaxf(amax, fabsf(widen(source.x.e[i])));
    }
    return amax;
}

// The decode scale for values up to amax: amax / (6 * 448), kept where it and its reciprocal are normal; 0 for 0.
__device__ __forceinline__ float decode_scale(float amax) {
    return amax == 0.0f ? 0.0f : fmaxf(__fdiv_rn(fminf(amax, 3.402823466e38f), 2688.0f), 1.175494351e-38f);
}

// row_decode[row] = decode scale of the row, one CTA a row.
template <typename T>
__device__ __forceinline__ void row_scale(const QuantizeParams& q, float* row_decode) {
    wait_for_producer();
    float amax = block_max(row_max<T>(q, blockIdx.x, threadIdx.x, kThreads));
    release_consumer();
    if (threadIdx.x == 0) row_decode[blockIdx.x] = decode_scale(amax);
}

// amax_bits = max of its old value and the bits of the largest magnitude of x; non-negative floats order as their bits.
template <typename T>
__device__ __forceinline__ void tensor_absmax(const QuantizeParams& q, uint32_t* amax_bits) {
    wait_for_producer();
    float amax = 0.0f;
    for (int64_t row = blockIdx.x; row < q.m; row += gridDim.x)
        amax = fmaxf(amax, row_max<T>(q, row, threadIdx.x, kThreads));
    amax = block_max(amax);
    release_consumer();
    if (threadIdx.x == 0) atomicMax(amax_bits, __float_as_uint(amax));
}

}  // namespace

#define QUANTIZE(name, T, Layout, silu_and_mul)                                                             \
    extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas) name(const __grid_constant__ QuantizeParams q) { \
        quantize<T, Layout, silu_and_mul>(q);                                                               \
    }

#define KERNELS_OF_TYPE(suffix, T)                                                                                  \
    QUANTIZE(nvfp4_quantize_linear_##suffix, T, Linear, false)                                                      \
    QUANTIZE(nvfp4_quantize_8x4_##suffix, T, Swizzled8x4, false)                                                    \
    QUANTIZE(nvfp4_quantize_128x4_##suffix, T, Swizzled128x4, false)                                                \
    QUANTIZE(nvfp4_silu_and_mul_quantize_linear_##suffix, T, Linear, true)                                          \
    QUANTIZE(nvfp4_silu_and_mul_quantize_8x4_##suffix, T, Swizzled8x4, true)                                        \
    QUANTIZE(nvfp4_silu_and_mul_quantize_128x4_##suffix, T, Swizzled128x4, true)                                    \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                          \
        nvfp4_quantize_dequantize_##suffix(const __grid_constant__ QuantizeParams q) {                              \
        quantize_dequantize<T>(q);                                                                                  \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                          \
        nvfp4_row_scale_##suffix(const __grid_constant__ QuantizeParams q, float* row_decode) {                     \
        row_scale<T>(q, row_decode);                                                                                \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                          \
        nvfp4_absmax_##suffix(const __grid_constant__ QuantizeParams q, uint32_t* amax_bits) {                      \
        tensor_absmax<T>(q, amax_bits);                                                                             \
    }

KERNELS_OF_TYPE(bf16, __nv_bfloat16)
KERNELS_OF_TYPE(f16, __half)
KERNELS_OF_TYPE(f32, float)

// scales[0] = encode, scales[1] = decode scale of a tensor whose largest magnitude is amax; 1 and 1 for a tensor of
// zeros.
extern "C" __global__ void nvfp4_global_scale(const uint32_t* amax_bits, float* scales) {
    wait_for_producer();
    float decode = decode_scale(__uint_as_float(*amax_bits));
    if (decode == 0.0f) decode = 1.0f;
    scales[0] = __fdiv_rn(1.0f, decode);
    scales[1] = decode;
    release_consumer();
}

// A copy of the same bytes, for comparison: 16 bytes a thread, four in flight.
extern "C" __global__ void __launch_bounds__(kThreads) nvfp4_copy(const uint4* from, uint4* to, int64_t count) {
    int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * 4) + threadIdx.x;
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (first + i * kThreads < count) v[i] = __ldcs(from + first + i * kThreads);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (first + i * kThreads < count) to[first + i * kThreads] = v[i];
}
