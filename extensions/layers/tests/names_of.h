#pragma once
// The names of a model's parameters, for tests.
#include "nn/module.h"

inline std::vector<std::string> names_of(lockstep::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& p : module.named_parameters()) names.push_back(p.name);
  return names;
}
