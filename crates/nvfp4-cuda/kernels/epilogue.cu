// What is left to do after a GEMM whose output is padded or rounded: take the first n columns of its staging matrix,
// scale them, add the bias, and write them to the caller's rows.
//     out[r, c] = round( f32(staging[r, c]) * column_scale[c] + bias[c] )
// The product and the sum are f32, each rounded (no fused multiply-add), so a column scale of 1 changes nothing.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr int kColumns = 32;      // threads of a CTA along the columns
constexpr int kRows = 8;          // and along the rows
constexpr int kVector = 8;        // elements of a thread in a row: 16 bytes
constexpr int kUnits = 4;         // rows of a thread

// Mirrors `EpilogueParams` in src/epilogue.rs, field for field.
struct EpilogueParams {
    const void* from;             // [m, >= n]
    int64_t from_row_stride;      // elements
    void* to;                     // [m, n]
    int64_t to_row_stride;        // elements
    const float* column_scale;    // n values; null: 1
    const float* bias;            // n values; null: 0
    int64_t m;
    int32_t n;
    uint32_t column_tiles;        // CTAs along the columns
    uint32_t flags;
    uint32_t zero;
};
constexpr uint32_t kFlagVectorLoads = 1;   // rows of `from` start at multiples of 16 bytes
constexpr uint32_t kFlagVectorStores = 2;  // rows of `to` do

__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T narrow(float x);
template <>
__device__ __forceinline__ __half narrow(float x) { return __float2half_rn(x); }
template <>
__device__ __forceinline__ __nv_bfloat16 narrow(float x) { return __float2bfloat16_rn(x); }

template <typename T>
struct alignas(16) Vector {
    T e[kVector];
};

template <typename T>
__device__ __forceinline__ void epilogue(const EpilogueParams& q) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    int64_t row_tile = blockIdx.x / q.column_tiles;
    int column_tile = blockIdx.x % q.column_tiles;
    int column = (column_tile * kColumns + threadIdx.x % kColumns) * kVector;
    int64_t row = row_tile * (kRows * kUnits) + threadIdx.x / kColumns;
    int count = q.n - column < kVector ? q.n - column : kVector;
    if (count > 0) {
        float scale[kVector], bias[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            scale[i] = q.column_scale != nullptr && i < count ? q.column_scale[column + i] : 1.0f;
            bias[i] = q.bias != nullptr && i < count ? q.bias[column + i] : 0.0f;
        }
        for (int unit = 0; unit < kUnits; ++unit, row += kRows) {
            if (row >= q.m) break;
            const T* from = static_cast<const T*>(q.from) + row * q.from_row_stride + column;
            T* to = static_cast<T*>(q.to) + row * q.to_row_stride + column;
            Vector<T> v;
            if ((q.flags & kFlagVectorLoads) && count == kVector) {
                *reinterpret_cast<uint4*>(v.e) = *reinterpret_cast<const uint4*>(from);
            } else {
#pragma unroll
                for (int i = 0; i < kVector; ++i) v.e[i] = i < count ? from[i] : narrow<T>(0.0f);
            }
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                float y = __fmul_rn(widen(v.e[i]), scale[i]);
                if (q.bias != nullptr) y = __fadd_rn(y, bias[i]);
                v.e[i] = narrow<T>(y);
            }
            if ((q.flags & kFlagVectorStores) && count == kVector) {
                *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(v.e);
            } else {
#pragma unroll
                for (int i = 0; i < kVector; ++i)
                    if (i < count) to[i] = v.e[i];
            }
        }
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kColumns* kRows)
    nvfp4_epilogue_bf16(const __grid_constant__ EpilogueParams q) {
    epilogue<__nv_bfloat16>(q);
}
extern "C" __global__ void __launch_bounds__(kColumns* kRows)
    nvfp4_epilogue_f16(const __grid_constant__ EpilogueParams q) {
    epilogue<__half>(q);
}
