#pragma once
// Where a run writes its curves: TensorBoard's event files, and CSV. Rank 0 only.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"

namespace lockstep::engine {

struct Event {
  std::string tag;  ///< "Train/Samples/train_loss"
  double value = 0;
  int64_t samples = 0;  ///< the x axis
};

/// Each event is with the system when write() returns: a kill loses nothing, a power cut what the system had not
/// written. When writing fails (a full disk) training goes on without, and `warn` is told once.
class Monitor {
 public:
  virtual ~Monitor() = default;
  virtual void write(const std::vector<Event>& events) = 0;
};

/// Those that the config enables. Error when a folder cannot be made.
///   tensorboard    OUTPUT_PATH/JOB_NAME/events.out.tfevents.<time>.<host>.<process>
///   csv_monitor    OUTPUT_PATH/JOB_NAME/Train_Samples_lr.csv and so on, a line an event; a run that goes on appends
std::vector<std::unique_ptr<Monitor>> make_monitors(const Config& config,
                                                    const std::function<void(const std::string&)>& warn);

}  // namespace lockstep::engine
