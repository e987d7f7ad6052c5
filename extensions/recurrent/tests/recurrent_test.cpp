// Recurrent layers: first and second derivatives, packed sequences, rejected calls, and modules with several results in
// hooks, checkpoints and Sequential. Their values are golden cases (tests/golden/recurrent.safetensors).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "autograd/activation_checkpoint.h"
#include "autograd/gradcheck.h"
#include "extensions/recurrent/recurrent.h"
#include "nn/nn.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

struct CellRow {
  RecurrentCell cell;
  bool reverse;
  int64_t project = 0;
  std::vector<int64_t> batch = {3, 2, 2, 1};
  int64_t in = 2, hidden = 3;
};

/// x, h, c and the weights in one list, as gradcheck needs them.
std::vector<Variable> recurrent_inputs(const CellRow& row) {
  const int64_t in = row.in, hidden = row.hidden;
  const int64_t gates = row.cell == RecurrentCell::lstm ? 4 : row.cell == RecurrentCell::gru ? 3 : 1;
  const int64_t fed = row.project ? row.project : hidden;
  int64_t rows = 0;
  for (const int64_t n : row.batch) rows += n;
  const auto make = [](const Shape& shape) { return Variable(randn(shape, {.dtype = f64}) * 0.5, true); };
  std::vector<Variable> all{make({rows, in}),           make({row.batch[0], fed}),   make({row.batch[0], hidden}),
                            make({gates * hidden, in}), make({gates * hidden, fed}), make({gates * hidden}),
                            make({gates * hidden})};
  if (row.project) all.push_back(make({row.project, hidden}));
  return all;
}

Variable recurrent_sum(const CellRow& row, const std::vector<Variable>& in) {
  const bool lstm = row.cell == RecurrentCell::lstm;
  const RecurrentResult r =
      recurrent({.cell = row.cell, .reverse = row.reverse, .batch = row.batch}, in[0], in[1], lstm ? in[2] : Variable(),
                {in[3], in[4], in[5], in[6], in.size() > 7 ? in[7] : Variable()});
  const Variable states = square(sum(r.h, {0})) * 2.0;
  return cat({r.out.flatten(), states, lstm ? sum(r.c, {0}) : states}, 0);
}

struct Tagger : Layer<Tagger> {
  LSTM lstm{{.input = 3, .hidden = 4, .layers = 2, .bidirectional = true}};
  Linear head{{.in = 8, .out = 2}};
  Variable forward(const Variable& x) {
    const auto [output, h, c] = lstm(x);
    return head(output) + sum(h) + sum(c);
  }
  void fields(Fields& f) override { f("lstm", lstm)("head", head); }
};

std::vector<Tensor> gradients_of(Module& module, const Variable& loss) {
  module.zero_grad();
  loss.backward();
  std::vector<Tensor> all;
  for (const Variable& p : module.parameters()) all.push_back(p.grad());
  return all;
}

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return equal(x, y); });
}

}  // namespace

TEST_CASE("recurrent: first and second derivatives of every cell, direction and projection, with sequences that end") {
  manual_seed(3);
  std::vector<CellRow> rows;
  for (const RecurrentCell cell : {RecurrentCell::tanh, RecurrentCell::relu, RecurrentCell::lstm, RecurrentCell::gru})
    for (const bool reverse : {false, true}) rows.push_back({cell, reverse});
  rows.push_back({RecurrentCell::lstm, false, 2});
  rows.push_back({RecurrentCell::lstm, true, 2, {2, 2}});
  rows.push_back({RecurrentCell::lstm, false, 1, {1}, 1, 2});
  for (const RecurrentCell cell : {RecurrentCell::tanh, RecurrentCell::lstm, RecurrentCell::gru}) {
    rows.push_back({cell, false, 0, {1}, 1, 1});
    rows.push_back({cell, true, 0, {3, 2}, 3, 5});
  }
  for (const CellRow& row : rows) {
    CAPTURE(int(row.cell));
    CAPTURE(row.reverse);
    CAPTURE(row.hidden);
    const auto run = [&](const std::vector<Variable>& in) { return recurrent_sum(row, in); };
    CHECK(gradcheck(run, recurrent_inputs(row)) == "");
    CHECK(gradgradcheck(run, recurrent_inputs(row)) == "");
  }
}

TEST_CASE("recurrent: second derivatives of layers, packed and with dropout; third derivatives; of some inputs only") {
  manual_seed(8);
  const auto f64_leaf = [](const Shape& shape) { return Variable(randn(shape, {.dtype = f64}) * 0.5, true); };
  LSTM lstm({.input = 2, .hidden = 3, .layers = 2, .dropout = 0.4, .bidirectional = true, .proj_size = 2});
  GRU gru({.input = 2, .hidden = 2, .layers = 2, .bias = false, .batch_first = true, .dropout = 0.4});
  lstm.to(f64), gru.to(f64);
  const auto with_parameters = [](Variable x, Module& module) {
    std::vector<Variable> all{std::move(x)};
    for (const Variable& p : module.parameters()) all.push_back(p);
    return all;
  };
  CHECK(gradgradcheck(
            [&](const std::vector<Variable>& in) {
              const auto [output, h, c] = lstm(pack_padded_sequence(in[0], {1, 3}, {.enforce_sorted = false}));
              return cat({output.data.flatten(), h.flatten(), c.flatten()}, 0);
            },
            with_parameters(f64_leaf({3, 2, 2}), lstm)) == "");
  CHECK(gradgradcheck([&](const std::vector<Variable>& in) { return gru(in[0]).output; },
                      with_parameters(f64_leaf({2, 3, 2}), gru)) == "");

  // Gradients with respect to some of the inputs only. An LSTM's last c does not depend on its projection, in[7].
  const CellRow row{RecurrentCell::lstm, false, 2, {2, 1}};
  CHECK(gradgradcheck(
            [&](const std::vector<Variable>& in) {
              return grad(sum(tanh(recurrent_sum(row, in))), {in[0], in[4], in[7]}, {.create_graph = true})[1];
            },
            recurrent_inputs(row)) == "");
  std::vector<Variable> in = recurrent_inputs({RecurrentCell::lstm, false, 2, {2}});
  for (size_t i = 1; i < 7; ++i) in[i] = in[i].detach();
  const GradOptions options{.create_graph = true, .allow_unused = true};
  const Variable last = recurrent({.batch = {2}}, in[0], in[1], in[2], {in[3], in[4], in[5], in[6], in[7]}).c;
  CHECK(!grad(sum(last), {in[7]}, options)[0].defined());
  LSTMCell cell({.input = 2, .hidden = 3});
  const Variable x(randn({1, 2, 2}), true);
  const Variable slope = grad(sum(cell(x[0]).c), {cell.weights.input}, options)[0];
  CHECK(grad(sum(slope * slope), {x})[0].tensor().numel() == 4);
}

TEST_CASE("recurrent: second derivatives match PyTorch") {
  const auto fill = [](const Shape& shape, double start) {
    return sin(arange(numel_of(shape), {.dtype = f64}) * 1.7 + start).reshape(shape) * 0.6;
  };
  // PyTorch's gradient penalty of x. The second number sums the penalty's gradients with respect to x and to all
  // parameters, each multiplied by fill(0.3).
  struct Row {
    std::shared_ptr<Module> layer;
    std::function<Variable(const PackedSequence&)> loss;
    double penalty;
    std::vector<double> sums;
  };
  const auto row = []<class L>(L made, double penalty, const std::vector<double>& sums) {
    const auto layer = std::make_shared<L>(std::move(made));
    const auto loss = [layer](const PackedSequence& x) {
      const auto out = (*layer)(x);
      Variable state = out.h;
      if constexpr (requires { out.c; }) state = out.c;
      return sum(tanh(out.output.data)) + sum(square(state));
    };
    return Row{layer, loss, penalty, sums};
  };
  const Row rows[] = {
      row(LSTM({.input = 2, .hidden = 3, .layers = 2, .bidirectional = true, .proj_size = 2}), 1.423529625879397,
          {-0.156211017088861, 0.0440122283322097, 0.0283569846180027,  0.390827210196214,  0.390827210196214,
           -0.115291636488317, -0.596617120870985, 0.0683599827550482,  0.193691617017025,  0.193691617017026,
           0.021815895544651,  0.0893209167774333, 0.00891110950156204, -0.108322944523699, -0.108322944523699,
           0.0140239911339721, 0.181998949825989,  0.00466483573320892, 0.0853546292048955, 0.0853546292048955,
           -0.0457318745211935}),
      row(GRU({.input = 2, .hidden = 3, .layers = 2, .bidirectional = true}), 0.35355984203830726,
          {0.181533932408604, 0.407849411098065, 0.0524500337303261, -0.138700094507968, -0.115747441521381,
           -0.381183287863279, -0.0560957379485409, 0.0784028543211044, 0.120999093009605, -0.173578094544664,
           0.125830622578453, -0.0970836486984281, -0.0478396950924793, -0.258977411676708, 0.0605221864390641,
           -0.101335970410549, -0.0382515272799316}),
      row(RNN({.input = 2, .hidden = 3, .layers = 2, .bidirectional = true}), 2.882269270641578,
          {1.27570080186272, 3.52764503386719, -1.45566567254714, 1.2656671463536, 1.2656671463536, -3.33289819588298,
           1.75021033223043, -1.23721126611653, -1.23721126611653, 0.302980904785396, 0.0606122152501604,
           -0.228718828413953, -0.228718828413953, 0.158285424746708, 1.77817802135146, -0.227732916756018,
           -0.227732916756018}),
  };
  for (const auto& [layer, loss, wanted, sums] : rows) {
    CAPTURE(layer->kind());
    layer->to(f64);
    std::vector<Variable> inputs{Variable(fill({4, 3, 2}, 0.9), true)};
    for (const Variable& p : layer->parameters()) {
      p.tensor().copy_(fill(p.shape(), double(inputs.size()) - 1));
      inputs.push_back(p);
    }
    const PackedSequence x = pack_padded_sequence(inputs[0], {4, 2, 1});
    const Variable penalty = sum(square(grad(loss(x), {inputs[0]}, {.create_graph = true})[0]));
    CHECK(penalty.item() == doctest::Approx(wanted).epsilon(1e-12));
    const std::vector<Variable> grads = grad(penalty, inputs);
    REQUIRE(grads.size() == sums.size());
    for (size_t i = 0; i < grads.size(); ++i) {
      CAPTURE(i);
      const Tensor weighted = mul(grads[i].tensor(), fill(grads[i].shape(), 0.3));
      CHECK(std::fabs(sum(weighted).item() - sums[i]) < 1e-12);
    }
  }
}

TEST_CASE_FIXTURE(OnCpu,
                  "recurrent: the bits do not depend on the number of threads or on other sequences in the batch") {
  manual_seed(4);
  for (const RecurrentCell cell : {RecurrentCell::lstm, RecurrentCell::gru}) {
    const CellRow row{cell, false, 0, {20, 20, 9}, 5, 70};
    std::vector<Variable> in = recurrent_inputs(row);
    for (Variable& v : in) v = Variable(v.tensor().to(f32), true);
    std::vector<std::vector<Tensor>> made;
    for (const int threads : {1, 3}) {
      const Threads scope(threads);
      for (Variable& v : in) v.clear_grad();
      sum(recurrent_sum(row, in)).backward();
      made.emplace_back();
      for (const Variable& v : in)
        if (v.grad().defined()) made.back().push_back(v.grad());
    }
    CHECK(made[0].size() == (cell == RecurrentCell::lstm ? 7 : 6));
    CHECK(same(made[0], made[1]));
  }
  LSTM lstm({.input = 3, .hidden = 9});
  const Tensor x = randn({4, 7, 3});
  CHECK(equal(lstm(x).output.tensor().narrow(1, 2, 1), lstm(x.narrow(1, 2, 1)).output.tensor()));
}

TEST_CASE("recurrent: names of parameters, their start, options, 16 bits") {
  manual_seed(5);
  LSTM lstm({.input = 3, .hidden = 16, .layers = 2, .bidirectional = true, .proj_size = 2});
  std::vector<std::string> names;
  for (auto& p : lstm.named_parameters()) {
    names.push_back(p.name);
    CHECK(amax(abs(p.variable.tensor())).item() <= 0.25);
  }
  CHECK(names.size() == 20);
  CHECK(std::vector<std::string>(names.begin(), names.begin() + 6) ==
        std::vector<std::string>{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_hr_l0",
                                 "weight_ih_l0_reverse"});
  CHECK(names.back() == "weight_hr_l1_reverse");
  CHECK(lstm.weights[2].input.shape() == Shape{64, 4});
  CHECK(amax(abs(lstm.weights[0].input.tensor())).item() > 0.22);
  CHECK(lstm.options() == "in 3, hidden 16, proj_size 2, layers 2, bidirectional");
  const Tensor x = randn({3, 2, 3});
  const Tensor wide = lstm(x).output.tensor();
  for (const DType dtype : {f16, bf16}) {
    lstm.to(dtype);
    const Variable low = lstm(x.to(dtype)).output;
    CHECK(low.dtype() == dtype);
    CHECK(allclose(low.tensor().to(f32), wide, 0, dtype == f16 ? 2e-3 : 2e-2));
  }
  GRU gru({.input = 3, .hidden = 4, .layers = 2, .dropout = 0.5});
  const Tensor first = gru(x).output.tensor();
  CHECK(!equal(first, gru(x).output.tensor()));
  gru.eval();
  CHECK(equal(gru(x).output.tensor(), gru(x).output.tensor()));
}

TEST_CASE("recurrent: several results in hooks, under checkpoints and in Sequential") {
  manual_seed(6);
  Tagger net;
  const Tensor x = randn({3, 2, 3});
  size_t observed = 0;
  int first = 0;
  const int all_id =
      net.lstm.after_forward_all([&](Module&, const std::vector<Variable>& in, const std::vector<Variable>& out) {
        observed = 10 * in.size() + out.size();
      });
  const int first_id = net.lstm.after_forward([&](Module&, const auto&, const Variable& out) {
    first += out.shape() == Shape{3, 2, 8};
  });
  const auto plain = gradients_of(net, sum(net(x)));
  CHECK(observed == 13);
  CHECK(first == 1);
  net.lstm.remove_hook(all_id);
  net.lstm.remove_hook(first_id);

  int runs = 0;
  net.lstm.wrap_call([&](const auto& inputs, const auto& run) {
    return checkpoint_many([&runs, run](const std::vector<Variable>& in) { return ++runs, run(in); }, inputs);
  });
  CHECK(same(plain, gradients_of(net, sum(net(x)))));
  CHECK(runs == 2);
  CHECK_ERROR(net.lstm(pack_padded_sequence(x, {3, 1})),
              "[LSTM] its calls are wrapped (checkpointed): expected variables as arguments");

  Sequential chain(GRU({.input = 3, .hidden = 4}), Linear({.in = 4, .out = 2}));
  CHECK(chain(x).shape() == Shape{3, 2, 2});

  std::tuple<Variable, std::pair<Variable, int>> mixed{x, {x, 3}};
  CHECK(variables_of(mixed).size() == 2);
  CHECK(!is_variables<decltype(mixed)>);
  CHECK(is_variables<std::array<LstmOutput, 2>>);
}

TEST_CASE("recurrent: packed sequences") {
  manual_seed(7);
  const Variable x(randn({4, 3, 2}), true);
  const PackedSequence packed = pack_padded_sequence(x, {2, 4, 1}, {.enforce_sorted = false});
  CHECK(packed.batch_sizes == std::vector<int64_t>{3, 2, 1, 1});
  CHECK(packed.order == std::vector<int64_t>{1, 0, 2});
  CHECK(equal(packed.data.tensor()[1], x.tensor()[0][0]));
  const PaddedSequence padded = pad_packed_sequence(packed, {.batch_first = true, .padding = 9, .total_length = 5});
  CHECK(padded.lengths == std::vector<int64_t>{2, 4, 1});
  CHECK(padded.output.shape() == Shape{3, 5, 2});
  CHECK(padded.output.tensor()[0][2][0].item() == 9);
  CHECK(equal(padded.output.tensor()[1].narrow(0, 0, 4), x.tensor().select(1, 1).contiguous()));
  sum(padded.output).backward();
  CHECK(sum(x.grad()).item() == 14);

  // Each packed sequence gives the same results as it gives alone.
  LSTM lstm({.input = 2, .hidden = 3, .bidirectional = true});
  const auto [output, h, c] = lstm(packed);
  const LstmOutput single = lstm(x.select(1, 0).narrow(0, 0, 2));
  CHECK(allclose(pad_packed_sequence(output).output.tensor().select(1, 0).narrow(0, 0, 2), single.output.tensor()));
  CHECK(allclose(h.tensor().select(1, 0), single.h.tensor()));
  CHECK(allclose(c.tensor().select(1, 0), single.c.tensor()));
}

TEST_CASE("recurrent: invalid arguments are rejected") {
  LSTM lstm({.input = 3, .hidden = 4, .layers = 2});
  GRUCell cell({.input = 3, .hidden = 4});
  const Tensor x = zeros({5, 2, 3}), h = zeros({2, 2, 4});
  CHECK_ERROR(lstm(zeros({5, 2, 7})), "[LSTM] expected input (T, B, 3) or (T, 3), got (5, 2, 7)");
  CHECK_ERROR(lstm(zeros({0, 2, 3})), "[LSTM] expected at least 1 step of at least 1 sequence, got (0, 2, 3)");
  CHECK_ERROR(lstm(x, zeros({1, 2, 4}), h),
              "expected first states h of shape (2, 2, 4) for input (5, 2, 3), got (1, 2, 4)");
  CHECK_ERROR(lstm(x, h, zeros({2, 2, 5})), "expected first states c of shape (2, 2, 4)");
  CHECK_ERROR(lstm(x, h), "[LSTM] expected both first states, h and c, or neither");
  CHECK_ERROR(lstm(x.to(f64)), "[recurrent] expected hidden weights of f64 on");
  CHECK_ERROR(cell(zeros({2, 4})), "[GRUCell] expected input (B, 3) or (3), B > 0, got (2, 4)");
  CHECK_ERROR(cell(zeros({2, 3}), zeros({3, 4})), "[GRUCell] expected h of shape (2, 4) for input (2, 3), got (3, 4)");
  CHECK_ERROR(LSTMCell({.input = 3, .hidden = 4})(zeros({2, 3}), zeros({2, 4})),
              "expected both states, h and c, or neither");
  CHECK_REJECTED(GRU, ({.input = 3, .hidden = 0}), "input, hidden and layers > 0, got 3, 0 and 1");
  CHECK_REJECTED(RNN, ({.input = 3, .hidden = 2, .dropout = 1.5}), "dropout in [0, 1], got 1.5");
  CHECK_REJECTED(LSTM, ({.input = 3, .hidden = 4, .proj_size = 4}), "proj_size in [0, 4), below hidden, got 4");
  CHECK_REJECTED(pack_padded_sequence, (x, {5, 0}), "lengths from 1 to 5, got 0");
  CHECK_REJECTED(pack_padded_sequence, (x, {6, 1}), "lengths from 1 to 5, got 6");
  CHECK_REJECTED(pack_padded_sequence, (x, {5}), "2 lengths for input (5, 2, 3), got 1");
  CHECK_ERROR(pack_padded_sequence(x, {2, 5}),
              "got a longer sequence behind a shorter one; sort the sequences, or set enforce_sorted");
  CHECK_ERROR(pad_packed_sequence(pack_padded_sequence(x, {5, 2}), {.total_length = 4}),
              "expected total_length >= 5, the length of the longest sequence, got 4");
  CHECK_ERROR(lstm(PackedSequence{zeros({3, 3}), {1, 2}, {}}),
              "expected batch sizes >= 1 in non-increasing order, got 2 after 1");
  CHECK_ERROR(lstm(PackedSequence{zeros({4, 3}), {2, 1}, {}}),
              "expected 3 rows, the sum of the batch sizes, got (4, 3)");
}
