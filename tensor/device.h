#pragma once
// Where a tensor lives.
#include <cstdint>
#include <iosfwd>
#include <string_view>

namespace lockstep {

/// "cpu", "cpu:1" (virtual CPU devices, for DataParallel anywhere), "cuda:0".
struct Device {
  enum class Type : uint8_t { cpu, cuda };
  Type type = Type::cpu;
  int16_t index = 0;

  bool is_cpu() const { return type == Type::cpu; }
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device cpu{};

/// "cpu", "cpu:2", "cuda", "cuda:0". Error names what is known.
Device parse_device(std::string_view name);

std::ostream& operator<<(std::ostream& out, Device device);

}  // namespace lockstep
