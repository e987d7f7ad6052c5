// Performs an action in place of training. See action.h.
#include "train/action.h"

#include "base/environment.h"

namespace lockstep::train {

const CommandAction* asked_action() {
  for (const CommandAction& action : actions())
    if (environment(action.variable)) return &action;
  return nullptr;
}

data::Example first_of(const data::Dataset<data::Example>& data, int64_t samples) {
  std::vector<data::Example> all;
  for (int64_t i = 0; i < samples; ++i) all.push_back(data.get(i % data.size()));
  return data::collate(all);
}

void perform(const CommandAction& action, const Training& training) {
  action.perform(training);
  throw Performed(action);
}

}  // namespace lockstep::train
