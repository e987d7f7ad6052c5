#pragma once
// Who copied how many bytes to whom: every copy that DataParallel makes between devices goes through Traffic::copy().
#include <atomic>
#include <vector>

#include "parallel/data_parallel.h"

namespace lockstep::parallel::detail {

enum class Load { parameters, gradients, batch };

class Traffic {
 public:
  explicit Traffic(const std::vector<Device>& devices) : devices_(devices), rows_(devices.size() + 1) {}

  /// A place is an index into the devices, or host().
  size_t host() const { return devices_.size(); }
  size_t place_of(Device device) const;
  Device device(size_t place) const { return place < devices_.size() ? devices_[place] : cpu; }

  /// A new tensor at `to`. (The host and cpu:0 are one device; what would be a copy between them is made, and counted.)
  Tensor copy(const Tensor& x, size_t from, size_t to, Load load);
  /// The same as an operation on the tape; itself when already there.
  static Variable move(const std::shared_ptr<Traffic>& traffic, const Variable& x, Device to, Load load);
  void count_forward(size_t place, int64_t samples, double seconds);

  std::vector<DeviceTraffic> report() const;
  void reset();

 private:
  struct Row {
    std::atomic<int64_t> sent[3]{}, received[3]{}, samples{0}, nanoseconds{0};
  };
  std::vector<Device> devices_;
  std::vector<Row> rows_;
};

}  // namespace lockstep::parallel::detail
