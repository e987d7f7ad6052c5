#pragma once
// Where a tensor lives.
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <vector>

namespace lockstep {

/// "cpu:0", "cpu:1" (virtual CPU devices, for DataParallel anywhere), "cuda:0".
struct Device {
  enum class Type : uint8_t { cpu, cuda };
  Type type = Type::cpu;
  int16_t index = 0;

  bool is_cpu() const { return type == Type::cpu; }
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device cpu{};

/// Where new tensors go when nothing else is said: the CPU until set_default_device(), which holds for all threads.
Device default_device();
/// Error when there is no such device.
void set_default_device(Device device);

/// "cpu", "cpu:2", "cuda", "cuda:0". Error names what is known. Whether the device is there is checked when it is used.
Device parse_device(std::string_view name);

/// How many devices there are. CPU: the virtual ones, LOCKSTEP_CPU_DEVICES or 1. CUDA: 0 in a build or on a machine
/// without.
int device_count(Device::Type type = Device::Type::cpu);
/// All of them, by index: cpu:0, cpu:1, ...
std::vector<Device> all_devices(Device::Type type = Device::Type::cpu);
/// Cuts the CPU into `n` devices, 1 to 64. They share memory and cores, but an operation on two of them is an Error,
/// and only .to(device) carries data across: a program for several GPUs can be tried, and tested, without any.
void set_virtual_devices(int n);
/// Error listing the devices, or saying why there is none, unless this one is there.
void check_device(const char* op, Device device);

std::ostream& operator<<(std::ostream& out, Device device);

}  // namespace lockstep
