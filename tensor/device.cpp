// Devices: names, counts, the default device and the table of backends.
#include "tensor/device.h"

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <ostream>
#include <string>

#include "base/check.h"
#include "base/environment.h"
#include "tensor/backend.h"

namespace lockstep {
namespace {

constexpr int max_devices = 64;
std::atomic<int> cpu_devices{0};  // 0: not read from the environment yet
std::atomic<Device> where_new_tensors_go{cpu};

int cpu_devices_from_environment() { return int(environment_number("LOCKSTEP_CPU_DEVICES").value_or(1)); }

}  // namespace

Device parse_device(std::string_view name) {
  const size_t colon = name.find(':');
  const std::string_view type = name.substr(0, colon);
  Device device{type == "cuda" ? Device::Type::cuda : Device::Type::cpu, 0};
  bool good = type == "cpu" || type == "cuda";
  if (colon != std::string_view::npos) {
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + colon + 1, end, device.index);
    good = good && parsed.ec == std::errc() && parsed.ptr == end && device.index >= 0;
  }
  LOCKSTEP_CHECK(good, "[device] expected cpu, cpu:N, cuda or cuda:N (N from 0 to 32767), got \"", name, "\"");
  return device;
}

Device default_device() { return where_new_tensors_go.load(std::memory_order_relaxed); }
void set_default_device(Device device) {
  check_device("set_default_device", device);
  where_new_tensors_go.store(device, std::memory_order_relaxed);
}

#ifdef LOCKSTEP_WITH_CUDA
extern const Backend cuda_backend;
#endif

std::atomic<const Backend*> cuda_stands_in{nullptr};

const Backend* backend(Device::Type type) {
  if (type == Device::Type::cuda)
    if (const Backend* other = cuda_stands_in.load(std::memory_order_acquire)) [[unlikely]]
      return other;
#ifdef LOCKSTEP_WITH_CUDA
  if (type == Device::Type::cuda) return &cuda_backend;
#endif
  (void)type;
  return nullptr;
}

int device_count(Device::Type type) {
  if (type != Device::Type::cpu) return backend(type) ? backend(type)->device_count() : 0;
  int n = cpu_devices.load(std::memory_order_relaxed);
  if (n > 0) return n;
  int unset = 0;
  n = cpu_devices_from_environment();
  return cpu_devices.compare_exchange_strong(unset, n) ? n : unset;
}

std::vector<Device> all_devices(Device::Type type) {
  std::vector<Device> devices;
  for (int i = 0; i < device_count(type); ++i) devices.push_back({type, int16_t(i)});
  return devices;
}

void set_virtual_devices(int n) {
  LOCKSTEP_CHECK(n >= 1 && n <= max_devices, "[set_virtual_devices] expected a number from 1 to ", max_devices,
                 ", got ", n);
  cpu_devices.store(n, std::memory_order_relaxed);
}

void check_device(const char* op, Device device) {
  if (device == cpu) [[likely]]
    return;
  if (device.index >= 0 && device.index < device_count(device.type)) [[likely]]
    return;
  const Backend* other = backend(device);
  LOCKSTEP_CHECK(device.is_cpu() || other, "[", op, "] this build has no cuda backend, got ", device,
                 " (configure it with -Dcuda=enabled)");
  LOCKSTEP_CHECK(device.is_cpu() || device_count(device.type) > 0, "[", op, "] there is no cuda device, got ", device,
                 ": ", other->why_none(), "; run on cpu, or make a device available");
  std::string known;
  for (const Device& d : all_devices(device.type)) known += str(known.empty() ? "" : ", ", d);
  fail(str("[", op, "] expected one of the devices ", known, ", got ", device,
           device.is_cpu() ? " (LOCKSTEP_CPU_DEVICES or set_virtual_devices() makes more)" : ""));
}

std::ostream& operator<<(std::ostream& out, Device device) {
  return out << (device.is_cpu() ? "cpu:" : "cuda:") << device.index;
}

}  // namespace lockstep
