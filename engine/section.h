#pragma once
// Sections of the configuration file that extensions add, such as {"noise": {"scale": 0.1}}.
//
//   struct Noise { double scale = 0; };  // config.section<Noise>().scale
//
//   std::vector<Section> noise_sections() {
//     return {{.name = "noise", .keys = {key<&Noise::scale>("noise.scale", least(0), "noise in all inputs")}}};
//   }
//
// An extension's meson.build sets `sections = ['NAME']`, and one of its sources defines std::vector<Section>
// lockstep::engine::NAME(). meson generates the list, from the extensions that are built (lockstep/list.cpp.in).
#include <memory>
#include <string>
#include <vector>

#include "engine/config_table.h"
#include "engine/participant.h"
#include "parallel/mesh.h"

namespace lockstep::engine {

struct InitializeArgs;
struct PipelineModule;

/// A value of --precision (train/options.h) that trains in bf16, and also switches on keys of a section.
struct Precision {
  std::string word, help;         ///< help: what it adds to bf16, such as "noise in all inputs"
  std::vector<std::string> keys;  ///< the keys that it sets to true
};

/// A section, and the functions that an engine calls for it. Each of them may be null.
struct Section {
  std::string name;
  std::string about, page;  ///< for docs/config.md: what it is for, and a link to its page; may be empty
  std::vector<Key> keys;    ///< made by key()
  /// Adds problems of the configuration, and warnings about it. The ranges of keys were checked before.
  void (*check)(const Config& config, std::vector<std::string>& problems, std::vector<std::string>& warnings) = nullptr;
  /// Returns the reasons why the configuration cannot run under a plan of ranks.
  std::vector<std::string> (*reasons)(const Config& config, const parallel::Plan& plan) = nullptr;
  /// Checks and changes a module that is about to be trained, before ranks cut it. Returns a line to print, or "".
  std::string (*prepare)(const Config& config, const InitializeArgs& args, PipelineModule& module) = nullptr;
  /// Makes the section's participant in the steps of an engine. Null: it has none.
  std::unique_ptr<Participant> (*start)(const Config& config, const Trained& trained) = nullptr;
  /// In checkpoints, the names of its participant's tensors begin with this text: "optimizer.noise_".
  std::string saved = {};
  bool fixed = false;  ///< true: a resumed run must have the values with which it began
  /// Text for docs/config.md, placed after the table of keys.
  std::string (*reference)() = nullptr;
  std::string (*appendix)() = nullptr;  ///< text for the end of docs/config.md
  std::vector<Precision> precisions = {};
};

/// The sections of the extensions that are built.
const std::vector<Section>& sections();
/// The precisions of all sections.
std::vector<Precision> precisions();

namespace detail {
template <class T, class Field> T owner_of(Field T::*);
}
/// The row of a key that is stored in a field of a section's struct: key<&Noise::scale>("noise.scale", ...).
/// automatic: the file may say "auto".
template <auto field> Key key(const char* path, const ValueRange& range, const char* doc, bool automatic = false) {
  using Values = decltype(detail::owner_of(field));
  Config defaults;
  return working_key(
      path, [](void* config) -> FieldPointer { return &(static_cast<Config*>(config)->section<Values>().*field); },
      &defaults, range, "", doc, automatic);
}

}  // namespace lockstep::engine
