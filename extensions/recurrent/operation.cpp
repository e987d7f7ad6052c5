// Recurrent layers: one autograd node for a whole batch; each weight gradient is one matrix product over all steps.
// The same layers are also composed of other operations, for devices without the kernel and for second derivatives.
#include "extensions/recurrent/operation.h"

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "extensions/recurrent/kernels.h"

namespace lockstep {
namespace {

constinit const Op<Recurrent> recurrent_op{"recurrent", on_cpu::recurrent, nullptr};
constinit const Op<RecurrentGrad> recurrent_grad_op{"recurrent_grad", on_cpu::recurrent_grad, nullptr};

constexpr const char* recurrent_name = "recurrent";

void check_weight(const char* name, const Variable& weight, const Shape& shape, const Variable& x) {
  LOCKSTEP_CHECK(weight.defined() && weight.shape() == shape, "[recurrent] expected ", name, " of shape ", shape,
                 ", got ", weight.defined() ? str(weight.shape(), "; reshape it") : "nothing; pass it");
  LOCKSTEP_CHECK(weight.dtype() == x.dtype() && weight.device() == x.device(), "[recurrent] expected ", name, " of ",
                 x.dtype(), " on ", x.device(), " as the input, got ", weight.dtype(), " on ", weight.device(),
                 "; convert or move it with .to()");
}

void check_arguments(const RecurrentArgs& args, const Variable& x, const Variable& h, const Variable& c,
                     const RecurrentWeights& w) {
  LOCKSTEP_CHECK(x.defined() && x.dim() == 2 && is_floating(x.dtype()),
                 "[recurrent] expected a floating input (rows, in), got ",
                 x.defined() ? str(x.shape(), " ", x.dtype(), "; convert or reshape it") : "nothing; pass it");
  LOCKSTEP_CHECK(!args.batch.empty(), "[recurrent] expected at least 1 step in args.batch, got none; give batch sizes");
  int64_t rows = 0, last = args.batch[0];
  for (const int64_t n : args.batch) {
    LOCKSTEP_CHECK(n >= 1 && n <= last, "[recurrent] expected batch sizes >= 1 in non-increasing order, got ", n,
                   " after ", last, "; sort sequences by length, the longest first");
    rows += last = n;
  }
  LOCKSTEP_CHECK(rows == x.size(0), "[recurrent] expected ", rows, " rows, the sum of the batch sizes, got ", x.shape(),
                 "; change the input, or args.batch");
  LOCKSTEP_CHECK(w.hidden.defined() && w.hidden.dim() == 2,
                 "[recurrent] expected hidden weights of 2 dims, (G H, P) for G gates, H cells and P states, got ",
                 w.hidden.defined() ? str(w.hidden.shape(), "; reshape them") : "none; pass them");
  const bool lstm = args.cell == RecurrentCell::lstm;
  const int64_t all = w.hidden.size(0), hidden = all / gates_of(args.cell), fed = w.hidden.size(1);
  check_weight("hidden weights", w.hidden, {hidden * gates_of(args.cell), w.project.defined() ? fed : hidden}, x);
  check_weight("input weights", w.input, {all, x.size(1)}, x);
  if (w.input_bias.defined()) check_weight("an input bias", w.input_bias, {all}, x);
  if (w.hidden_bias.defined()) check_weight("a hidden bias", w.hidden_bias, {all}, x);
  LOCKSTEP_CHECK(lstm || !w.project.defined(), "[recurrent] expected projections of an LSTM only; pass none");
  if (w.project.defined()) check_weight("a projection", w.project, {fed, hidden}, x);
  check_weight("first states h", h, {args.batch[0], fed}, x);
  if (lstm) check_weight("first states c", c, {args.batch[0], hidden}, x);
}

Tensor plain(const Variable& v) { return v.defined() ? v.tensor() : Tensor(); }

/// The bias that is added to the product of x and the input weight: input bias + hidden bias. For the candidate gate of
/// a GRU it is the input bias only: the hidden bias is added to h W^T first, because a gate multiplies that sum.
Tensor joined_bias(RecurrentCell cell, const Tensor& input, const Tensor& hidden) {
  LOCKSTEP_CHECK(input.defined() == hidden.defined(), "[recurrent] expected two biases or none, got one; pass two");
  if (!input.defined()) return {};
  if (cell != RecurrentCell::gru) return add(input, hidden);
  const int64_t early = input.size(0) / 3 * 2;
  Tensor sum = input.clone();
  add_(sum.narrow(0, 0, early), hidden.narrow(0, 0, early));
  return sum;
}

/// For every row of `out`, the state that its sequence had before the row's step. `first` holds the initial states.
Tensor states_before(const RecurrentArgs& args, const Tensor& first, const Tensor& out) {
  const Tensor before = empty_like(out);
  for (const StepRows& s : steps_of(args)) {
    const int64_t fresh = s.rows - s.shared;
    if (s.shared > 0) before.narrow(0, s.at, s.shared).copy_(out.narrow(0, s.before, s.shared));
    if (fresh > 0) before.narrow(0, s.at + s.shared, fresh).copy_(first.narrow(0, s.shared, fresh));
  }
  return before;
}

RecurrentResult composed(const RecurrentArgs& args, const Variable& x, const Variable& first_h, const Variable& first_c,
                         const RecurrentWeights& w) {
  const bool lstm = args.cell == RecurrentCell::lstm, gru = args.cell == RecurrentCell::gru;
  const Variable inputs = linear(x, w.input, w.input_bias);
  const int64_t width = w.hidden.size(0) / gates_of(args.cell), all = args.batch[0];
  Variable h = first_h, c = first_c;
  std::vector<Variable> out;
  for (const StepRows& s : steps_of(args)) {
    const int64_t n = s.rows;
    const bool part = n < all;  // the other sequences have ended, or not begun
    const Variable before = part ? h.narrow(0, 0, n) : h, from_h = linear(before, w.hidden, w.hidden_bias),
                   from_x = inputs.narrow(0, s.at, n);
    Variable next, cell;
    if (gru) {
      const auto a = from_x.split(width, 1), b = from_h.split(width, 1);
      const Variable fresh = tanh(a[2] + sigmoid(a[0] + b[0]) * b[2]);
      next = fresh + sigmoid(a[1] + b[1]) * (before - fresh);
    } else if (lstm) {
      const auto g = (from_x + from_h).split(width, 1);
      cell = sigmoid(g[1]) * (part ? c.narrow(0, 0, n) : c) + sigmoid(g[0]) * tanh(g[2]);
      next = sigmoid(g[3]) * tanh(cell);
      if (w.project.defined()) next = linear(next, w.project);
    } else {
      next = args.cell == RecurrentCell::relu ? relu(from_x + from_h) : tanh(from_x + from_h);
    }
    out.push_back(next);
    h = part ? cat({next, h.narrow(0, n, all - n)}, 0) : next;
    if (lstm) c = part ? cat({cell, c.narrow(0, n, all - n)}, 0) : cell;
  }
  if (args.reverse) std::reverse(out.begin(), out.end());
  return {cat(out, 0), h, lstm ? c : Variable()};
}

/// The data that a forward pass in one kernel keeps for its derivative.
struct RecurrentPass {
  RecurrentArgs args;
  Saved x, h, c, input, hidden, input_bias, hidden_bias, project, out;
  Tensor gates, fresh, cells;

  /// For a second derivative: computes all steps again by other operations, and differentiates those.
  void operator()(RecordedBackward& back) const {
    back.through_all({&x, &h, &c, &input, &hidden, &input_bias, &hidden_bias, &project},
                     [&](const std::vector<Variable>& v) {
                       const RecurrentResult r = composed(args, v[0], v[1], v[2], {v[3], v[4], v[5], v[6], v[7]});
                       std::vector<Variable> results{r.out, r.h};
                       if (r.c.defined()) results.push_back(r.c);
                       return results;
                     });
  }

  void operator()(Backward& back) const {
    const Tensor& w = hidden.get(recurrent_name);
    const Tensor& w_project = project.get(recurrent_name);
    const bool lstm = args.cell == RecurrentCell::lstm, gru = args.cell == RecurrentCell::gru;
    const Tensor &first_h = h.get(recurrent_name), &first_c = c.get(recurrent_name);
    // A copy of `grad`, or zeros if there is none: the kernel overwrites the gradients that it gets.
    const auto own = [](const Tensor& grad, const Tensor& like) {
      return grad.defined() ? grad.clone() : zeros_like(like);
    };
    const Tensor& made = out.get(recurrent_name);
    Tensor grad = own(back.grad(0), made), grad_h = own(back.grad(1), first_h);
    Tensor grad_c = lstm ? own(back.grad(2), first_c) : Tensor();
    Tensor grad_gates = empty_like(gates), grad_hidden = gru ? empty_like(gates) : grad_gates;
    recurrent_grad_op(w.device(), args, w, w_project, gates, fresh, cells, made, first_h, first_c, grad, grad_h, grad_c,
                      grad_gates, grad_hidden);
    if (back.needs(0)) back.give(0, matmul(grad_gates, input.get(recurrent_name)));
    if (back.needs(3)) back.give(3, matmul(grad_gates.t(), x.get(recurrent_name)));
    if (back.needs(4)) back.give(4, matmul(grad_hidden.t(), states_before(args, first_h, made)));
    if (input_bias.defined() && (back.needs(5) || back.needs(6))) {
      const Tensor sum_gates = sum(grad_gates, {0});
      if (back.needs(5)) back.give(5, sum_gates);
      if (back.needs(6)) back.give(6, gru ? sum(grad_hidden, {0}) : sum_gates.clone());
    }
    if (back.needs(7)) {
      const int64_t width = cells.size(1);
      back.give(7, matmul(grad.t(), mul(gates.narrow(1, 3 * width, width), tanh(cells))));
    }
    if (back.needs(1)) back.give(1, std::move(grad_h));
    if (back.needs(2)) back.give(2, std::move(grad_c));
  }
};

RecurrentResult fused(const RecurrentArgs& args, const Variable& x, const Variable& h, const Variable& c,
                      const RecurrentWeights& w) {
  const bool lstm = args.cell == RecurrentCell::lstm, gru = args.cell == RecurrentCell::gru;
  const Tensor hidden_bias = plain(w.hidden_bias), w_hidden = w.hidden.tensor().contiguous(),
               w_project = w.project.defined() ? w.project.tensor().contiguous() : Tensor();
  Tensor gates = linear(x.tensor(), w.input.tensor(), joined_bias(args.cell, plain(w.input_bias), hidden_bias));
  const int64_t rows = gates.size(0), width = gates.size(1) / gates_of(args.cell), fed = w_hidden.size(1);
  const TensorOptions like{.dtype = gates.dtype(), .device = gates.device()};
  Tensor fresh, cells, out = lstm || gru ? empty({rows, fed}, like) : gates;
  if (lstm) cells = empty({rows, width}, like);
  if (gru) {
    fresh = hidden_bias.defined() ? hidden_bias.narrow(0, 2 * width, width).expand({rows, width}).clone()
                                  : zeros({rows, width}, like);
  }
  Tensor last_h = h.tensor().clone(), last_c = lstm ? c.tensor().clone() : Tensor();
  recurrent_op(x.device(), args, w_hidden, w_project, gates, fresh, cells, last_h, last_c, out);
  const std::vector<Variable> inputs{x, h, c, w.input, w.hidden, w.input_bias, w.hidden_bias, w.project};
  if (!needs_grad(inputs)) return {out, last_h, lstm ? Variable(last_c) : Variable()};
  RecurrentPass pass{.args = args,
                     .x = x,
                     .h = h.tensor().contiguous(),
                     .c = lstm ? Saved(c.tensor().contiguous()) : Saved(),
                     .input = w.input,
                     .hidden = w_hidden,
                     .input_bias = w.input_bias,
                     .hidden_bias = w.hidden_bias,
                     .project = w_project,
                     .out = out,
                     .gates = gates,
                     .fresh = fresh,
                     .cells = cells};
  std::vector<Tensor> outputs{out, std::move(last_h)};
  if (lstm) outputs.push_back(std::move(last_c));
  std::vector<Variable> made = record(recurrent_name, inputs, std::move(outputs), std::move(pass));
  return {made[0], made[1], lstm ? made[2] : Variable()};
}

}  // namespace

RecurrentResult recurrent(const RecurrentArgs& args, const Variable& input, const Variable& first_h,
                          const Variable& first_c, const RecurrentWeights& given) {
  const Wide wide(input);
  const auto high = [&](const Variable& v) { return v.defined() ? wide(Autocast::high(v)) : v; };
  const Variable x = high(input), h = high(first_h), c = high(first_c);
  const RecurrentWeights w{high(given.input), high(given.hidden), high(given.input_bias), high(given.hidden_bias),
                           high(given.project)};
  check_arguments(args, x, h, c, w);
  const RecurrentResult result =
      recurrent_op.runs_on(x.device()) ? fused(args, x, h, c, w) : composed(args, x, h, c, w);
  return {wide.round(result.out), wide.round(result.h), result.c.defined() ? wide.round(result.c) : Variable()};
}

}  // namespace lockstep
