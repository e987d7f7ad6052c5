// Names of devices.
#include "tensor/device.h"

#include <charconv>
#include <ostream>

#include "tensor/check.h"

namespace lockstep {

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

std::ostream& operator<<(std::ostream& out, Device device) {
  return out << (device.is_cpu() ? "cpu:" : "cuda:") << device.index;
}

}  // namespace lockstep
