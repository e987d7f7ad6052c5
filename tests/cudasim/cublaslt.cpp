// A fake of cuBLASLt: D = epilogue(alpha op(A) op(B) + beta C), column-major, with the argument checks that its
// documentation lists, and with what an H200 showed besides: an algorithm serves only what its heuristic was asked for;
// 8-bit products are summed in few bits; a 16-bit result is rounded before its bias and its activation, too; gelu is
// not exact. The order of the other sums is in cublaslt_order.h.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/cudasim/cublaslt_fp8.h"
#include "tests/cudasim/cublaslt_order.h"
#include "tests/cudasim/fake.h"
#include "tests/cudasim/runtime.h"

struct cublasLtContext {};

int64_t fake::refused_algorithms = 0, fake::unusable_candidates = 0;

namespace {

using fake::device_of;

struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  int32_t bias_type = -1;
  void* aux = nullptr;
  int64_t aux_lead = 0, aux_stride = 0;
  const void *scale_a = nullptr, *scale_b = nullptr;  // scales of 8-bit floats; null: 1
  int8_t fast = 0;                                    // fast accumulation of 8-bit floats: accepted, without effect
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t lead;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK, alignment[4] = {256, 256, 256, 256};
};

/// Our encoding of an algorithm, in the opaque words of cublasLtMatmulAlgo_t, with what the heuristic was asked for.
struct Algorithm {
  uint64_t workspace;
  uint64_t types;         // a hash of the types of operands, result and scale
  uint64_t question;      // a hash of the epilogue and which pointers are set, not of the sizes
  uint16_t alignment[8];  // of A, B, C, D, the bias, AUX and both scales, at most 256
  fake::Order order;
  uint32_t number;    // its place in the heuristic's answer
  uint32_t unusable;  // 1: it cannot run, as the heuristic's answer said
};

constexpr int max_candidates = 3;  // of an answer
Algorithm read(const cublasLtMatmulAlgo_t* from) {
  Algorithm algorithm;
  std::memcpy(&algorithm, from, sizeof algorithm);
  return algorithm;
}

Description& at(cublasLtMatmulDesc_t d) { return *reinterpret_cast<Description*>(d); }
Layout& at(cublasLtMatrixLayout_t l) { return *reinterpret_cast<Layout*>(l); }
Preference& at(cublasLtMatmulPreference_t p) { return *reinterpret_cast<Preference*>(p); }

template <class T> cublasStatus_t assign(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
size_t size_of(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2; }
double get(const void* p, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_64F: return static_cast<const double*>(p)[i];
    case CUDA_R_32F: return static_cast<const float*>(p)[i];
    case CUDA_R_16F: return __half2float(static_cast<const __half*>(p)[i]);
    case CUDA_R_8F_E4M3: return float(static_cast<const __nv_fp8_e4m3*>(p)[i]);
    case CUDA_R_8F_E5M2: return float(static_cast<const __nv_fp8_e5m2*>(p)[i]);
    default: return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  }
}
void put(void* p, cudaDataType_t type, int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F: static_cast<double*>(p)[i] = value; break;
    case CUDA_R_32F: static_cast<float*>(p)[i] = float(value); break;
    case CUDA_R_16F: static_cast<__half*>(p)[i] = __float2half(float(value)); break;
    default: static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(float(value));
  }
}
template <class T> T* place(T* p, cudaDataType_t type, int64_t elements) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p) + size_t(elements) * size_of(type));
}
/// Rounds to TF32, which has 10 bits of mantissa.
double rounded(double value, cublasComputeType_t compute) {
  if (compute != CUBLAS_COMPUTE_32F_FAST_TF32) return value;
  const uint32_t bits = std::bit_cast<uint32_t>(float(value));
  if ((bits & 0x7f800000) == 0x7f800000) return value;
  return std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

/// gelu with a tanh of 17 bits.
double gelu(double x) {
  const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * x * (1 + std::rint(t * 0x1p17) * 0x1p-17);
}
double gelu_grad(double x) {
  const double u = 0.7978845608028654 * (x + 0.044715 * x * x * x), t = std::tanh(u);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

// The bits of an epilogue. Those that nothing uses are refused: BGRAD, DRELU, and AUX with relu.
constexpr uint32_t relu_bit = 2, bias_bit = 4, gelu_bit = 32, dgelu_bit = 64, aux_bit = 128;
bool is_epilogue(uint32_t e) {
  const uint32_t unbiased = e & ~bias_bit;
  return e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_DGELU ||
         unbiased == CUBLASLT_EPILOGUE_RELU || unbiased == CUBLASLT_EPILOGUE_GELU ||
         unbiased == CUBLASLT_EPILOGUE_GELU_AUX;
}

/// A product with its checked sizes.
struct Problem {
  Description d;
  Layout a, b, c, out;
  int64_t m, n, k;
};
/// Checks cuBLASLt's rules for products of 8-bit floats, which cards from compute capability 8.9 on (Ada, Hopper) have.
cublasStatus_t check_fp8(const Problem& p) {
  if (fake::settings().capability < 89 || !is_fp8(p.a.type) || !is_fp8(p.b.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.d.compute != CUBLAS_COMPUTE_32F || p.d.scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const void* scale : {p.d.scale_a, p.d.scale_b})
    if (reinterpret_cast<uintptr_t>(scale) % 16 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!p.d.transposed_a || p.d.transposed_b) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cudaDataType_t out = p.out.type;
  if (p.c.type != out || (out != CUDA_R_32F && out != CUDA_R_16F && out != CUDA_R_16BF))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const int64_t size : {p.m, p.n, p.k, p.a.lead, p.b.lead, p.c.lead, p.out.lead})
    if (size % 16 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (p.d.epilogue != CUBLASLT_EPILOGUE_BIAS) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cudaDataType_t bias = p.d.bias_type < 0 ? CUDA_R_16BF : cudaDataType_t(p.d.bias_type);
  if (!p.d.bias) return CUBLAS_STATUS_INVALID_VALUE;
  return bias == (out == CUDA_R_16F ? CUDA_R_16F : CUDA_R_16BF) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t make_problem(Problem& p, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out) {
  if (!d || !a || !b || !c || !out) return CUBLAS_STATUS_INVALID_VALUE;
  p = {at(d), at(a), at(b), at(c), at(out), 0, 0, 0};
  for (const Layout* l : {&p.a, &p.b, &p.c, &p.out}) {
    if (l->lead < int64_t(l->rows) || l->batch != p.out.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto [ar, ac] = std::pair(int64_t(p.a.rows), int64_t(p.a.columns));
  const auto [br, bc] = std::pair(int64_t(p.b.rows), int64_t(p.b.columns));
  p.m = p.d.transposed_a ? ac : ar;
  p.k = p.d.transposed_a ? ar : ac;
  p.n = p.d.transposed_b ? br : bc;
  // A call with rows and columns mixed up fails here.
  if ((p.d.transposed_b ? bc : br) != p.k || int64_t(p.out.rows) != p.m || int64_t(p.out.columns) != p.n ||
      p.c.rows != p.out.rows || p.c.columns != p.out.columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (p.m == 0 || p.n == 0 || p.k == 0) return CUBLAS_STATUS_NOT_SUPPORTED;

  const cudaDataType_t type = p.a.type;
  if (is_fp8(type) || is_fp8(p.b.type)) return check_fp8(p);
  if (p.d.scale_a || p.d.scale_b) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool half = type == CUDA_R_16F || type == CUDA_R_16BF;
  if (p.b.type != type || p.c.type != p.out.type || (p.out.type != type && !(half && p.out.type == CUDA_R_32F)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.d.compute == CUBLAS_COMPUTE_64F             ? type != CUDA_R_64F || p.d.scale != CUDA_R_64F
      : p.d.compute == CUBLAS_COMPUTE_32F           ? type == CUDA_R_64F || p.d.scale != CUDA_R_32F
      : p.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? type != CUDA_R_32F || p.d.scale != CUDA_R_32F
                                                    : true)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const uint32_t e = p.d.epilogue;
  if (!is_epilogue(e)) return CUBLAS_STATUS_INVALID_VALUE;
  if (type == CUDA_R_64F && e != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (e & bias_bit) {
    const cudaDataType_t wanted = p.d.bias_type < 0 ? p.out.type : cudaDataType_t(p.d.bias_type);
    if (!p.d.bias || (wanted != p.out.type && wanted != type)) return CUBLAS_STATUS_INVALID_VALUE;
  }
  // The AUX memory has the value before the activation.
  if ((e & aux_bit) && (!p.d.aux || p.d.aux_lead < p.m || p.d.aux_lead % 8 != 0 || p.d.aux_stride % 8 != 0 ||
                        reinterpret_cast<uintptr_t>(p.d.aux) % 16 != 0))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

uint64_t hash_of(std::initializer_list<uint64_t> values) {
  uint64_t hash = 14695981039346656037u;
  for (const uint64_t value : values) hash = (hash ^ value) * 1099511628211u;
  return hash;
}
uint64_t types_of(cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                  cudaDataType_t c, cudaDataType_t out) {
  return hash_of({uint64_t(compute), uint64_t(scale), uint64_t(a), uint64_t(b), uint64_t(c), uint64_t(out)});
}

bool has_bias(const Description& d) { return d.epilogue & bias_bit; }
/// The algorithm for a question, or for a call: they must have the same `question`, and a call at least the alignment.
Algorithm asked(const Problem& p, const std::array<uint64_t, 4>& places) {
  const void* const bias = has_bias(p.d) ? p.d.bias : nullptr;
  const void* const aux = p.d.epilogue & aux_bit ? p.d.aux : nullptr;
  Algorithm made{};
  made.types = types_of(p.d.compute, p.d.scale, p.a.type, p.b.type, p.c.type, p.out.type);
  made.question = hash_of({uint64_t(p.d.transposed_a), uint64_t(p.d.transposed_b), p.d.epilogue,
                           uint64_t(bias ? p.d.bias_type : -1), uint64_t(p.d.fast), uint64_t(p.a.batch > 1),
                           uint64_t(bias != nullptr), uint64_t(aux != nullptr), uint64_t(p.d.scale_a != nullptr),
                           uint64_t(p.d.scale_b != nullptr)});
  const auto place = [](const void* x) { return uint64_t(reinterpret_cast<uintptr_t>(x)); };
  const uint64_t all[] = {places[0],   places[1],  places[2],          places[3],
                          place(bias), place(aux), place(p.d.scale_a), place(p.d.scale_b)};
  for (size_t i = 0; i < 8; ++i) made.alignment[i] = uint16_t((all[i] | 256) & (~(all[i] | 256) + 1));
  return made;
}
/// True if the algorithm is for this question; serves(): for this call.
bool answers(const Algorithm& algorithm, const Algorithm& question) {
  return algorithm.types == question.types && algorithm.question == question.question;
}
bool serves(const Algorithm& algorithm, const Algorithm& call) {
  return answers(algorithm, call) &&
         std::equal(call.alignment, call.alignment + 8, algorithm.alignment, std::greater_equal<>());
}

/// True if the whole matrix lies in one allocation; the real library would read on into the next one.
bool fits(const Layout& l, const void* data) {
  const int64_t batches = int64_t(l.batch - 1) * l.stride;
  const auto* first = static_cast<const char*>(data) + size_t(std::min<int64_t>(batches, 0)) * size_of(l.type);
  const int64_t elements = std::abs(batches) + (int64_t(l.columns) - 1) * l.lead + int64_t(l.rows);
  return fake::is_inside(first, size_t(elements) * size_of(l.type));
}

std::mutex alignments_mutex;
std::map<int64_t, int64_t> alignments;  // number of products, for fake::take_alignments()

/// Counts a product. `pointers` are A, B, C and D; C counts if it is read.
void note_alignment(const Problem& p, const void* const* pointers, bool reads_c) {
  const Layout* const layouts[] = {&p.a, &p.b, &p.c, &p.out};
  uint64_t places = 16;
  for (size_t i = 0; i < 4; ++i) {
    if (i == 2 && !reads_c) continue;
    const Layout& l = *layouts[i];
    places |= reinterpret_cast<uintptr_t>(pointers[i]);
    places |= uint64_t(l.lead) * size_of(l.type);
    if (l.batch > 1) places |= uint64_t(l.stride) * size_of(l.type);
  }
  const std::lock_guard lock(alignments_mutex);
  ++alignments[int64_t(places & -places)];
}

/// Computes one product of the batch; sums run over k in the order of the algorithm.
void multiply(const Problem& p, const Algorithm& algorithm, double alpha, const void* a, const void* b, double beta,
              const void* c, void* out, int64_t batch) {
  const auto [m, n, k] = std::tuple(p.m, p.n, p.k);
  std::vector<double> left(size_t(m * k));
  for (int64_t q = 0; q < k; ++q)
    for (int64_t i = 0; i < m; ++i)
      left[size_t(q * m + i)] =
          rounded(get(a, p.a.type, p.d.transposed_a ? q + i * p.a.lead : i + q * p.a.lead), p.d.compute);
  const uint32_t e = p.d.epilogue;
  for (const void* scale : {p.d.scale_a, p.d.scale_b})
    if (scale) alpha *= *static_cast<const float*>(scale);
  const cudaDataType_t type = p.out.type, bias_type = p.d.bias_type < 0 ? type : cudaDataType_t(p.d.bias_type);
  const auto kept = [&](double value) {  // rounded to a result of 16 bits
    char place[8];
    if (size_of(type) > 2) return value;
    put(place, type, 0, value);
    return get(place, type, 0);
  };
  for (int64_t j = 0; j < n; ++j) {
    fake::FewBits short_sum(m);
    fake::Sums sum(algorithm.order, m, k, p.d.scale == CUDA_R_64F);
    for (int64_t q = 0; q < k; ++q) {
      const double right =
          rounded(get(b, p.b.type, p.d.transposed_b ? j + q * p.b.lead : q + j * p.b.lead), p.d.compute);
      if (is_fp8(p.a.type)) short_sum.add(left.data() + q * m, right);
      else sum.add(left.data() + q * m, right);
    }
    short_sum.end();
    for (int64_t i = 0; i < m; ++i) {
      double value = alpha * (is_fp8(p.a.type) ? short_sum[i] : sum[i]);
      if (beta != 0) value += beta * get(c, p.c.type, i + j * p.c.lead);    // C is not read if beta is 0
      if (e & bias_bit) value = kept(value) + get(p.d.bias, bias_type, i);  // one bias per row of D
      const int64_t place_of_aux = batch * p.d.aux_stride + i + j * p.d.aux_lead;
      if (e & dgelu_bit) {
        value *= gelu_grad(get(p.d.aux, type, place_of_aux));
      } else if (e & relu_bit) {
        value = value < 0 ? 0 : value;  // NaN passes
      } else if (e & gelu_bit) {
        if (e & aux_bit) put(p.d.aux, type, place_of_aux, value);
        value = gelu(kept(value));
      }
      put(out, type, i + j * p.out.lead, value);
    }
  }
}

}  // namespace

std::map<int64_t, int64_t> fake::take_alignments() {
  const std::lock_guard lock(alignments_mutex);
  return std::exchange(alignments, {});
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (fake::settings().driver != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute, cudaDataType_t scale) {
  *d = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete &at(d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Description& d = at(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return assign(d.transposed_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return assign(d.transposed_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(d.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(d.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return assign(d.bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return assign(d.scale_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return assign(d.scale_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return assign(d.fast, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return assign(d.aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return assign(d.aux_lead, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return assign(d.aux_stride, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t lead) {
  if (type != CUDA_R_64F && type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF && !is_fp8(type))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, lead});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &at(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  Layout& l = at(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return assign(l.batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return assign(l.stride, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &at(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  Preference& p = at(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(p.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return assign(p.reduction, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(p.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(p.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(p.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(p.alignment[3], value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t out, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t* found, int* count) {
  *count = 0;
  if (!preference || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  Problem p;
  if (const cublasStatus_t status = make_problem(p, d, a, b, c, out); status != CUBLAS_STATUS_SUCCESS) return status;
  fake::note_question();
  const auto& [workspace, reduction, alignment] = at(preference);
  const Algorithm question = asked(p, {alignment[0], alignment[1], alignment[2], alignment[3]});
  for (; *count < std::min(wanted, max_candidates); ++*count) {
    Algorithm algorithm = question;
    algorithm.number = uint32_t(*count);
    algorithm.order = fake::order_of(*count, p.m, p.n, p.k, reduction);
    algorithm.unusable = *count < fake::unusable_candidates;
    // some products need no workspace
    if (p.m * p.n > 4096) algorithm.workspace = std::min<uint64_t>(4096, workspace);
    if (algorithm.order.parts > 1) algorithm.workspace = std::min<uint64_t>(uint64_t(16 * p.m * p.n), workspace);
    cublasLtMatmulHeuristicResult_t& answer = found[*count];
    answer = {};
    static_assert(sizeof algorithm <= sizeof answer.algo);
    std::memcpy(&answer.algo, &algorithm, sizeof algorithm);
    answer.workspaceSize = algorithm.workspace;
    answer.state = algorithm.unusable ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* c, cublasLtMatrixLayout_t layout_c, void* out,
                              cublasLtMatrixLayout_t layout_out, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (!handle || fake::step() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  Problem p;
  if (const cublasStatus_t status = make_problem(p, d, layout_a, layout_b, layout_c, layout_out);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  const auto place_of = [](const void* x) { return uint64_t(reinterpret_cast<uintptr_t>(x)); };
  const Algorithm algorithm = algo ? read(algo) : Algorithm{};
  if (algo) {
    if (is_fp8(p.a.type) && algorithm.number < fake::refused_algorithms) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!serves(algorithm, asked(p, {place_of(a), place_of(b), place_of(c), place_of(out)})))
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (algorithm.unusable || !fake::takes_rows(p.n)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const uint64_t needed = algorithm.workspace;
  if (workspace_bytes < needed || (needed > 0 && place_of(workspace) % 256 != 0)) return CUBLAS_STATUS_INVALID_VALUE;
  const void* pointers[] = {a, b, c, out};
  for (int i = 0; i < 4; ++i) {
    const size_t least = is_fp8(p.a.type) ? 16 : size_of(i < 2 ? p.a.type : p.out.type);
    if (device_of(pointers[i]) != fake::current_device() || place_of(pointers[i]) % least != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
    const bool is_read = i != 2 || get(beta, p.d.scale, 0) != 0;
    if (is_read && !fits(*std::array{&p.a, &p.b, &p.c, &p.out}[size_t(i)], pointers[i])) {
      fake::fail_device(cudaErrorIllegalAddress,
                        std::string("cublasLtMatmul: matrix ") + "ABCD"[i] + " does not lie in one allocation");
      return CUBLAS_STATUS_EXECUTION_FAILED;
    }
  }
  for (const void* scale : {p.d.scale_a, p.d.scale_b})
    if (scale && !fake::is_inside(scale, sizeof(float))) return CUBLAS_STATUS_INVALID_VALUE;
  for (const void* optional : std::initializer_list<const void*>{p.d.epilogue & aux_bit ? p.d.aux : nullptr,
                                                                 has_bias(p.d) ? p.d.bias : nullptr, p.d.scale_a,
                                                                 p.d.scale_b, needed > 0 ? workspace : nullptr})
    if (optional && device_of(optional) < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (const cudaError_t code = fake::launch_failure.next(); code != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  const double first = get(alpha, p.d.scale, 0), second = get(beta, p.d.scale, 0);  // read by the call, on the host
  note_alignment(p, pointers, second != 0);
  fake::note_launch("matmul");
  fake::enqueue(stream, [=] {
    if (needed > 0) std::memset(workspace, 0xff, needed);
    for (int64_t i = 0; i < p.out.batch; ++i)
      multiply(p, algorithm, first, place(a, p.a.type, i * p.a.stride), place(b, p.b.type, i * p.b.stride), second,
               place(c, p.c.type, i * p.c.stride), place(out, p.out.type, i * p.out.stride), i);
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  if (!algo || !result) return CUBLAS_STATUS_INVALID_VALUE;
  Problem p;
  if (const cublasStatus_t status = make_problem(p, d, a, b, c, out); status != CUBLAS_STATUS_SUCCESS) return status;
  const Algorithm algorithm = read(algo);
  if (algorithm.unusable || !fake::takes_rows(p.n) || !answers(algorithm, asked(p, {})))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = algorithm.workspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    size_t bytes, size_t* written) {
  const auto parts = algo ? uint32_t(read(algo).order.parts) : 0;
  if (!algo || !value || bytes != sizeof parts) return CUBLAS_STATUS_INVALID_VALUE;
  if (attribute != CUBLASLT_ALGO_CONFIG_SPLITK_NUM) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(value, &parts, bytes);
  if (written) *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
