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
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < samples; ++i) indices.push_back(i % data.size());
  return data::batch_of(data, indices);
}

void perform(const CommandAction& action, const Training& training) {
  action.perform(training);
  throw Performed(action);
}

}  // namespace lockstep::train
