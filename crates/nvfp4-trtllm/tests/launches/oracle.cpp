// What the vendor's own host code does: this program includes the export headers of the TensorRT-LLM-gen cubins (PyPI
// package flashinfer-cubin) and the CUDA headers, replaces the driver by functions that write down how they are called,
// and answers questions about tactics. No GPU, no CUDA library, no vendor code beyond those headers.
//
//   oracle OUTPUT < QUESTIONS
//
// A question is a line `order LAYOUT`, `tactics LAYOUT M N K` or `launch INDEX M N K`; LAYOUT is 8x4 or 128x4, M counts
// tokens, N output features. The answers are written to OUTPUT, since the headers themselves print to stdout.

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <cassert>
#include <functional>
#include <numeric>
#include <stdexcept>

namespace flashinfer {
namespace trtllm_cubin_loader {
std::string getCubin(const std::string&, const std::string&) { return "no code"; }
}  // namespace trtllm_cubin_loader
}  // namespace flashinfer

#include "trtllmGen_gemm_export/GemmInterface.h"

namespace tg = gemm::trtllm::gen;
using gemm::gemm::GemmConfig;
using gemm::gemm::GemmData;
using gemm::gemm::GemmInterface;
using gemm::gemm::KernelParams;

// Made-up device addresses, the same as in the test.
constexpr uint64_t kActivation = 0x10000000, kActivationScales = 0x11000000, kWeight = 0x20000000, kWeightScales = 0x21000000,
                   kOutput = 0x30000000, kAlpha = 0x40000000;

// What marks a map of ours; the vendor's code leaves the map that it does not use as the stack had it.
constexpr uint64_t kMark = 0x6d617020'6e6f2000;

static FILE* out;
static std::vector<std::string> maps;
static std::string symbol;
static int allowedSharedMemory;

template <class T>
static std::string list(const T* values, int count) {
  std::ostringstream text;
  for (int i = 0; i < count; i++) text << (i ? "," : "") << values[i];
  return count ? text.str() : "-";
}

// The recording driver.
extern "C" {
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  std::ostringstream text;
  text << int(type) << " " << std::hex << uint64_t(address) << std::dec << " " << list(dims, rank) << " "
       << list(strides, rank - 1) << " " << list(box, rank) << " " << list(elementStrides, rank) << " "
       << int(interleave) << " " << int(swizzle) << " " << int(promotion) << " " << int(fill);
  memset(map, 0, sizeof *map);
  map->opaque[0] = kMark + maps.size();  // so that the parameter block shows which map is where
  maps.push_back(text.str());
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void*) { *module = CUmodule(1); return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  symbol = name;
  *function = CUfunction(2);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) { *context = CUcontext(3); return CUDA_SUCCESS; }
CUresult cuCtxGetId(CUcontext, unsigned long long* id) { *id = 7; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { *text = "an error"; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) allowedSharedMemory = value;
  return CUDA_SUCCESS;
}
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return cudaErrorNotSupported; }

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void** parameters, void**) {
  const char* block = static_cast<const char*>(parameters[0]);
  fprintf(out, "kernel %s\n", symbol.c_str());
  fprintf(out, "grid %u,%u,%u block %u,%u,%u shared %u allowed %d", config->gridDimX, config->gridDimY, config->gridDimZ,
          config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes, allowedSharedMemory);
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      auto d = attribute.value.clusterDim;
      fprintf(out, " cluster %u,%u,%u", d.x, d.y, d.z);
    } else {
      int value;
      memcpy(&value, &attribute.value, sizeof value);
      fprintf(out, " attribute %d=%d", int(attribute.id), value);
    }
  }
  fprintf(out, "\n");
  // Tensor maps by their place in the block, then every 32-bit word behind them that is not zero.
  for (int at = 0; at < 768; at += 128) {
    uint64_t number;
    memcpy(&number, block + at, sizeof number);
    if (number - kMark < maps.size()) fprintf(out, "map %d %s\n", at, maps[number - kMark].c_str());
  }
  fprintf(out, "words");
  for (int at = 768; at < 928; at += 4) {
    if (at == offsetof(KernelParams, tpGrpSize) + 4) continue;  // padding
    uint32_t word;
    memcpy(&word, block + at, sizeof word);
    if (word) fprintf(out, " %d:%x", at, word);
  }
  fprintf(out, "\n");
  return CUDA_SUCCESS;
}
}

static GemmData problem(int m, int n, int k) {
  GemmData data;
  auto& d = data.mProblemDimensions;
  // The kernels compute the transpose: their M is our N.
  d.mM = d.mValidM = n;
  d.mN = d.mValidN = m;
  d.mK = d.mValidK = k;
  d.mWorldSize = 1;
  return data;
}

// The candidates in the order in which the caller of these kernels tries them: larger K tiles first, then the unrolled.
static std::vector<int> order(bool small) {
  GemmInterface gemms;
  const GemmConfig* configs = gemms.getGemmConfigs();
  std::vector<int> found;
  for (size_t i = 0; i < gemms.getNumGemmConfigs(); i++) {
    const auto& o = configs[i].mOptions;
    bool layout = o.mSfLayoutB == (small ? tg::SfLayout::R8c4 : tg::SfLayout::R128c4);
    if (o.mDtypeA == tg::Dtype::E2m1 && o.mDtypeC == tg::Dtype::Bfloat16 && o.mTransposeMmaOutput && layout &&
        o.mLayoutA == gemm::gemm::MatrixLayout::MajorK)
      found.push_back(int(i));
  }
  std::sort(found.begin(), found.end(), [&](int a, int b) {
    const auto &x = configs[a].mOptions, &y = configs[b].mOptions;
    if (x.mTileK != y.mTileK) return x.mTileK > y.mTileK;
    return bool(x.mUseUnrollLoop2xForMma) && !bool(y.mUseUnrollLoop2xForMma);
  });
  return found;
}

static void print(const char* what, const std::vector<int>& values) {
  fprintf(out, "%s", what);
  for (int value : values) fprintf(out, " %d", value);
  fprintf(out, "\n");
}

int main(int argc, char** argv) {
  if (argc != 2 || !(out = fopen(argv[1], "w"))) return 2;
  // Behind the last field is only padding: to 960 bytes with tensor maps of alignment 64, which the kernels declare, to
  // 1024 with headers that align them to 128.
  static_assert(offsetof(KernelParams, ptrNumNonExitingCtas) == 920, "the parameter block");
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream question(line);
    std::string what, layout;
    int index, m, n, k;
    question >> what;
    fprintf(out, "> %s\n", line.c_str());
    if (what == "order" && question >> layout) {
      print("order", order(layout == "8x4"));
    } else if (what == "tactics" && question >> layout >> m >> n >> k) {
      GemmInterface gemms;
      std::vector<int> valid;
      for (int i : order(layout == "8x4"))
        if (gemms.isValidConfig(gemms.getGemmConfigs()[i], problem(m, n, k))) valid.push_back(i);
      print("valid", valid);
    } else if (what == "launch" && question >> index >> m >> n >> k) {
      maps.clear();
      allowedSharedMemory = 0;
      GemmInterface gemms;
      GemmData data = problem(m, n, k);
      const GemmConfig& config = gemms.getGemmConfigs()[index];
      data.mInputBuffers.mPtrA = (void*)kWeight;
      data.mInputBuffers.mPtrSfA = (void*)kWeightScales;
      data.mInputBuffers.mPtrB = (void*)kActivation;
      data.mInputBuffers.mPtrSfB = (void*)kActivationScales;
      data.mInputBuffers.mPtrScaleC = (void*)kAlpha;
      data.mOutputBuffers.mPtrC = (void*)kOutput;
      fprintf(out, "workspace %zu\n", gemms.getWorkspaceSizeInBytes(config, data));
      GemmInterface::ModuleCache modules;
      int status = gemms.run(config, nullptr, data, nullptr, 148, true, modules);
      if (status) fprintf(out, "status %d\n", status);
    } else {
      fprintf(out, "not a question\n");
    }
  }
  return fclose(out);
}
