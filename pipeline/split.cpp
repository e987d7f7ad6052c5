// Distributes layers over stages. See split.h.
#include "pipeline/split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <locale>
#include <mutex>
#include <numeric>
#include <regex>

#include "base/check.h"
#include "base/suggest.h"
#include "pipeline/simulate.h"

namespace lockstep::pipeline {

using Method = SplitBy::Method;

SplitBy SplitBy::parse(std::string_view text) {
  if (text == "uniform") return {Method::uniform, {}, {}};
  if (text == "parameters" || text == "best") return {Method::parameters, {}, {}};
  if (text.starts_with("type:") && text.size() > 5) return {Method::type, std::string(text.substr(5)), {}};
  fail(str("[split] expected uniform, parameters, best or type:PATTERN such as type:Block, got \"", text, "\"",
           suggestion(text, {"uniform", "parameters", "best", "type:"})));
}

std::string to_string(const SplitBy& by) {
  constexpr std::string_view names[] = {"uniform", "parameters", "type:", "time"};
  return std::string(names[size_t(by.method)]) + by.pattern;
}

std::vector<int> balance(const std::vector<double>& weights, int parts) {
  const int n = int(weights.size());
  LOCKSTEP_CHECK(parts >= 1, "[split] expected 1 stage or more, got ", parts);
  LOCKSTEP_CHECK(n >= parts, "[split] expected at least one layer for each of ", parts, " stages, got ", n,
                 n == 1 ? " layer" : " layers", "; use ",
                 n == 0 ? "a model with layers" : str("at most ", n, " stages"));
  for (const double w : weights)
    LOCKSTEP_CHECK(std::isfinite(w) && w >= 0, "[split] expected finite weights of 0 or more, got ", w);
  // largest[k][j]: weight of the heaviest part in the best division of the first j layers into k parts (`before` and
  // `now` hold rows k - 1 and k of this table). from[k][j]: the first layer of the last part in that division.
  std::vector<double> before(size_t(n) + 1, std::numeric_limits<double>::infinity()), now;
  before[0] = 0;
  std::vector<std::vector<int>> from(size_t(parts) + 1, std::vector<int>(size_t(n) + 1, -1));
  for (int k = 1; k <= parts; ++k) {
    now.assign(size_t(n) + 1, std::numeric_limits<double>::infinity());
    for (int j = k; j <= n - (parts - k); ++j) {
      double part = 0;
      for (int i = j - 1; i >= k - 1; --i) {  // the last part is [i, j)
        part += weights[size_t(i)];
        if (from[size_t(k)][size_t(j)] >= 0 && part > now[size_t(j)]) break;  // a longer part only weighs more
        const double largest = std::max(part, before[size_t(i)]);
        if (largest < now[size_t(j)] || from[size_t(k)][size_t(j)] < 0) {
          now[size_t(j)] = largest;
          from[size_t(k)][size_t(j)] = i;
        }
      }
    }
    before = now;
  }
  std::vector<int> bounds(size_t(parts) + 1, n);
  for (int k = parts; k >= 1; --k) bounds[size_t(k) - 1] = from[size_t(k)][size_t(bounds[size_t(k)])];
  return bounds;
}

std::vector<int> balance(const std::vector<double>& weights, const PipelineSchedule& schedule) {
  const int parts = schedule.virtual_stages();
  std::vector<int> best = balance(weights, parts);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (schedule.request.chunks == 1 || schedule.request.stages == 1 || total == 0) return best;
  // Simulates at most 4 times as many micro-batches as there are stages: faster, and enough to compare divisions.
  PipelineRequest request = schedule.request;
  request.micro_batches = std::min(request.micro_batches, 4 * request.stages);
  const PipelineSchedule simulated =
      request.micro_batches == schedule.request.micro_batches ? schedule : make_schedule(request);
  StageCosts costs;
  costs.weights.resize(size_t(parts));
  const auto seconds = [&](const std::vector<int>& bounds) {
    for (size_t i = 0; i < size_t(parts); ++i)
      costs.weights[i] =
          std::accumulate(weights.begin() + bounds[i], weights.begin() + bounds[i + 1], 0.0) * parts / total;
    return simulate(simulated, costs).seconds;
  };
  // Several divisions may be equally balanced. Takes the faster of two: the one found above, and the one that the same
  // search finds from the last layer to the first.
  const std::vector<int> mirrored = balance({weights.rbegin(), weights.rend()}, parts);
  std::vector<int> last;
  for (auto bound = mirrored.rbegin(); bound != mirrored.rend(); ++bound) last.push_back(int(weights.size()) - *bound);
  double least = seconds(best);
  if (const double other = seconds(last); other < least) least = other, best = last;
  const double even = simulate(simulated).seconds;
  int tries = (1 << 22) / (parts * request.micro_batches);  // limits the search to a second or two
  for (bool better = true; better && tries > 0 && least > even * 1.001;) {
    better = false;
    for (int i = 1; i < parts; ++i)
      for (int j = i; j < parts; ++j)
        for (const int by : {-1, 1}) {  // by -1: part i - 1 gives a layer to part j; by 1: part j to part i - 1
          const size_t giver = size_t(by > 0 ? j : i - 1);
          if (best[giver + 1] - best[giver] == 1 || tries == 0) continue;
          --tries;
          std::vector<int> moved = best;
          for (int k = i; k <= j; ++k) moved[size_t(k)] += by;
          if (const double one = seconds(moved); one < least * (1 - 1e-9)) least = one, best = moved, better = true;
        }
  }
  return best;
}

std::vector<double> weights_of(const SplitBy& by, const std::vector<std::string>& kinds,
                               const std::vector<double>& parameters) {
  switch (by.method) {
    case Method::uniform: return std::vector<double>(kinds.size(), 1);
    case Method::parameters: return parameters;
    case Method::time:
      LOCKSTEP_CHECK(by.seconds.size() == kinds.size(), "[split] expected a time for each of ", kinds.size(),
                     " layers, got ", by.seconds.size(), "; give one per layer");
      return by.seconds;
    case Method::type: break;
  }
  // Locks, because std::regex fills a shared table of the locale while it parses a pattern, and ranks may be threads.
  static std::mutex reading;
  const std::lock_guard lock(reading);
  std::regex pattern;
  try {
    pattern.imbue(std::locale::classic());
    pattern.assign(by.pattern, std::regex::icase);
  } catch (const std::regex_error& e) {
    fail(str("[split] type:", by.pattern, " is not a regular expression: ", e.what(), "; correct it"));
  }
  std::vector<double> weights;
  std::string known;
  for (const std::string& kind : kinds) {
    weights.push_back(std::regex_search(kind, pattern));
    if (known.find(kind) == std::string::npos && known.size() < 300) known += (known.empty() ? "" : ", ") + kind;
  }
  LOCKSTEP_CHECK(std::any_of(weights.begin(), weights.end(), [](double w) { return w > 0; }),
                 "[split] type:", by.pattern, " matches no layer; their kinds are ", known, "; name one of these");
  return weights;
}

}  // namespace lockstep::pipeline
