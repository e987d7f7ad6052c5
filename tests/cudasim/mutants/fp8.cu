// Planted bugs in products of 8-bit floats: y (m, n) = x (m, k) w (n, k)^T, with codes made on the device. All correct
// results are exact.
#include <cublasLt.h>
#include <cuda_fp8.h>

#include <cmath>

#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

__global__ void cast(const float* x, int n, float scale, __nv_fp8_interpretation_t format, Bug bug, uint8_t* codes,
                     int* amax) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float value = x[i] * scale;
  auto code = __nv_cvt_float_to_fp8(value, bug("wrapped") ? __NV_NOSAT : __NV_SATFINITE, format);
  if (bug("truncated")) {
    const float back = __half2float(__half(__nv_cvt_fp8_to_halfraw(code, format)));
    if (std::fabs(back) > std::fabs(value)) --code;
  }
  codes[i] = code;
  const float size = bug("signed_maximum") || bug("bits_maximum") ? x[i] : std::fabs(x[i]);
  int bits;
  std::memcpy(&bits, &size, sizeof bits);
  if (bug("signed_maximum") && size < 0) return;
  if (bug("maximum_kept")) *amax = bits;
  else if (bug("bits_maximum")) atomicMax(reinterpret_cast<unsigned*>(amax), unsigned(bits));
  else atomicMax(amax, bits);
}

/// Numbers that e4m3 represents exactly after scaling.
std::vector<float> numbers(int n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) x[size_t(i)] = float(i * 7 % 15 - 7) * 0.125f;
  x[5] = -1.125f;
  return x;
}

bool fp8_product(Bug bug) {
  const int m = 16, k = 32, n = bug("odd") ? 24 : 32;
  const float scale = 4, inverse = 0.25f;
  std::vector<float> x = numbers(m * k), w = numbers(n * k), x_read = x, w_read = w;
  x[7] = 1000, x_read[7] = 112;            // saturates at 448 / 4
  w[9] = 0.271875f, w_read[9] = 0.28125f;  // 1.0875 lies between 1 and 1.125
  const __nv_fp8_interpretation_t e4m3 = __NV_E4M3, e5m2 = __NV_E5M2;
  const bool short_weights = bug("weights_e5m2") || bug("both_e5m2");
  std::vector<float> places(12, scale);  // one for each 16 bytes
  places[0] = places[4] = places[5] = inverse;
  const Array from_x(x), from_w(w), scales(places), maxima(std::vector<float>(2)), x_memory(size_t(m * k / 4 + 8)),
      w_memory(size_t(n * k / 4 + 4)), y(size_t(m * n));
  auto* const x_codes = x_memory.as<uint8_t>() + (bug("unaligned") ? 8 : 16);
  auto* const w_codes = w_memory.as<uint8_t>();
  int* const amax = maxima.as<int>();
  bool good = start(m * k / 64, 64, cast, from_x, m * k, scale, bug("both_e5m2") ? e5m2 : e4m3, bug, x_codes, amax) &&
              start(n * k / 64, 64, cast, from_w, n * k, scale, short_weights ? e5m2 : e4m3, bug, w_codes, amax + 1);
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t d;
  cublasLtMatrixLayout_t a, b, out;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t found;
  const int32_t transposed = bug("turned") ? CUBLAS_OP_N : CUBLAS_OP_T;
  const float one = 1, zero = 0;
  int count = 0;
  const float *of_w = scales + (bug("scale") ? 8 : 0), *of_x = scales + (bug("scale_place") ? 5 : 4);
  if (bug("host_scale")) of_w = &inverse;
  cublasLtCreate(&handle);
  cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  const auto set_scales = [&] {
    if (!bug("no_scale")) cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &of_w, sizeof of_w);
    cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &of_x, sizeof of_x);
  };
  if (!bug("asked_early")) set_scales();
  const cudaDataType_t w_type = short_weights || bug("weights_type") ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
  if (bug("turned")) cublasLtMatrixLayoutCreate(&a, w_type, uint64_t(n), uint64_t(k), n);
  else cublasLtMatrixLayoutCreate(&a, w_type, uint64_t(k), uint64_t(n), k);
  cublasLtMatrixLayoutCreate(&b, bug("both_e5m2") ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3, uint64_t(k), uint64_t(m), k);
  cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, uint64_t(n), uint64_t(m), n);
  cublasLtMatmulPreferenceCreate(&preference);
  for (const auto least : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES}) {
    const uint32_t bytes = bug("unaligned") ? 8 : bug("asked_aligned") ? 256 : 16;
    cublasLtMatmulPreferenceSetAttribute(preference, least, &bytes, sizeof bytes);
  }
  const int8_t fast = 1;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, d, a, b, out, out, preference, 1, &found, &count);
  if (bug("asked_early")) set_scales();
  if (bug("asked_other")) cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmul(handle, d, &one, w_codes, a, x_codes, b, &zero, y, out, y, out, &found.algo, nullptr, 0,
                            nullptr);
  good = good && status == CUBLAS_STATUS_SUCCESS;
  const std::vector<float> got = y.get(), greatest = maxima.get();
  good = good && greatest[0] == 1000 && greatest[1] == 1.125f;
  for (int r = 0; r < m; ++r)
    for (int c = 0; c < n; ++c) {
      double wanted = 0;
      for (int i = 0; i < k; ++i) wanted += double(x_read[size_t(r * k + i)]) * w_read[size_t(c * k + i)];
      good = good && got[size_t(r * n + c)] == float(wanted);
    }
  cublasLtMatmulPreferenceDestroy(preference);
  for (cublasLtMatrixLayout_t l : {a, b, out}) cublasLtMatrixLayoutDestroy(l);
  cublasLtMatmulDescDestroy(d);
  cublasLtDestroy(handle);
  return good;
}

const Cases cases{
    {"scale of 8-bit floats forgotten", fp8_product, "no_scale"},
    {"scale in place of its inverse", fp8_product, "scale"},
    {"scale on the host", fp8_product, "host_scale"},
    {"scale at no multiple of 16 bytes", fp8_product, "scale_place"},
    {"an algorithm asked for without scales", fp8_product, "asked_early"},
    {"an algorithm asked for with another way of adding", fp8_product, "asked_other"},
    {"an algorithm asked for with more alignment", fp8_product, "asked_aligned"},
    {"weights in e5m2", fp8_product, "weights_e5m2"},
    {"codes of the other format", fp8_product, "weights_type"},
    {"both in e5m2", fp8_product, "both_e5m2"},
    {"8-bit floats in another order than TN", fp8_product, "turned"},
    {"8-bit floats without multiples of 16", fp8_product, "odd"},
    {"codes at byte 8", fp8_product, "unaligned"},
    {"codes rounded towards zero", fp8_product, "truncated"},
    {"codes not saturated", fp8_product, "wrapped"},
    {"largest number without its sign", fp8_product, "signed_maximum"},
    {"largest number by unsigned bits", fp8_product, "bits_maximum"},
    {"largest number stored, not joined", fp8_product, "maximum_kept"},
};

}  // namespace
}  // namespace mutants
