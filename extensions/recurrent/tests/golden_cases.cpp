// Cases of recurrent layers and cells: all results and gradients, in f64 and f32.
#include <algorithm>
#include <map>
#include <memory>

#include "extensions/recurrent/layers.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::nn;

namespace {

/// The results of a layer or a cell; c is undefined if there is none.
struct Results {
  Variable out, h, c;
};

std::unique_ptr<Module> make_recurrent(const std::string& kind, const Case& c) {
  const int64_t in = c.integer("input"), hidden = c.integer("hidden"), layers = c.integer("layers", 1);
  const bool bias = c.flag("bias", true), first = c.flag("batch_first", false), both = c.flag("bidirectional", false),
             with_relu = c.flag("relu", false);
  if (kind == "RNN") return std::make_unique<RNN>(RNN::Options{in, hidden, layers, with_relu, bias, first, 0, both});
  if (kind == "LSTM")
    return std::make_unique<LSTM>(LSTM::Options{in, hidden, layers, bias, first, 0, both, c.integer("proj_size", 0)});
  if (kind == "GRU") return std::make_unique<GRU>(GRU::Options{in, hidden, layers, bias, first, 0, both});
  if (kind == "RNNCell") return std::make_unique<RNNCell>(RNNCell::Options{in, hidden, bias, with_relu});
  if (kind == "LSTMCell") return std::make_unique<LSTMCell>(LSTMCell::Options{in, hidden, bias});
  LOCKSTEP_CHECK(kind == "GRUCell", "expected RNN, LSTM, GRU or one of their cells, got '", kind, "'");
  return std::make_unique<GRUCell>(GRUCell::Options{in, hidden, bias});
}

Results call(Module& module, const Variable& x, const Variable& h, const Variable& c, const Case& from) {
  if (auto* cell = dynamic_cast<RNNCell*>(&module)) return {{}, (*cell)(x, h), {}};
  if (auto* cell = dynamic_cast<GRUCell*>(&module)) return {{}, (*cell)(x, h), {}};
  if (auto* cell = dynamic_cast<LSTMCell*>(&module)) {
    const auto state = (*cell)(x, h, c);
    return {{}, state.h, state.c};
  }
  const auto run = [&](const auto& input) {
    LstmOutput r;
    PackedSequence packed;
    const auto keep = [&](const auto& made) {
      if constexpr (requires { made.output.data; }) packed = made.output;
      else r.output = made.output;
      r.h = made.h;
      if constexpr (requires { made.c; }) r.c = made.c;
    };
    if (auto* layer = dynamic_cast<RNN*>(&module)) keep((*layer)(input, h));
    else if (auto* gru = dynamic_cast<GRU*>(&module)) keep((*gru)(input, h));
    else keep(dynamic_cast<LSTM&>(module)(input, h, c));
    return std::pair(r, packed);
  };
  if (!from.arg("lengths")) {
    const LstmOutput r = run(x).first;
    return {r.output, r.h, r.c};
  }
  std::vector<int64_t> lengths;
  for (const int64_t n : from.dims("lengths")) lengths.push_back(n);
  const bool first = from.flag("batch_first", false);
  const auto [r, packed] = run(pack_padded_sequence(
      x, lengths, {.batch_first = first, .enforce_sorted = std::is_sorted(lengths.rbegin(), lengths.rend())}));
  const PadOptions options{.batch_first = first, .padding = -2.5, .total_length = from.integer("T")};
  return {pad_packed_sequence(packed, options).output, r.h, r.c};
}

void run_recurrent(const Case& c, Report& report) {
  for (const DType dtype : {f64, f32}) {
    const auto module = make_recurrent(c.json().at("recurrent").as_string(), c);
    module->to(dtype);
    State state;
    for (const std::string& what : c.names("param/")) state.emplace_back(what.substr(6), c.tensor(what));
    module->load_state(state);
    const auto input = [&](const char* what) {
      return c.has(what) ? Variable(c.tensor(what).to(dtype).clone(), true) : Variable();
    };
    const Variable x = input("in0"), h = input("h0"), first_c = input("c0");
    const Results made = call(*module, x, h, first_c, c);
    Variable loss;
    const std::pair<const char*, Variable> results[] = {{"out0", made.out}, {"hn", made.h}, {"cn", made.c}};
    for (const auto& [what, v] : results) {
      if (!c.has(what)) continue;
      report.compare(what, v.tensor(), c.tensor(what));
      if (!report.ok()) return;
      const Variable part = sum(v * Variable(c.tensor(str("g_", what)).to(dtype)));
      loss = loss.defined() ? loss + part : part;
    }
    loss.backward();
    report.compare("grad_in0", x.grad(), c.tensor("grad_in0"));
    if (h.defined()) report.compare("grad_h0", h.grad(), c.tensor("grad_h0"));
    if (first_c.defined()) report.compare("grad_c0", first_c.grad(), c.tensor("grad_c0"));
    std::map<std::string, Variable> parameters;
    for (auto& p : module->named_parameters()) parameters[p.name] = p.variable;
    for (const std::string& what : c.names("grad/"))
      report.compare(what, parameters.at(what.substr(5)).grad(), c.tensor(what));
  }
}

}  // namespace

void add_recurrent(Functions& functions) { functions.kinds["recurrent"] = run_recurrent; }

}  // namespace golden
