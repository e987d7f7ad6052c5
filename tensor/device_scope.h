#pragma once
// Where one thread's new tensors go.
#include <optional>

#include "tensor/device.h"

namespace lockstep {

/// While it lives, this is the default_device() of the thread.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;

 private:
  const std::optional<Device> before_;
};

}  // namespace lockstep
