#pragma once
// The table of timed algorithms: matrix products for which cuBLASLt's algorithms were timed on a card, each with its
// fastest algorithm. Training prefers the table to the proposals of cuBLASLt's heuristic. Inference does not use it,
// because there the choice must not depend on a matrix's number of rows. bench_algorithms prints the rows of
// timed_algorithms.def.
#include <span>
#include <string>
#include <vector>

#include "tensor/cuda/cublaslt.h"

namespace lockstep::on_cuda::blas {

/// Product of a table row: out (m, n) = op(a) op(b), row-major, summed over k, all of one dtype (no tf32, no batch).
struct TimedProduct {
  int capability, multiprocessors;  ///< of the card; 90: compute capability 9.0
  DType dtype;
  int64_t m, n, k;
  bool transposed_a, transposed_b;
  uint32_t epilogue;  ///< a cublasLtEpilogue_t
  bool adds;          ///< beta != 0
  bool operator==(const TimedProduct&) const = default;
};
/// An algorithm's settings, which cuBLASLt calls CUBLASLT_ALGO_CONFIG_*. `parts` is SPLITK_NUM.
struct AlgorithmSettings {
  uint32_t id, tile, stages, parts, reduction, swizzle, custom, inner, cluster;
  bool operator==(const AlgorithmSettings&) const = default;
};
/// A row of the table.
struct TimedAlgorithm {
  TimedProduct product;
  AlgorithmSettings settings;
  bool operator==(const TimedAlgorithm&) const = default;
};

/// The text of a row in timed_algorithms.def.
std::string text_of(const TimedAlgorithm& row);
/// The settings of an algorithm.
AlgorithmSettings settings_of(const cublasLtMatmulAlgo_t& algorithm);
/// The algorithm with these settings, for a product with operands and a result of `dtype`; nothing if this version of
/// the library refuses them.
std::vector<Algorithm> algorithm_of(const AlgorithmSettings& settings, DType dtype, const Product& plan);
/// The algorithm in the table's row for the product; nothing if there is no such row, or the library refuses it.
std::vector<Algorithm> timed_algorithm(const TimedProduct& product, const Product& plan);

/// For tests: replaces the rows of the table during its lifetime. The process caches the algorithm of each product, so
/// each test must multiply matrices of a shape that no other test uses.
class TableOfAlgorithms {
 public:
  explicit TableOfAlgorithms(std::span<const TimedAlgorithm> rows);
  ~TableOfAlgorithms();
  TableOfAlgorithms(const TableOfAlgorithms&) = delete;

 private:
  std::span<const TimedAlgorithm> before_;
};

}  // namespace lockstep::on_cuda::blas
