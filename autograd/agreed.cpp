// Lists the parameters that several ranks hold, each with the function by which agreed() averages over these ranks.
#include "autograd/agreed.h"

#include <mutex>
#include <unordered_map>

namespace lockstep {

namespace {

// One table for all ranks that are threads of this process.
std::mutex table_mutex;
std::unordered_multimap<const void*, std::shared_ptr<const MeanOverRanks>> shared_parameters;

}  // namespace

SharedParameters::SharedParameters(const std::vector<Variable>& parameters, MeanOverRanks mean)
    : parameters_(parameters), mean_(std::make_shared<const MeanOverRanks>(std::move(mean))) {
  const std::lock_guard lock(table_mutex);
  for (const Variable& p : parameters_) shared_parameters.emplace(p.impl().get(), mean_);
}

SharedParameters::~SharedParameters() {
  const std::lock_guard lock(table_mutex);
  std::erase_if(shared_parameters, [&](const auto& one) { return one.second == mean_; });
}

std::shared_ptr<const MeanOverRanks> mean_over_ranks(const Variable& parameter) {
  const std::lock_guard lock(table_mutex);
  const auto found = shared_parameters.find(parameter.impl().get());
  return found == shared_parameters.end() ? nullptr : found->second;
}

double agreed(const std::vector<Variable>& parameters, double value, const char* what) {
  for (const Variable& p : parameters)
    if (const auto mean = mean_over_ranks(p)) return (*mean)(value, what);
  return value;
}

}  // namespace lockstep
