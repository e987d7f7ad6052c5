#pragma once
// Device: where a tensor's memory is, and where its operations run.
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <vector>

namespace lockstep {

/// A CPU or CUDA device: "cpu:0"; "cpu:1", ... are virtual CPU devices (see set_virtual_devices()); "cuda:0".
struct Device {
  enum class Type : uint8_t { cpu, cuda };  ///< kind of device
  Type type = Type::cpu;
  int16_t index = 0;

  bool is_cpu() const { return type == Type::cpu; }  ///< also true for virtual CPU devices
  friend bool operator==(const Device&, const Device&) = default;
};

/// cpu:0.
inline constexpr Device cpu{};

/// The device of new tensors by default: the CPU until set_default_device(), which applies to all threads.
Device default_device();
/// Sets the default device for all threads. Error when the device does not exist.
void set_default_device(Device device);

/// Parses "cpu", "cpu:2", "cuda", "cuda:0". The Error names the expected forms. That the device exists is checked only
/// when it is used.
Device parse_device(std::string_view name);

/// Number of devices. For the CPU: the number set by set_virtual_devices(), else LOCKSTEP_CPU_DEVICES, else 1. For CUDA
/// it is 0 if the build does not support CUDA or the machine has no device.
int device_count(Device::Type type = Device::Type::cpu);
/// All devices of a type, by index: cpu:0, cpu:1, ...
std::vector<Device> all_devices(Device::Type type = Device::Type::cpu);
/// Divides the CPU into `n` virtual devices, 1 to 64. They share memory and cores, but an operation on tensors of two
/// devices is an Error, and only .to(device) moves data between them, so multi-GPU programs can be tested without GPUs.
void set_virtual_devices(int n);
/// Error unless the device exists; the Error lists the devices, or says why there are none.
void check_device(const char* op, Device device);

/// Prints "cpu:0".
std::ostream& operator<<(std::ostream& out, Device device);

}  // namespace lockstep
