#pragma once
// EmbeddingBag: rows of a table, reduced by bags.
#include <vector>

#include "nn/linear.h"

namespace lockstep::nn {

/// Sums, means or maxima over bags of table rows; gives (bags, dim). Bags are given as
///   index i64 (n) and offsets i64 (bags): bag i is index[offsets[i]] up to index[offsets[i + 1]]; offsets[0] is 0.
///     With last_offset, offsets has one more element, the end of the last bag;
///   or index i64 (bags, n) without offsets: each row is a bag.
/// An empty bag gives 0. Rows of padding_index do not count. weights, of index's shape, multiply the rows (sum only).
struct EmbeddingBag : Layer<EmbeddingBag> {
  /// Reduction over the rows of a bag.
  enum class Mode { sum, mean, max };
  struct Options {
    int64_t num, dim;
    Mode mode = Mode::mean;
    int64_t padding_index = -1;
    bool last_offset = false;
  };
  explicit EmbeddingBag(const Options& options)
      : o(options), rows({.num = o.num, .dim = o.dim, .padding_index = o.padding_index}) {}
  Variable forward(const Tensor& index, const Tensor& offsets = {}, const Variable& weights = {});
  void fields(Fields& f) override { rows.fields(f); }
  Table table() const override { return Table::picked; }
  std::string options() const override { return rows.options(); }

  Options o;
  Embedding rows;

 private:
  Variable largest(const Tensor& index, const std::vector<int64_t>& values, const std::vector<int64_t>& starts);
};

}  // namespace lockstep::nn
