// Planted bugs in products of 8-bit floats: y (m, n) = x (m, k) w (n, k)^T, with codes made on the device. All correct
// results are exact.
#include <cublasLt.h>
#include <cuda_fp8.h>

#include <cmath>

#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

enum class Fp8 {
  right,
  no_scale,        // the scale of one operand is missing
  scale,           // the scale instead of its inverse
  host_scale,      // the scale is in host memory
  scale_place,     // the scale is at no multiple of 16 bytes
  asked_early,     // the algorithm is asked for before the scales are set
  asked_other,     // asked for with another way of adding
  asked_aligned,   // asked for with more alignment than the codes have
  weights_e5m2,    // weights in e5m2, which has fewer bits
  weights_type,    // e4m3 codes declared as e5m2
  both_e5m2,       // a combination that is not supported
  turned,          // w is laid out the other way, and declared so
  odd,             // a size that is not a multiple of 16
  unaligned,       // codes start at byte 8
  truncated,       // rounded towards zero
  wrapped,         // too large numbers become NaN
  signed_maximum,  // the maximum of the values, not of their absolute values
  bits_maximum,    // signed numbers compared by their bits as unsigned integers
  maximum_kept     // stored instead of combined with the old maximum
};

__global__ void cast(const float* x, int n, float scale, __nv_fp8_interpretation_t format, Fp8 mistake, uint8_t* codes,
                     int* amax) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float value = x[i] * scale;
  auto code = __nv_cvt_float_to_fp8(value, mistake == Fp8::wrapped ? __NV_NOSAT : __NV_SATFINITE, format);
  if (mistake == Fp8::truncated) {
    const float back = __half2float(__half(__nv_cvt_fp8_to_halfraw(code, format)));
    if (std::fabs(back) > std::fabs(value)) --code;
  }
  codes[i] = code;
  const float size = mistake == Fp8::signed_maximum || mistake == Fp8::bits_maximum ? x[i] : std::fabs(x[i]);
  int bits;
  std::memcpy(&bits, &size, sizeof bits);
  if (mistake == Fp8::signed_maximum && size < 0) return;
  if (mistake == Fp8::maximum_kept) *amax = bits;
  else if (mistake == Fp8::bits_maximum) atomicMax(reinterpret_cast<unsigned*>(amax), unsigned(bits));
  else atomicMax(amax, bits);
}

/// Numbers that e4m3 represents exactly after scaling.
std::vector<float> numbers(int n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) x[size_t(i)] = float(i * 7 % 15 - 7) * 0.125f;
  x[5] = -1.125f;
  return x;
}

template <Fp8 mistake> bool fp8_product(bool bug) {
  const auto is = [=](Fp8 which) { return bug && mistake == which; };
  const int m = 16, k = 32, n = is(Fp8::odd) ? 24 : 32;
  const float scale = 4, inverse = 0.25f;
  std::vector<float> x = numbers(m * k), w = numbers(n * k), x_read = x, w_read = w;
  x[7] = 1000, x_read[7] = 112;            // saturates at 448 / 4
  w[9] = 0.271875f, w_read[9] = 0.28125f;  // 1.0875 lies between 1 and 1.125
  const __nv_fp8_interpretation_t e4m3 = __NV_E4M3, e5m2 = __NV_E5M2;
  const bool short_weights = is(Fp8::weights_e5m2) || is(Fp8::both_e5m2);
  std::vector<float> places(12, scale);  // one for each 16 bytes
  places[0] = places[4] = places[5] = inverse;
  const Array from_x(x), from_w(w), scales(places), maxima(std::vector<float>(2)), x_memory(size_t(m * k / 4 + 8)),
      w_memory(size_t(n * k / 4 + 4)), y(size_t(m * n));
  auto* const x_codes = reinterpret_cast<uint8_t*>(static_cast<float*>(x_memory)) + (is(Fp8::unaligned) ? 8 : 16);
  auto* const w_codes = reinterpret_cast<uint8_t*>(static_cast<float*>(w_memory));
  int* const amax = whole(maxima);
  const Fp8 how = bug ? mistake : Fp8::right;
  bool good = start(dim3(m * k / 64), dim3(64), cast, static_cast<const float*>(from_x), m * k, scale,
                    is(Fp8::both_e5m2) ? e5m2 : e4m3, how, x_codes, amax) &&
              start(dim3(n * k / 64), dim3(64), cast, static_cast<const float*>(from_w), n * k, scale,
                    short_weights ? e5m2 : e4m3, how, w_codes, amax + 1);
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t d;
  cublasLtMatrixLayout_t a, b, out;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t found;
  const int32_t transposed = is(Fp8::turned) ? CUBLAS_OP_N : CUBLAS_OP_T;
  const float one = 1, zero = 0;
  int count = 0;
  const float *of_w = static_cast<float*>(scales) + (is(Fp8::scale) ? 8 : 0),
              *of_x = static_cast<float*>(scales) + (is(Fp8::scale_place) ? 5 : 4);
  if (is(Fp8::host_scale)) of_w = &inverse;
  cublasLtCreate(&handle);
  cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  const auto set_scales = [&] {
    if (!is(Fp8::no_scale)) cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &of_w, sizeof of_w);
    cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &of_x, sizeof of_x);
  };
  if (!is(Fp8::asked_early)) set_scales();
  const cudaDataType_t w_type = short_weights || is(Fp8::weights_type) ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
  if (is(Fp8::turned)) cublasLtMatrixLayoutCreate(&a, w_type, uint64_t(n), uint64_t(k), n);
  else cublasLtMatrixLayoutCreate(&a, w_type, uint64_t(k), uint64_t(n), k);
  cublasLtMatrixLayoutCreate(&b, is(Fp8::both_e5m2) ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3, uint64_t(k), uint64_t(m), k);
  cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, uint64_t(n), uint64_t(m), n);
  cublasLtMatmulPreferenceCreate(&preference);
  for (const auto least : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES}) {
    const uint32_t bytes = is(Fp8::unaligned) ? 8 : is(Fp8::asked_aligned) ? 256 : 16;
    cublasLtMatmulPreferenceSetAttribute(preference, least, &bytes, sizeof bytes);
  }
  const int8_t fast = 1;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, d, a, b, out, out, preference, 1, &found, &count);
  if (is(Fp8::asked_early)) set_scales();
  if (is(Fp8::asked_other)) cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmul(handle, d, &one, w_codes, a, x_codes, b, &zero, y, out, y, out, &found.algo, nullptr, 0,
                            nullptr);
  good = good && status == CUBLAS_STATUS_SUCCESS;
  const std::vector<float> got = y.get(), most = maxima.get();
  good = good && most[0] == 1000 && most[1] == 1.125f;
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

}  // namespace

std::vector<Case> fp8_cases() {
  return {
      {"scale of 8-bit floats forgotten", fp8_product<Fp8::no_scale>, every},
      {"scale in place of its inverse", fp8_product<Fp8::scale>, every},
      {"scale on the host", fp8_product<Fp8::host_scale>, every},
      {"scale at no multiple of 16 bytes", fp8_product<Fp8::scale_place>, every},
      {"an algorithm asked for without scales", fp8_product<Fp8::asked_early>, every},
      {"an algorithm asked for with another way of adding", fp8_product<Fp8::asked_other>, every},
      {"an algorithm asked for with more alignment", fp8_product<Fp8::asked_aligned>, every},
      {"weights in e5m2", fp8_product<Fp8::weights_e5m2>, every},
      {"codes of the other format", fp8_product<Fp8::weights_type>, every},
      {"both in e5m2", fp8_product<Fp8::both_e5m2>, every},
      {"8-bit floats in another order than TN", fp8_product<Fp8::turned>, every},
      {"8-bit floats without multiples of 16", fp8_product<Fp8::odd>, every},
      {"codes at byte 8", fp8_product<Fp8::unaligned>, every},
      {"codes rounded towards zero", fp8_product<Fp8::truncated>, every},
      {"codes not saturated", fp8_product<Fp8::wrapped>, every},
      {"largest number without its sign", fp8_product<Fp8::signed_maximum>, every},
      {"largest number by unsigned bits", fp8_product<Fp8::bits_maximum>, every},
      {"largest number stored, not joined", fp8_product<Fp8::maximum_kept>, every},
  };
}

}  // namespace mutants
