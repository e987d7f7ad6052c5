// Groups the pairs (token, chosen expert) by expert, and drops pairs beyond an expert's capacity. See routing.h.
#include "parallel/moe/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace lockstep::moe {

int64_t Routing::dropped() const {
  return std::accumulate(chosen.begin(), chosen.end(), int64_t(0)) - int64_t(token.size());
}

int64_t capacity(int64_t tokens, int64_t experts, int64_t top_k, double factor, int64_t min_capacity) {
  return std::max(int64_t(std::ceil(double(tokens) / double(experts) * factor * double(top_k))), min_capacity);
}

Routing route(const std::vector<int64_t>& choices, int64_t top_k, int64_t experts, int64_t capacity,
              const std::vector<double>& priority) {
  LOCKSTEP_CHECK(top_k >= 1 && int64_t(choices.size()) % top_k == 0,
                 "[route] expected top_k >= 1 and that many choices for every token, got top_k ", top_k, " and ",
                 choices.size(), " choices in all");
  LOCKSTEP_CHECK(priority.empty() || priority.size() == choices.size(), "[route] expected a priority for each of ",
                 choices.size(), " choices, got ", priority.size());
  const int64_t tokens = int64_t(choices.size()) / top_k;
  std::vector<std::vector<int64_t>> wanted(static_cast<size_t>(experts));  // choices, by expert
  for (int64_t i = 0; i < top_k; ++i) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t expert = choices[size_t(t * top_k + i)];
      LOCKSTEP_CHECK(expert >= 0 && expert < experts, "[route] expected an expert from 0 to ", experts - 1, ", got ",
                     expert);
      wanted[size_t(expert)].push_back(t * top_k + i);
    }
  }
  Routing r;
  for (auto& list : wanted) {
    r.chosen.push_back(int64_t(list.size()));
    if (capacity >= 0 && int64_t(list.size()) > capacity) {
      if (!priority.empty())
        std::stable_sort(list.begin(), list.end(),
                         [&](int64_t a, int64_t b) { return priority[size_t(a)] > priority[size_t(b)]; });
      list.resize(size_t(capacity));
      std::sort(list.begin(), list.end(), [top_k](int64_t a, int64_t b) {  // order: by choice, then by token
        return std::pair(a % top_k, a / top_k) < std::pair(b % top_k, b / top_k);
      });
    }
    r.rows.push_back(int64_t(list.size()));
    for (const int64_t choice : list) {
      r.choice.push_back(choice);
      r.token.push_back(choice / top_k);
    }
  }
  return r;
}

}  // namespace lockstep::moe
