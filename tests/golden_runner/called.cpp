// Cases of layers that are called with more than one input, or give more than one result.
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

namespace {

/// Translates PyTorch's name of a packed attention projection, which has no dot.
std::string name_here(std::string name) {
  const size_t at = name.find("in_proj_");
  if (at != std::string::npos) name[at + 7] = '.';
  return name;
}

}  // namespace

void run_called(const Case& c, Report& report) {
  const auto& table = of_extensions().called;
  const auto found = table.find(c.json().at("called").as_string());
  LOCKSTEP_CHECK(found != table.end(), "unknown call");
  Callee callee = found->second(c);
  std::map<std::string, Variable> parameters;
  if (callee.module) {
    nn::State state;
    for (const std::string& what : c.names("param/")) state.emplace_back(name_here(what.substr(6)), c.tensor(what));
    callee.module->load_state(state);
    for (auto& p : callee.module->named_parameters()) parameters[p.name] = p.variable;
  }
  std::vector<Variable> inputs;
  for (int i = 0; c.has(str("in", i)); ++i) inputs.emplace_back(c.tensor(str("in", i)).clone(), true);
  const Outputs outs = callee.call(inputs);
  for (size_t i = 0; i < outs.size(); ++i) report.compare(str("out", i), outs[i].tensor(), c.tensor(str("out", i)));
  if (!report.ok()) return;
  outs[0].backward(c.tensor("gout"));
  const auto compare = [&](const std::string& what, const Variable& x) {
    report.compare(what, x.grad().defined() ? x.grad() : zeros_like(x.tensor()), c.tensor(what));
  };
  for (size_t i = 0; i < inputs.size(); ++i) compare(str("grad_in", i), inputs[i]);
  for (const std::string& what : c.names("grad/")) compare(what, parameters.at(name_here(what.substr(5))));
}

}  // namespace golden
