// Recurrent layers and packed sequences. See layers.h.
#include "extensions/recurrent/layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "nn/init.h"
#include "tensor/ops.h"

namespace lockstep::nn {

namespace {

/// Makes parameters for classes that are not modules themselves.
struct Parameters : Module {
  using Module::parameter;
};

RecurrentWeights make_weights(RecurrentCell cell, int64_t in, int64_t hidden, int64_t projected, bool bias) {
  const auto make = [](const Shape& shape) { return Parameters::parameter(shape); };
  const int64_t all = gates_of(cell) * hidden;
  RecurrentWeights w{make({all, in}), make({all, projected}), {}, {}, {}};
  if (bias) w.input_bias = make({all}), w.hidden_bias = make({all});
  if (projected != hidden) w.project = make({projected, hidden});
  const double bound = 1 / std::sqrt(double(hidden));
  for (const Variable& v : {w.input, w.hidden, w.input_bias, w.hidden_bias, w.project})
    if (v.defined()) init::uniform(v, -bound, bound);
  return w;
}

Tensor index_of(const std::vector<int64_t>& index, const Variable& like) {
  return Tensor::from(index, {int64_t(index.size())}).to(like.device());
}

/// The inverse of a permutation.
std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> places(order.size());
  for (size_t i = 0; i < order.size(); ++i) places[size_t(order[i])] = int64_t(i);
  return places;
}

Variable zeros_for(const Variable& like, const Shape& shape) {
  return lockstep::zeros(shape, {.dtype = like.dtype(), .device = like.device()});
}

}  // namespace

PackedSequence pack_padded_sequence(const Variable& input, const std::vector<int64_t>& lengths,
                                    const PackOptions& options) {
  LOCKSTEP_CHECK(input.defined() && input.dim() >= 2, "[pack_padded_sequence] expected input (T, B, ...), got ",
                 input.defined() ? str(input.shape(), "; reshape it") : "nothing; pass one");
  const Variable x = options.batch_first ? input.transpose(0, 1) : input;
  const int64_t steps = x.size(0), batch = x.size(1);
  LOCKSTEP_CHECK(batch >= 1 && int64_t(lengths.size()) == batch, "[pack_padded_sequence] expected ", batch,
                 " lengths for input ", input.shape(), ", got ", lengths.size(),
                 batch < 1 ? "; leave empty batches out" : "; give one per sequence");
  for (const int64_t n : lengths)
    LOCKSTEP_CHECK(n >= 1 && n <= steps, "[pack_padded_sequence] expected lengths from 1 to ", steps, ", got ", n);
  PackedSequence packed;
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  if (!std::is_sorted(lengths.rbegin(), lengths.rend())) {
    LOCKSTEP_CHECK(!options.enforce_sorted,
                   "[pack_padded_sequence] expected lengths in non-increasing order, got a longer sequence behind a "
                   "shorter one; sort the sequences, or set enforce_sorted to false");
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return lengths[size_t(a)] > lengths[size_t(b)]; });
    packed.order = order;
  }
  std::vector<int64_t> rows;
  for (int64_t t = 0; t < lengths[size_t(order[0])]; ++t) {
    int64_t n = 0;
    for (; n < batch && lengths[size_t(order[size_t(n)])] > t; ++n) rows.push_back(t * batch + order[size_t(n)]);
    packed.batch_sizes.push_back(n);
  }
  packed.data = index_select(x.flatten(0, 1), 0, index_of(rows, x));
  return packed;
}

PaddedSequence pad_packed_sequence(const PackedSequence& sequence, const PadOptions& options) {
  const Variable& data = sequence.data;
  LOCKSTEP_CHECK(data.defined() && !sequence.batch_sizes.empty(),
                 "[pad_packed_sequence] expected a packed sequence, got an empty one; "
                 "make it with pack_padded_sequence()");
  const int64_t batch = sequence.batch_sizes[0], longest = int64_t(sequence.batch_sizes.size()),
                steps = options.total_length ? options.total_length : longest;
  LOCKSTEP_CHECK(steps >= longest, "[pad_packed_sequence] expected total_length >= ", longest,
                 ", the length of the longest sequence, got ", options.total_length);
  const int64_t all = std::accumulate(sequence.batch_sizes.begin(), sequence.batch_sizes.end(), int64_t(0));
  LOCKSTEP_CHECK(data.size(0) == all, "[pad_packed_sequence] expected ", all, " rows, the sum of the batch sizes, got ",
                 data.shape(), "; give the data that was packed");
  std::vector<int64_t> places(static_cast<size_t>(batch));  // sequence b is number places[b] by length
  std::iota(places.begin(), places.end(), 0);
  if (!sequence.order.empty()) places = inverse(sequence.order);
  PaddedSequence padded;
  padded.lengths.resize(size_t(batch));
  std::vector<int64_t> rows;
  for (int64_t t = 0, first = 0; t < steps; ++t) {
    const int64_t n = t < longest ? sequence.batch_sizes[size_t(t)] : 0;
    for (size_t b = 0; b < size_t(batch); ++b) {
      const bool there = places[b] < n;
      rows.push_back(there ? first + places[b] : all);  // row `all` of `filled` is padding
      padded.lengths[b] += there;
    }
    first += n;
  }
  Shape shape = data.shape(), padding = data.shape();
  padding[0] = 1;
  const Variable filled =
      cat({data, Variable(full(padding, options.padding, {.dtype = data.dtype(), .device = data.device()}))}, 0);
  Shape out{steps, batch};
  for (int d = 1; d < shape.rank(); ++d) out.push_back(shape[d]);
  padded.output = index_select(filled, 0, index_of(rows, data)).reshape(out);
  if (options.batch_first) padded.output = padded.output.transpose(0, 1).contiguous();
  return padded;
}

// --- layers: RNN, LSTM, GRU ---

Recurrence::Recurrence(const char* name, const RecurrentOptions& options, RecurrentCell kind, int64_t proj_size)
    : o(options), cell(kind), projected(proj_size ? proj_size : o.hidden), name_(name) {
  LOCKSTEP_CHECK(o.input > 0 && o.hidden > 0 && o.layers > 0, "[", name_,
                 "] expected input, hidden and layers > 0, got ", o.input, ", ", o.hidden, " and ", o.layers);
  LOCKSTEP_CHECK(o.dropout >= 0 && o.dropout <= 1, "[", name_, "] expected dropout in [0, 1], got ", o.dropout);
  LOCKSTEP_CHECK(proj_size >= 0 && proj_size < o.hidden, "[", name_, "] expected proj_size in [0, ", o.hidden,
                 "), below hidden, got ", proj_size);
  for (int64_t l = 0; l < o.layers; ++l)
    for (int d = 0; d < directions(); ++d)
      weights.push_back(make_weights(cell, l == 0 ? o.input : directions() * projected, o.hidden, projected, o.bias));
}

void Recurrence::list(Fields& f) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t l = i / size_t(directions());
    const std::string end = str("_l", l, i % size_t(directions()) ? "_reverse" : "");
    RecurrentWeights& w = weights[i];
    f("weight_ih" + end, w.input)("weight_hh" + end, w.hidden)("bias_ih" + end, w.input_bias)(
        "bias_hh" + end, w.hidden_bias)("weight_hr" + end, w.project);
  }
}

std::string Recurrence::text() const {
  std::string all = str("in ", o.input, ", hidden ", o.hidden);
  if (projected != o.hidden) all += str(", proj_size ", projected);
  if (o.layers > 1) all += str(", layers ", o.layers);
  if (o.bidirectional) all += ", bidirectional";
  if (o.dropout > 0) all += str(", dropout ", o.dropout);
  return all;
}

void Recurrence::check_states(const Variable& h, const Variable& c, int64_t batch, const Variable& x,
                              bool batched) const {
  LOCKSTEP_CHECK(cell != RecurrentCell::lstm || h.defined() == c.defined(), "[", name_,
                 "] expected both first states, h and c, or neither, got only ", h.defined() ? "h" : "c",
                 "; pass both");
  const auto check = [&](const char* what, const Variable& state, int64_t size) {
    if (!state.defined()) return;
    const Shape wanted = batched ? Shape{o.layers * directions(), batch, size} : Shape{o.layers * directions(), size};
    LOCKSTEP_CHECK(state.shape() == wanted, "[", name_, "] expected first states ", what, " of shape ", wanted,
                   " for input ", x.shape(), ", got ", state.shape(), "; reshape them");
  };
  check("h", h, projected);
  check("c", c, o.hidden);
}

LstmOutput Recurrence::over_layers(const Variable& rows, RecurrentArgs args, const Variable& h, const Variable& c,
                                   bool training) {
  const bool lstm = cell == RecurrentCell::lstm;
  const int64_t batch = args.batch[0];
  args.cell = cell;
  Variable x = rows;
  std::vector<Variable> last_h, last_c;
  for (int64_t l = 0; l < o.layers; ++l) {
    std::vector<Variable> both;
    for (int d = 0; d < directions(); ++d) {
      const int64_t i = l * directions() + d;
      args.reverse = d == 1;
      const Variable first_h = h.defined() ? h.select(0, i) : zeros_for(rows, {batch, projected});
      Variable first_c;
      if (lstm) first_c = c.defined() ? c.select(0, i) : zeros_for(rows, {batch, o.hidden});
      RecurrentResult result = recurrent(args, x, first_h, first_c, weights[size_t(i)]);
      both.push_back(result.out);
      last_h.push_back(result.h);
      if (lstm) last_c.push_back(result.c);
    }
    x = both.size() == 1 ? both[0] : cat(both, 1);
    if (l + 1 < o.layers && o.dropout > 0) x = dropout(x, o.dropout, training);
  }
  return {x, stack(last_h, 0), lstm ? stack(last_c, 0) : Variable()};
}

LstmOutput Recurrence::run(const Variable& x, const Variable& h, const Variable& c, bool training) {
  const bool batched = x.defined() && x.dim() == 3;
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 2 || x.dim() == 3) && x.size(-1) == o.input, "[", name_,
                 "] expected input ", o.batch_first ? "(B, T, " : "(T, B, ", o.input, ") or (T, ", o.input, "), got ",
                 x.defined() ? str(x.shape(), "; reshape the input") : "nothing; pass one");
  const int time = batched && o.batch_first ? 1 : 0;
  const int64_t steps = x.size(time), batch = batched ? x.size(1 - time) : 1;
  LOCKSTEP_CHECK(steps > 0 && batch > 0, "[", name_, "] expected at least 1 step of at least 1 sequence, got ",
                 x.shape(), "; leave empty batches out");
  check_states(h, c, batch, x, batched);
  const auto with_batch = [&](const Variable& state) {
    return state.defined() && !batched ? state.unsqueeze(1) : state;
  };
  const RecurrentArgs args{.batch = std::vector<int64_t>(size_t(steps), batch)};
  LstmOutput out = over_layers((time == 1 ? x.transpose(0, 1) : x).reshape({steps * batch, o.input}), args,
                               with_batch(h), with_batch(c), training);
  if (!batched) return {out.output, out.h.squeeze(1), out.c.defined() ? out.c.squeeze(1) : out.c};
  out.output = out.output.reshape({steps, batch, directions() * projected});
  if (time == 1) out.output = out.output.transpose(0, 1).contiguous();
  return out;
}

PackedLstmOutput Recurrence::run(const PackedSequence& x, const Variable& h, const Variable& c, bool training) {
  LOCKSTEP_CHECK(x.data.defined() && !x.batch_sizes.empty() && x.data.dim() == 2 && x.data.size(1) == o.input, "[",
                 name_, "] expected a packed sequence of rows of ", o.input, ", got ",
                 x.data.defined() ? str(x.data.shape()) : "nothing", "; pack_padded_sequence() makes one");
  check_states(h, c, x.batch_sizes[0], x.data, true);
  const auto in_order = [&](const Variable& state, const std::vector<int64_t>& order) {
    return state.defined() && !order.empty() ? index_select(state, 1, index_of(order, state)) : state;
  };
  const LstmOutput out =
      over_layers(x.data, {.batch = x.batch_sizes}, in_order(h, x.order), in_order(c, x.order), training);
  const std::vector<int64_t> back = inverse(x.order);
  return {{out.output, x.batch_sizes, x.order}, in_order(out.h, back), in_order(out.c, back)};
}

RNN::RNN(const Options& o)
    : PlainRecurrentLayer("RNN", {o.input, o.hidden, o.layers, o.bias, o.batch_first, o.dropout, o.bidirectional},
                          o.relu ? RecurrentCell::relu : RecurrentCell::tanh) {}

LSTM::LSTM(const Options& o)
    : RecurrentLayer("LSTM", {o.input, o.hidden, o.layers, o.bias, o.batch_first, o.dropout, o.bidirectional},
                     RecurrentCell::lstm, o.proj_size) {}

// --- single-step cells: RNNCell, LSTMCell, GRUCell ---

RecurrentStep::RecurrentStep(const char* name, int64_t in, int64_t out, bool bias, RecurrentCell kind)
    : input(in), hidden(out), cell(kind), name_(name) {
  LOCKSTEP_CHECK(input > 0 && hidden > 0, "[", name_, "] expected input and hidden > 0, got ", input, " and ", hidden);
  weights = make_weights(cell, input, hidden, hidden, bias);
}

void RecurrentStep::list(Fields& f) {
  f("weight_ih", weights.input)("weight_hh", weights.hidden)("bias_ih", weights.input_bias)("bias_hh",
                                                                                            weights.hidden_bias);
}

LstmOutput RecurrentStep::step(const Variable& x, const Variable& h, const Variable& c) {
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 1 || x.dim() == 2) && x.size(-1) == input && x.numel() > 0, "[", name_,
                 "] expected input (B, ", input, ") or (", input, "), B > 0, got ",
                 x.defined() ? str(x.shape()) : "nothing");
  LOCKSTEP_CHECK(cell != RecurrentCell::lstm || h.defined() == c.defined(), "[", name_,
                 "] expected both states, h and c, or neither, got only ", h.defined() ? "h" : "c", "; pass both");
  const int64_t batch = x.dim() == 2 ? x.size(0) : 1;
  const Shape wanted = x.dim() == 2 ? Shape{batch, hidden} : Shape{hidden};
  const auto state = [&](const char* what, const Variable& s) {
    if (!s.defined()) return zeros_for(x, {batch, hidden});
    LOCKSTEP_CHECK(s.shape() == wanted, "[", name_, "] expected ", what, " of shape ", wanted, " for input ", x.shape(),
                   ", got ", s.shape(), "; reshape it");
    return s.reshape({batch, hidden});
  };
  const RecurrentResult next = recurrent({.cell = cell, .batch = {batch}}, x.reshape({batch, input}), state("h", h),
                                         cell == RecurrentCell::lstm ? state("c", c) : Variable(), weights);
  return {next.out, next.h.reshape(wanted), next.c.defined() ? next.c.reshape(wanted) : Variable()};
}

}  // namespace lockstep::nn
