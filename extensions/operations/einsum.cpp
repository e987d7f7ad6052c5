// Einstein summation: the equation, the contraction of operands from left to right, and its derivative.
#include <algorithm>
#include <string>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/recorded.h"
#include "base/classic_text.h"
#include "base/suggest.h"
#include "extensions/operations/operations.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

// --- the equation ---

constexpr const char* dots = "...";

struct Equation {
  std::vector<std::string> inputs;
  std::string output;
};
/// Splits "ij,jk->ik" into inputs and output, without checks. Without an arrow the output is the ellipsis (if there is
/// one), then the letters that occur once, alphabetically.
Equation split_equation(std::string text) {
  std::erase(text, ' ');
  if (const size_t arrow = text.find("->"); arrow != std::string::npos)
    return {split(text.substr(0, arrow), ','), text.substr(arrow + 2)};
  const std::vector<std::string> inputs = split(text, ',');
  std::string output = text.find('.') == std::string::npos ? "" : dots;
  std::sort(text.begin(), text.end());
  for (const char c : text)
    if (c != ',' && c != '.' && text.find(c) == text.rfind(c)) output += c;
  return {inputs, output};
}

/// split_equation() of an equation without ellipsis. Error if it is malformed.
Equation parse(const std::string& equation) {
  const Equation parsed = split_equation(equation);
  std::string all;
  for (const std::string& names : parsed.inputs) all += names;
  for (const char c : all + parsed.output)
    LOCKSTEP_CHECK(is_letter(c), "[einsum] expected letters, dots, commas and one ->, got \"", equation, "\"");
  for (const char name : parsed.output) {
    LOCKSTEP_CHECK(all.find(name) != std::string::npos,
                   "[einsum] expected output letters that occur in an operand, got ", name, " in \"", equation, "\"");
    LOCKSTEP_CHECK(parsed.output.find(name) == parsed.output.rfind(name),
                   "[einsum] expected each output letter once, got ", name, " twice in \"", equation, "\"");
  }
  return parsed;
}

/// Number of letters of one operand or of the output, which may have one ellipsis.
size_t letters_of(const std::string& names, const std::string& equation) {
  const size_t points = size_t(std::count(names.begin(), names.end(), '.'));
  LOCKSTEP_CHECK(points == 0 || (points == 3 && names.find(dots) != std::string::npos),
                 "[einsum] expected an ellipsis of three dots, once in an operand, got \"", equation, "\"");
  return names.size() - points;
}

/// Replaces the ellipsis by new letters, one for each dim that it stands for, and changes `shapes` to those to which
/// the operands must be expanded. The dims of the ellipsis are aligned from the right and broadcast. In an equation
/// without ->, they come first in the output. Error for a malformed equation or sizes that do not broadcast.
std::string spell_out(const std::string& equation, std::vector<Shape>& shapes) {
  auto [inputs, output] = split_equation(equation);
  LOCKSTEP_CHECK(inputs.size() == shapes.size(), "[einsum] expected ", inputs.size(), " operands for \"", equation,
                 "\", got ", shapes.size());
  letters_of(output, equation);
  std::string unused;
  for (char c = 'A'; c <= 'z'; ++c)
    if (is_letter(c) && equation.find(c) == std::string::npos) unused += c;

  std::vector<int64_t> sizes;  // sizes of the ellipsis' dims, last dim first
  std::vector<size_t> counts(inputs.size(), 0);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t letters = letters_of(inputs[i], equation), start = inputs[i].find(dots);
    if (start == std::string::npos) continue;
    LOCKSTEP_CHECK(size_t(shapes[i].rank()) >= letters, "[einsum] expected operand ", i, " to have at least ", letters,
                   " dims (\"", inputs[i], "\"), got ", shapes[i], "; reshape the operand, or change the letters");
    counts[i] = size_t(shapes[i].rank()) - letters;
    for (size_t d = 0; d < counts[i]; ++d) {
      if (sizes.size() <= d) sizes.push_back(1);
      const int64_t size = shapes[i][int(start + counts[i] - 1 - d)];
      LOCKSTEP_CHECK(size == 1 || sizes[d] == 1 || size == sizes[d],
                     "[einsum] expected the dims of ... to broadcast in \"", equation, "\", got sizes ", sizes[d],
                     " and ", size, "; reshape one of them");
      if (size != 1) sizes[d] = size;
    }
  }
  LOCKSTEP_CHECK(sizes.size() <= unused.size(), "[einsum] expected fewer letters in \"", equation,
                 "\": its letters and the dims that ... stands for may be at most 52 in all");
  const std::string names = unused.substr(0, sizes.size());
  std::string result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const size_t start = inputs[i].find(dots); start != std::string::npos) {
      for (size_t d = 0; d < counts[i]; ++d) shapes[i][int(start + counts[i] - 1 - d)] = sizes[d];
      inputs[i].replace(start, 3, names.substr(names.size() - counts[i]));
    }
    result += (i ? "," : "") + inputs[i];
  }
  if (const size_t start = output.find(dots); start != std::string::npos) output.replace(start, 3, names);
  return result + "->" + output;
}

/// einsum() of an equation with an ellipsis; the operands are expanded as views.
template <class T> T einsum_spelled_out(const std::string& equation, std::vector<T> operands) {
  std::vector<Shape> shapes;
  for (const T& x : operands) shapes.push_back(x.shape());
  const std::string letters = spell_out(equation, shapes);
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].shape() != shapes[i]) operands[i] = operands[i].expand(shapes[i]);
  return einsum(letters, operands);
}

/// Expands the operands' sizes of 1, as views, to the size that their letter has elsewhere. Error for another number of
/// operands or dims, or for sizes that do not broadcast. A letter that occurs twice in one operand needs equal sizes.
template <class T>
std::vector<T> broadcast(const std::string& equation, const Equation& parsed, std::vector<T> operands) {
  const auto& inputs = parsed.inputs;
  LOCKSTEP_CHECK(inputs.size() == operands.size(), "[einsum] expected ", inputs.size(), " operands for \"", equation,
                 "\", got ", operands.size());
  int64_t sizes[128];
  std::fill_n(sizes, 128, 1);
  for (size_t i = 0; i < operands.size(); ++i) {
    const Shape& shape = operands[i].shape();
    LOCKSTEP_CHECK(size_t(shape.rank()) == inputs[i].size(), "[einsum] expected operand ", i, " to have ",
                   inputs[i].size(), " dims (\"", inputs[i], "\"), got ", shape, "; reshape it");
    for (int d = 0; d < shape.rank(); ++d) {
      const char name = inputs[i][size_t(d)];
      int64_t& size = sizes[int(name)];
      const int64_t first = shape[int(inputs[i].find(name))];
      LOCKSTEP_CHECK(shape[d] == first && (shape[d] == 1 || size == 1 || shape[d] == size), "[einsum] expected ", name,
                     " to have size ", shape[d] == first ? size : first, " everywhere",
                     shape[d] == first ? " (or 1, which broadcasts)" : " in an operand", ", got ", shape, " for \"",
                     inputs[i], "\"; reshape it");
      if (shape[d] != 1) size = shape[d];
    }
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    Shape shape = operands[i].shape();
    for (int d = 0; d < shape.rank(); ++d) shape[d] = sizes[int(inputs[i][size_t(d)])];
    if (shape != operands[i].shape()) operands[i] = operands[i].expand(shape);
  }
  return operands;
}

// --- the contraction ---

/// A tensor with a letter for each dim.
struct Named {
  Tensor tensor;
  std::string names;

  int64_t size(char name) const { return tensor.shape()[int(names.find(name))]; }
  bool has(char name) const { return names.find(name) != std::string::npos; }

  /// The tensor permuted to the order of `wanted`.
  Tensor arranged(const std::string& wanted) const {
    Dims order;
    for (char name : wanted) order.push_back(int64_t(names.find(name)));
    return tensor.permute(order);
  }
};

/// Takes the diagonal of repeated letters, and sums over letters that are not in `wanted`.
Named simplified(Named x, const std::string& wanted) {
  for (size_t i = 0; i < x.names.size(); ++i)
    for (size_t j; (j = x.names.find(x.names[i], i + 1)) != std::string::npos;) {
      const char name = x.names[i];
      x.tensor = x.tensor.diagonal(0, int64_t(i), int64_t(j));  // diagonal() moves the shared dim to the end
      x.names.erase(j, 1);
      x.names.erase(i, 1);
      x.names += name;
      i = 0;
    }
  Dims gone;
  std::string kept;
  for (size_t i = 0; i < x.names.size(); ++i)
    if (wanted.find(x.names[i]) == std::string::npos) gone.push_back(int64_t(i));
    else kept += x.names[i];
  return gone.empty() ? x : Named{sum(x.tensor, gone).to(x.tensor.dtype()), kept};
}

/// Product of two operands, summed over the shared letters that are not in `wanted`.
Named contract(const Named& a, const Named& b, const std::string& wanted) {
  std::string batch, rows, columns, inner;
  int64_t m = 1, n = 1, k = 1;
  Shape shape;
  for (char name : a.names)
    if (!b.has(name)) rows += name, m *= a.size(name);
    else if (wanted.find(name) == std::string::npos) inner += name, k *= a.size(name);
    else batch += name, shape.push_back(a.size(name));
  for (char name : b.names)
    if (!a.has(name)) columns += name, n *= b.size(name);
  Shape left = shape, right = shape, result = shape;
  if (inner.empty()) {  // nothing to sum: a broadcast multiplication
    for (char name : rows) left.push_back(a.size(name)), right.push_back(1);
    for (char name : columns) left.push_back(1), right.push_back(b.size(name));
    return {mul(a.arranged(batch + rows).reshape(left), b.arranged(batch + columns).reshape(right)),
            batch + rows + columns};
  }
  left.push_back(m), left.push_back(k);
  right.push_back(k), right.push_back(n);
  for (char name : rows) result.push_back(a.size(name));
  for (char name : columns) result.push_back(b.size(name));
  const Tensor out =
      matmul(a.arranged(batch + rows + inner).reshape(left), b.arranged(batch + inner + columns).reshape(right));
  return {out.reshape(result), batch + rows + columns};
}

}  // namespace

Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  if (equation.find('.') != std::string::npos) {
    for (const Tensor& x : operands) check_defined("einsum", x);
    return einsum_spelled_out(equation, operands);
  }
  const Equation parsed = parse(equation);
  const auto& [inputs, output] = parsed;
  for (const Tensor& x : operands) check_product("einsum", operands[0], x, true);
  const std::vector<Tensor> wide = broadcast(equation, parsed, operands);
  std::vector<Named> named;
  for (size_t i = 0; i < wide.size(); ++i) named.push_back({wide[i], inputs[i]});
  // Contract from left to right; `later` holds the letters that the output or a later operand needs.
  Named result;
  for (size_t i = 0; i < named.size(); ++i) {
    std::string later = output;
    for (size_t j = i + 1; j < named.size(); ++j) later += inputs[j];
    const Named next = simplified(named[i], i == 0 ? later : later + result.names);
    result = i == 0 ? next : simplified(contract(result, next, later), later);
  }
  const Tensor out = result.arranged(output);
  return operands.size() == 1 ? out.clone() : out.contiguous();
}

// --- the derivative: the gradient of an operand is an einsum of the incoming gradient and the other operands ---
namespace {

/// Gradient of operand `at`, given all operands.
template <class T>
T einsum_grad(const Equation& e, size_t at, const T& grad, const std::vector<T>& operands, const Shape& shape) {
  std::string equation = e.output, elsewhere = e.output, known;
  std::vector<T> factors{grad};
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i == at) continue;
    equation += "," + e.inputs[i];
    elsewhere += e.inputs[i];
    factors.push_back(operands[i]);
  }
  // A letter that only this operand has was summed over: the gradient is constant along it. A letter that occurs twice
  // in the operand took a diagonal: the gradient lies on that diagonal.
  const std::string& names = e.inputs[at];
  Shape with_ones, full;
  Strides diagonal;
  const Strides strides = contiguous_strides(shape);
  for (size_t d = 0; d < names.size(); ++d) {
    if (names.find(names[d]) != d) continue;
    const bool is_known = elsewhere.find(names[d]) != std::string::npos;
    if (is_known) known += names[d];
    with_ones.push_back(is_known ? shape[int(d)] : 1);
    full.push_back(shape[int(d)]);
    int64_t stride = 0;
    for (size_t other = d; other < names.size(); ++other) stride += names[other] == names[d] ? strides[int(other)] : 0;
    diagonal.push_back(stride);
  }
  const T part = einsum(equation + "->" + known, factors).reshape(with_ones).expand(full);
  if (full.rank() == shape.rank()) return part;
  const int64_t numel = numel_of(shape);
  const Tensor places = arange(0, numel, 1, {i64, grad.device()}).as_strided(full, diagonal, 0);
  const T entire = zeros({numel}, {grad.dtype(), grad.device()});
  return scatter_add(entire, 0, places.reshape({places.numel()}), part.reshape({places.numel()})).view(shape);
}

}  // namespace

Variable einsum(const std::string& equation, const std::vector<Variable>& operands) {
  if (equation.find('.') != std::string::npos) return einsum_spelled_out(equation, operands);
  const Equation parsed = parse(equation);
  std::vector<Variable> inputs;
  for (const Variable& operand : operands) inputs.push_back(Autocast::low(operand));
  inputs = broadcast(equation, parsed, inputs);  // expand() has the gradient of sizes of 1
  std::vector<Tensor> tensors;
  for (const Variable& input : inputs) tensors.push_back(input.tensor());
  Tensor out = einsum(equation, tensors);
  if (!needs_grad(inputs)) return out;
  std::vector<Saved> kept(tensors.begin(), tensors.end());
  return record("einsum", inputs, {std::move(out)}, [kept, e = parsed](auto& back) {
    std::vector<Value<decltype(back)>> operands;
    for (size_t i = 0; i < kept.size(); ++i) operands.push_back(back.input(int(i), kept[i]));
    for (size_t i = 0; i < kept.size(); ++i) {
      if (back.needs(int(i))) back.give(int(i), einsum_grad(e, i, back.grad(), operands, operands[i].shape()));
    }
  })[0];
}

}  // namespace lockstep
