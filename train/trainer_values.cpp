// The values that a Trainer knows before it has a configuration, such as the number of steps.
#include <cmath>

#include "train/json_paths.h"
#include "train/trainer_impl.h"

namespace lockstep::train {

int64_t Trainer::Impl::steps_in_epoch(int64_t train_batch) const {
  if (!o.data) return 0;
  const Json* said = find_at(job.file(), "dataloader_drop_last");
  if (!said) said = o.config.find("dataloader_drop_last");
  const bool drops = !said || !said->is_bool() || said->as_bool();
  return (o.data->size() + (drops ? 0 : train_batch - 1)) / train_batch;
}

int64_t Trainer::Impl::steps_of(int64_t train_batch) const {
  const bool said = o.state && o.state->num_train_epochs > 0;
  const double epochs = said ? o.state->num_train_epochs : double(job.options().epochs);
  return job.options().steps > 0 ? job.options().steps
                                 : int64_t(std::ceil(epochs * double(steps_in_epoch(train_batch))));
}

ProgramValues Trainer::Impl::values() {
  return {.model = model.get(),
          .optimizer =
              [this] {
                if (!trial) trial = o.optimizer(*model);
                return trial.get();
              },
          .steps = [this](int64_t train_batch) { return steps_of(train_batch); },
          .warmup_steps = o.warmup_steps,
          .micro_batch = o.arguments ? std::optional(job.options().batch) : std::nullopt,
          .accumulation = o.arguments ? std::optional(job.options().parallel.accumulate) : std::nullopt,
          .optimizer_is_argument = o.arguments,
          .all_are_arguments = o.arguments};
}

}  // namespace lockstep::train
