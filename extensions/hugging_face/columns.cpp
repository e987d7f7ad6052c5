// Named tensors and their columns. See columns.h.
#include "extensions/hugging_face/columns.h"

#include "base/check.h"
#include "base/suggest.h"

namespace lockstep::data {

const Tensor& NamedTensors::at(const std::string& name) const {
  const auto found = find(name);
  if (found != end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, x] : *this) names.push_back(known);
  fail(str("[NamedTensors] expected a tensor ", name, ", got ", names.empty() ? "none" : list_names(names),
           suggestion(name, names)));
}

Example columns_of(const NamedTensors& all, const std::vector<std::string>& inputs,
                   const std::vector<std::string>& targets) {
  Example made{all.at(inputs.at(0)), all.at(targets.at(0))};
  for (size_t i = 1; i < inputs.size(); ++i) made.more_inputs.push_back(all.at(inputs[i]));
  for (size_t i = 1; i < targets.size(); ++i) made.more_targets.push_back(all.at(targets[i]));
  return made;
}

}  // namespace lockstep::data
