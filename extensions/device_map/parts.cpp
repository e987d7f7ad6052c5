// Finds the parts of a model. Each part is placed as a whole: on a device, in host memory or on disk. See parts.h.
#include "extensions/device_map/parts.h"

#include <algorithm>
#include <set>

namespace lockstep::device_map {

namespace {

using nn::joined;

class Finder {
 public:
  explicit Finder(const DeviceMapOptions& options) : options_(options) {}

  void visit(nn::Module& module, const std::string& name) {
    const std::vector<std::string>& no_split = options_.no_split_module_classes;
    const auto children = module.children();
    if (children.empty() || std::ranges::find(no_split, module.kind()) != no_split.end()) {
      PlacementUnit part{.name = name, .own = false};
      for (const NamedField& field : nn::named_fields(module)) take(part, field, name);
      add(std::move(part));
      return;
    }
    // A part for the tensors that the module's forward() reads itself: the module's own, and all tensors of every child
    // that holds one of the variables that reads() returns.
    PlacementUnit own{.name = name, .own = true};
    std::set<const void*> read;
    for (const Variable& v : module.reads()) read.insert(v.impl().get());
    std::set<const nn::Module*> taken;
    for (const auto& [child_name, child] : children) {
      const auto held = nn::named_fields(*child);
      if (std::ranges::none_of(held, [&](const NamedField& f) { return read.count(f.key()) > 0; })) continue;
      taken.insert(child);
      for (const NamedField& field : held) take(own, field, joined(name, child_name));
    }
    nn::Fields fields;
    module.fields(fields);
    for (const auto& entry : fields.entries)
      if (!entry.module) take(own, {entry.name, entry.parameter, entry.buffer}, name);
    add(std::move(own));
    for (const auto& [child_name, child] : children)
      if (!taken.count(child)) visit(*child, joined(name, child_name));
  }

  std::vector<PlacementUnit> finish() {
    for (PlacementUnit& part : parts_) part.group = root(part.group);
    return std::move(parts_);
  }

 private:
  void take(PlacementUnit& part, const NamedField& field, const std::string& prefix) {
    part.tensors.push_back(joined(prefix, field.name));
    const auto [owner, is_new] = owners_.try_emplace(field.key(), parts_.size());
    part.bytes_there += bytes_of(field.tensor());
    if (is_new) part.bytes += bytes_of(field.tensor());
    else if (owner->second < parts_.size()) tied_.push_back(owner->second);
  }
  void add(PlacementUnit part) {
    if (part.tensors.empty()) return;
    part.group = parts_.size();
    parts_.push_back(std::move(part));
    for (const size_t other : tied_) parts_[root(parts_.size() - 1)].group = root(other);
    tied_.clear();
  }
  size_t root(size_t part) const {
    while (parts_[part].group != part) part = parts_[part].group;
    return part;
  }

  const DeviceMapOptions& options_;
  std::vector<PlacementUnit> parts_;
  std::vector<size_t> tied_;  // earlier parts that own tensors of the part in work
  std::map<const void*, size_t> owners_;
};

}  // namespace

std::vector<PlacementUnit> find_parts(nn::Module& model, const DeviceMapOptions& options) {
  Finder finder(options);
  finder.visit(model, "");
  std::vector<PlacementUnit> parts = finder.finish();
  LOCKSTEP_CHECK(!parts.empty(), "[device_map] expected a model with parameters, got ", model.kind(), " without any");
  return parts;
}

int64_t reserve_of(const std::vector<PlacementUnit>& parts, const std::vector<Location>& places) {
  int64_t max_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (places[i].is_device()) continue;
    int64_t together = 0;  // with the tensors that enclosing modules read themselves: these stay loaded
    for (size_t k = 0; k < parts.size(); ++k)
      if (!places[k].is_device() && (k == i || (parts[k].own && is_below(parts[i].name, parts[k].name))))
        together += parts[k].bytes_there;
    max_bytes = std::max(max_bytes, together);
  }
  return max_bytes;
}

}  // namespace lockstep::device_map
