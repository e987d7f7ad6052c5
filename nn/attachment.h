#pragma once
// Attachments of a layer that multiplies by a weight (Linear, Head). Other code adds them; the layer only calls them:
//
//   y = activation(place(arithmetic(x, store)) + addition(x))
//
//   store       keeps the weight in another form           8-bit codes
//   arithmetic  multiplies in another way                  8-bit floats
//   place       spreads the product over ranks             tensor parallelism
//   addition    adds to the result, before the activation  a low-rank adapter
//
// Each role is optional. A layer may have several.
#include <functional>
#include <memory>
#include <string>

#include "nn/module.h"

namespace lockstep {
class Backward;
}

namespace lockstep::nn {

class Arithmetic;
struct Cut;

/// One product of a layer: activation(x weight^T + bias).
struct Product {
  const Variable &x, &weight, &bias;
  Activation activation = Activation::none;
  Arithmetic* arithmetic = nullptr;  ///< how it multiplies; null: by linear()
  bool training = false;             ///< the layer is in training mode, and gradients are recorded
};
/// Computes a product on this rank: by its arithmetic if that takes the operands, else by linear().
Variable multiply(const Product& product);

/// Keeps a weight in a form of its own, with parameters of its own.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  /// The operand of products: a tensor that stands for the weight (tensor/stored_matrix.h) or, on a tensor-parallel
  /// rank, for the rank's slice.
  virtual Variable weight() const = 0;
  /// Lists the parameters in place of "weight".
  virtual void fields(Fields& f) = 0;
  /// Error, which begins with `where`, unless `ranks` ranks can shard the parameters when they shard the weight by
  /// `cut`.
  virtual void check_cut(const Cut& cut, int ranks, const std::string& where) const = 0;
};

/// The gradients of a RowProduct in one backward pass. All matrices are (rows, features).
class RowGradients {
 public:
  virtual ~RowGradients() = default;
  /// Returns the gradient of one chunk of x, given g, the gradient of that chunk of the result. Called for each chunk.
  /// Returns an undefined tensor if the pass needs no gradient of x. chunk(whole) returns the chunk's rows of a tensor
  /// that has all rows of x. If `place` is defined, the result may be written into this matrix.
  virtual Tensor of_input(const Tensor& g, const std::function<Tensor(const Tensor& full)>& chunk,
                          const Tensor& place) = 0;
  /// Returns the gradient of w, given g, the gradient of the whole result. Called after the last of_input().
  virtual Tensor of_weight(const Tensor& g) = 0;
};

/// A product x w^T in chunks of x's rows. Row-parallel layers multiply one chunk while the ranks sum another
/// (parallel/tensor_parallel/overlap.h).
struct RowProduct {
  const char* name = "";                              ///< name of the node on the tape
  Tensor rows;                                        ///< x in its own shape, as forward() reads it (8-bit codes, say)
  std::function<Tensor(const Tensor& rows)> forward;  ///< the product of some of the rows
  /// Begins a backward pass, in which x is input 0 and w is input 1. chunks: the number of chunks of the gradient.
  std::function<std::unique_ptr<RowGradients>(Backward& back, int64_t chunks)> backward;
};

/// A way to multiply other than linear().
class Arithmetic {
 public:
  virtual ~Arithmetic() = default;
  /// True if this arithmetic can compute x w^T; it may reject some sizes or dtypes. x is the whole input, even if each
  /// rank holds only a part of it.
  virtual bool takes(const Variable& x, const Variable& weight) const = 0;
  /// The communication that column-parallel layers add to a product.
  struct Ranks {
    /// The whole input, gathered from all ranks, if x is this rank's part of it; else undefined.
    Tensor full = {};
    /// Starts to sum `mine`, this rank's gradient of x, over the ranks. Returns a function that waits for the sum and
    /// returns it. The gradient of the weight may be computed in the meantime. Empty: no sum.
    std::function<std::function<Tensor()>(const Tensor& mine)> sum = {};
  };
  /// Computes the product, with its derivative.
  virtual Variable linear(const Product& product, const Ranks& ranks) = 0;
  /// Prepares x w^T, without bias and activation, as a product in chunks of rows. The number of rows in a chunk must be
  /// a multiple of row_multiple().
  virtual RowProduct in_rows(const Product& product) = 0;
  virtual int64_t row_multiple() const { return 1; }  ///< see in_rows()
};

/// The attachments of a layer.
struct Attachment {
  std::shared_ptr<WeightStore> store;
  std::weak_ptr<Arithmetic> arithmetic;           ///< in effect as long as its owner keeps it
  std::function<Variable(const Product&)> place;  ///< computes the product over all ranks
  std::shared_ptr<Module> addition;
  std::string addition_name;  ///< the name of `addition` among the layer's fields

  /// True if nothing is attached.
  bool is_empty() const { return !store && !place && !addition && arithmetic.expired(); }
  /// The product of a layer with these parameters and all its attachments except the addition.
  Variable product(const Variable& x, const Variable& weight, const Variable& bias, Activation activation,
                   bool training) const;
};

}  // namespace lockstep::nn
