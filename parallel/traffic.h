#pragma once
// Who copied how many bytes to whom: every copy that DataParallel makes between devices goes through Traffic::copy().
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "autograd/variable.h"

namespace lockstep::parallel {

struct Moved {
  int64_t sent = 0, received = 0;
};

/// What went through one device since the start.
struct DeviceTraffic {
  std::string device;  ///< "cpu:1"; the last is "host", also for tensors that come from a device not in the list
  Moved parameters, gradients;  ///< copies of parameters and buffers; gradients of parameters
  Moved batch;                  ///< inputs, outputs, and their gradients
  int64_t samples = 0;          ///< that its replica was given
  double seconds = 0;           ///< that its replica's forwards took
  int64_t sent() const { return parameters.sent + gradients.sent + batch.sent; }
  int64_t received() const { return parameters.received + gradients.received + batch.received; }
};

/// DataParallel::bytes_moved() as a table, with the busiest device named.
std::string to_string(const std::vector<DeviceTraffic>& traffic);

namespace detail {

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

 private:
  struct Row {
    std::atomic<int64_t> sent[3]{}, received[3]{}, samples{0}, nanoseconds{0};
  };
  std::vector<Device> devices_;
  std::vector<Row> rows_;
};

}  // namespace detail
}  // namespace lockstep::parallel
