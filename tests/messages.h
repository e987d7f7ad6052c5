#pragma once
// What went wrong, as text.
#include <functional>
#include <string>

#include "tensor/check.h"
#include "tensor/stream.h"

/// The message of the Error that fn raises. On a device the last of it may come with the next synchronisation.
inline std::string message(const std::function<void()>& fn) {
  try {
    fn();
    lockstep::synchronize(lockstep::default_device());
  } catch (const lockstep::Error& error) { return error.what(); }
  return "(no error)";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// What to expect of an error of values that are on the default device. Elsewhere than on the CPU a kernel finds it: it
/// names itself, and any one of the wrong values.
inline std::string found_in_values(const std::string& text) {
  if (lockstep::default_device().is_cpu()) return text;
  const size_t begin = text.find("expected"), end = text.find(", got");
  return text.substr(begin, end - begin);
}
