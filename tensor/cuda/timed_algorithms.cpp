#include "tensor/cuda/timed_algorithms.h"

#include <algorithm>
#include <utility>

namespace lockstep::on_cuda::blas {
namespace {

std::span<const TimedAlgorithm>& table_of_algorithms() {
  static const auto& rows = *new std::vector<TimedAlgorithm>{
#include "tensor/cuda/timed_algorithms.def"
  };
  static std::span<const TimedAlgorithm> now = rows;
  return now;
}

constexpr std::pair<cublasLtMatmulAlgoConfigAttributes_t, uint32_t AlgorithmSettings::*> all_settings[] = {
    {CUBLASLT_ALGO_CONFIG_ID, &AlgorithmSettings::id},
    {CUBLASLT_ALGO_CONFIG_TILE_ID, &AlgorithmSettings::tile},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, &AlgorithmSettings::stages},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &AlgorithmSettings::parts},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &AlgorithmSettings::reduction},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &AlgorithmSettings::swizzle},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &AlgorithmSettings::custom},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &AlgorithmSettings::inner},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &AlgorithmSettings::cluster}};
/// Size of a setting in cuBLASLt, which stores the ids of the two shapes in 16 bits: the low half of our 32-bit field.
size_t bytes_of_setting(cublasLtMatmulAlgoConfigAttributes_t attribute) {
  const bool is_shape =
      attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  return is_shape ? sizeof(uint16_t) : sizeof(uint32_t);
}

}  // namespace

std::string text_of(const TimedAlgorithm& row) {
  const TimedProduct& p = row.product;
  const auto word = [](bool x) { return x ? "true" : "false"; };
  std::string text =
      str("{{", p.capability, ", ", p.multiprocessors, ", ", p.dtype, ", ", p.m, ", ", p.n, ", ", p.k, ", ",
          word(p.transposed_a), ", ", word(p.transposed_b), ", ", p.epilogue, ", ", word(p.adds), "}, {");
  for (const auto& [attribute, member] : all_settings) text += str(row.settings.*member, ", ");
  text.resize(text.size() - 2);
  return text + "}},";
}

AlgorithmSettings settings_of(const cublasLtMatmulAlgo_t& algorithm) {
  AlgorithmSettings settings{};
  for (const auto& [attribute, member] : all_settings) {
    size_t written = 0;
    check_blas("cublasLtMatmulAlgoConfigGetAttribute",
               cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &(settings.*member),
                                                    bytes_of_setting(attribute), &written));
  }
  return settings;
}

std::vector<Algorithm> algorithm_of(const AlgorithmSettings& settings, DType dtype, const Product& plan) {
  // Accept no split of k, or one whose partial sums are added in the compute type (f32 or f64), in a fixed order.
  if (settings.reduction != CUBLASLT_REDUCTION_SCHEME_NONE &&
      settings.reduction != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
    return {};
  const cudaDataType_t type = type_of(dtype);
  cublasLtMatmulAlgo_t algorithm;
  if (cublasLtMatmulAlgoInit(handle(), dtype == f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                             dtype == f64 ? CUDA_R_64F : CUDA_R_32F, type, type, type, type, int(settings.id),
                             &algorithm) != CUBLAS_STATUS_SUCCESS)
    return {};
  for (const auto& [attribute, member] : all_settings) {
    if (attribute == CUBLASLT_ALGO_CONFIG_ID) continue;
    if (cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &(settings.*member), bytes_of_setting(attribute)) !=
        CUBLAS_STATUS_SUCCESS)
      return {};
  }
  return check_algorithm(plan, algorithm);
}

std::vector<Algorithm> timed_algorithm(const TimedProduct& product, const Product& plan) {
  const std::span<const TimedAlgorithm> rows = table_of_algorithms();
  const auto row = std::ranges::find(rows, product, &TimedAlgorithm::product);
  return row == rows.end() ? std::vector<Algorithm>() : algorithm_of(row->settings, product.dtype, plan);
}

TableOfAlgorithms::TableOfAlgorithms(std::span<const TimedAlgorithm> rows)
    : before_(std::exchange(table_of_algorithms(), rows)) {}
TableOfAlgorithms::~TableOfAlgorithms() { table_of_algorithms() = before_; }

}  // namespace lockstep::on_cuda::blas
