#pragma once
#include <functional>
#include <string>

#include "tensor/check.h"

inline std::string message(const std::function<void()>& fn) {
  try { fn(); } catch (const lockstep::Error& e) { return e.what(); }
  return "(no error)";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
