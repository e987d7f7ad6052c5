#pragma once
// Operations and losses that few models need: #include <lockstep/operations.h>. They take Tensors, or Variables, which
// have gradients.
#include <initializer_list>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "extensions/operations/losses.h"

namespace lockstep {

/// Einstein summation, e.g. "bij,bjk->bik"; without -> the output has the letters that occur once, in alphabetical
/// order. A repeated letter in an operand takes its diagonal; ... stands for dims. Sizes of 1 broadcast.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);
Variable einsum(const std::string& equation, const std::vector<Variable>& operands);
/// einsum() of a braced list of tensors, e.g. einsum("ij,jk->ik", {a, b}). Records nothing.
inline Tensor einsum(const std::string& equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::vector<Tensor>(operands));
}

// --- moving elements ---
/// Reverses the order of elements along dims.
Tensor flip(const Tensor& x, const Dims& dims);
Variable flip(const Variable& x, const Dims& dims);
/// Shifts elements cyclically along dims; without dims, shifts the flattened tensor.
Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims);
Variable roll(const Variable& x, const Dims& shifts, const Dims& dims);
/// Tiles x: repeats[i] copies along dim i. More repeats than dims add dims in front.
Tensor repeat(const Tensor& x, const Dims& repeats);
Variable repeat(const Variable& x, const Dims& repeats);
/// i64 (..., classes): 1 at the index and 0 elsewhere. classes -1: the largest index + 1, which waits for the device.
Tensor one_hot(const Tensor& index, int64_t classes = -1);

// --- division ---
/// C's fmod: a - b * trunc(a / b), exact, with the sign of a; remainder() has the sign of b. Operands broadcast. Error
/// for an integer 0 in b; of floats fmod(a, 0) is NaN. The derivative by b is -trunc(a / b).
Tensor fmod(const Tensor& a, const Tensor& b);
Variable fmod(const Variable& a, const Variable& b);
/// fmod() by a number.
inline Tensor fmod(const Tensor& x, Scalar s) { return fmod(x, full({}, s, {x.dtype(), x.device()})); }
inline Variable fmod(const Variable& x, Scalar s) { return fmod(x, Variable(full({}, s, {x.dtype(), x.device()}))); }

// --- sums and products ---
/// Running sum along a dim; integers and bool give i64.
Tensor cumsum(const Tensor& x, int64_t dim);
Variable cumsum(const Variable& x, int64_t dim);
/// Running product along a dim; integers and bool give i64.
Tensor cumprod(const Tensor& x, int64_t dim);
Variable cumprod(const Variable& x, int64_t dim);
/// Product; its gradient holds where elements are 0, too.
Variable prod(const Variable& x, const Dims& dims = {}, bool keepdim = false);

}  // namespace lockstep
