#pragma once
// Sets devices for the duration of a test.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tensor/device.h"

/// cpu:1, the second virtual device.
inline constexpr lockstep::Device second{lockstep::Device::Type::cpu, 1};

/// `n` virtual devices.
struct Devices {
  explicit Devices(int n = 2) { lockstep::set_virtual_devices(n); }
  ~Devices() { lockstep::set_virtual_devices(before); }
  const int before = lockstep::device_count();
};

/// Makes the CPU the default device, for CPU-only features and for tests that access memory by pointer. A case runs on
/// it from begin to end with TEST_CASE_FIXTURE(OnCpu, "name").
struct OnCpu {
  OnCpu() { lockstep::set_default_device(lockstep::cpu); }
  ~OnCpu() { lockstep::set_default_device(before); }
  const lockstep::Device before = lockstep::default_device();
};

/// If LOCKSTEP_TEST_DEVICE is cuda, makes that the default device for all tests. Prints why and returns false if there
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
