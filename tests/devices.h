#pragma once
// Devices while a test runs.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tensor/device.h"

inline constexpr lockstep::Device second{lockstep::Device::Type::cpu, 1};

/// Several virtual ones.
struct Devices {
  explicit Devices(int n = 2) { lockstep::set_virtual_devices(n); }
  ~Devices() { lockstep::set_virtual_devices(before); }
  const int before = lockstep::device_count();
};

/// The CPU is the default device: for tests of what only it has, or that touch memory by pointer.
struct OnCpu {
  OnCpu() { lockstep::set_default_device(lockstep::cpu); }
  ~OnCpu() { lockstep::set_default_device(before); }
  const lockstep::Device before = lockstep::default_device();
};

/// LOCKSTEP_TEST_DEVICE=cuda makes that the default device, so that the tests run there. False, with a text, when there
/// is none.
inline bool use_test_device() {
  const char* name = std::getenv("LOCKSTEP_TEST_DEVICE");
  if (!name) return true;
  try {
    lockstep::set_default_device(lockstep::parse_device(name));
    return true;
  } catch (const std::exception& error) {
    std::printf("LOCKSTEP_TEST_DEVICE: %s\n", error.what());
    return false;
  }
}
