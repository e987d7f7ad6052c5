#pragma once
// Several virtual devices while a test runs.
#include "tensor/device.h"

inline constexpr lockstep::Device second{lockstep::Device::Type::cpu, 1};

struct Devices {
  explicit Devices(int n = 2) { lockstep::set_virtual_devices(n); }
  ~Devices() { lockstep::set_virtual_devices(before); }
  const int before = lockstep::device_count();
};
