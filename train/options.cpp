// Command-line options of training programs: checks, and what takes effect at the start. See options.h.
#include "train/options.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/suggest.h"
#include "base/threads.h"
#include "data/json.h"
#include "engine/section.h"
#include "tensor/device.h"
#include "tensor/random.h"
#include "train/cli.h"

namespace lockstep::train {

OptionCheck whole(int64_t least, int64_t most) {
  return [=](const std::string& text) {
    const auto value = read_number<int64_t>(text);
    if (value && *value >= least && *value <= most) return std::string();
    return str("expected a whole number from ", least, " to ", most, ", got '", text, "'");
  };
}

OptionCheck number(double least, double most) {
  return [=](const std::string& text) {
    const auto value = read_number<double>(text);
    if (value && *value >= least && *value <= most) return std::string();
    return str("expected a number from ", least, " to ", most, ", got '", text, "'");
  };
}

std::vector<std::string> with_precisions(std::vector<std::string> words) {
  for (const engine::Precision& added : engine::precisions()) words.push_back(added.word);
  return words;
}

std::string precisions_help() {
  std::string text;
  for (const engine::Precision& added : engine::precisions())
    text += added.word + ": as bf16, with " + added.help + "; ";
  return text;
}

OptionCheck one_of(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) {
    return std::ranges::count(words, text) ? "" : text + " not in {" + list_names(words, words.size()) + "}";
  };
}

OptionCheck strategy(bool devices) {
  return [devices](const std::string& text) {
    if (devices && text.starts_with("dp:")) {
      const std::string wrong = whole(1, 64)(text.substr(3));
      return wrong.empty() ? wrong : "dp:N: " + wrong;
    }
    return one_of(devices ? std::vector<std::string>{"auto", "ddp", "dp", "none"}
                          : std::vector<std::string>{"auto", "ddp", "none"})(text);
  };
}

void ParallelOptions::read_strategy(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  strategy = text.substr(0, colon);
  devices = colon < text.size() ? std::stoi(text.substr(colon + 1)) : 0;
}

void go_on_after_restart(CommonOptions& o) {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (restarts && std::atoi(restarts) > 0 && !o.out.empty()) o.resume = true;
}

std::string CommonOptions::name_of(const std::string& option) const {
  for (const auto& [ours, theirs] : names)
    if (ours == option) return theirs;
  return option;
}

void apply_common_options(const CommonOptions& o) {
  as_usage([&] {
    LOCKSTEP_CHECK(!o.resume || !o.out.empty(), o.name_of("--resume"), " needs ", o.name_of("--out"),
                   " DIR, the folder of the run to continue");
    LOCKSTEP_CHECK(!data::not_utf8(data::Json(o.out)), o.name_of("--out"), " ", o.out,
                   ": expected a path in UTF-8, because files of the run store it");
    parse_device(o.device);
  });
  if (o.threads > 0) set_threads(o.threads);
  manual_seed(o.seed);
}

}  // namespace lockstep::train
