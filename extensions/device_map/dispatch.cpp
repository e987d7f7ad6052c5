// Places tensors, and sets hooks that load parts of the model and move inputs. See dispatch.h.
#include "extensions/device_map/dispatch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>
#include <set>

#include "base/at_end.h"
#include "data/safetensors.h"
#include "extensions/device_map/parts.h"
#include "nn/init.h"

namespace lockstep::device_map {

namespace {

constexpr const char* not_loaded = "a device map";

/// A tensor of a part that the plan keeps in host memory or on disk. It is on the main device only while the part runs.
struct Visitor {
  Tensor there;       // copy on the main device; its storage is empty between runs
  Tensor host;        // for a part in host memory: the values
  std::string saved;  // for a part on disk: the name of the values in the file
};

}  // namespace

struct Dispatched::Impl {
  Impl(nn::Module& model, const Placement& plan) : model(model), plan(plan) {}
  Device runs_at(size_t part) const { return plan.places[part].is_device() ? plan.places[part].device() : plan.main; }

  /// Returns the values of a tensor: from the weights file if the model takes all values from it, else from the model.
  Tensor source(const NamedField& field) const {
    if (!all_from_file)
      return field.parameter && nn::is_built_empty(*field.parameter) ? nn::start_of(*field.parameter) : field.tensor();
    const MemoryScope scope(Memory::offload);
    return file->tensor(name_in_file(field));
  }

  /// Returns the name under which the file stores a field. A shared parameter may be stored under any of its names.
  std::string name_in_file(const NamedField& field) const {
    if (file->contains(field.name)) return field.name;
    for (const auto& [name, other] : fields)
      if (other.key() == field.key() && file->contains(name)) return name;
    return field.name;
  }

  void check_file(const std::string& path) const {
    std::set<const void*> missing;
    std::string problems;
    for (const auto& [name, field] : fields) {
      if (!file->contains(name)) {
        if (!file->contains(name_in_file(field)) && missing.insert(field.key()).second)
          problems += "\n  " + name + ": missing";
        continue;
      }
      const MemoryScope scope(Memory::offload);
      const Tensor tensor = file->tensor(name);
      if (!(tensor.shape() == field.tensor().shape()))
        problems += str("\n  ", name, ": expected shape ", field.tensor().shape(), ", got ", tensor.shape());
      else if (is_floating(tensor.dtype()) != is_floating(field.tensor().dtype()))
        problems += str("\n  ", name, ": expected ", field.tensor().dtype(), ", got ", tensor.dtype());
    }
    LOCKSTEP_CHECK(problems.empty(), "[device_map] ", path, " does not fit this ", model.kind(),
                   "; nothing was changed; give a file of this model's weights", problems);
  }

  void open(const DispatchOptions& options) {
    for (const NamedField& field : nn::named_fields(model)) fields.emplace(field.name, field);
    for (const PlacementUnit& part : plan.parts) {
      for (const std::string& name : part.tensors)
        LOCKSTEP_CHECK(fields.count(name), "[device_map] expected a plan of this ", model.kind(), ", got one with ",
                       name, ", which it does not have; make the plan from this model with infer()");
    }
    if (!options.weights.empty()) {
      file = data::SafeTensors::open(options.weights);
      all_from_file = true;
      return check_file(options.weights);
    }
    for (const auto& [name, field] : fields) {
      LOCKSTEP_CHECK(!field.tensor().storage()->is_empty() || field.tensor().storage()->origin(), "[device_map] ", name,
                     " has no values; give the file with the model's weights");
    }
    std::vector<std::pair<std::string, Tensor>> on_disk;
    std::set<const void*> visited;
    const MemoryScope scope(Memory::offload);
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      if (plan.places[i].name != "disk") continue;
      for (const std::string& name : plan.parts[i].tensors)
        if (visited.insert(fields.at(name).key()).second) on_disk.emplace_back(name, source(fields.at(name)).to(cpu));
    }
    if (on_disk.empty()) return;
    LOCKSTEP_CHECK(!options.offload_folder.empty(), "[device_map] the plan puts ", on_disk.size(), " tensors on disk (",
                   on_disk[0].first,
                   " first): give a file that has them (weights), or an offload_folder to write them to");
    static std::atomic<int> number{0};
    const auto path = std::filesystem::path(options.offload_folder) /
                      str("lockstep-offload-", ::getpid(), "-", number++, ".safetensors");
    data::save_safetensors(path.string(), on_disk);
    const AtEnd removes([&] {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    });
    file = data::SafeTensors::open(path.string());  // the bytes stay readable after the file is unlinked
  }

  /// Moves the tensors of a part to where the plan places them: a device, host memory or disk.
  void place(size_t part) {
    const Location& where = plan.places[part];
    for (const std::string& name : plan.parts[part].tensors) {
      NamedField& field = fields.at(name);
      if (!placed.insert(field.key()).second) continue;
      const Tensor from = source(field);
      const DType dtype = field.tensor().dtype();
      const auto copy_on = [&](Device device) {
        const Tensor made = empty(from.shape(), {.dtype = dtype, .device = device});
        made.copy_(from);
        return made;
      };
      const MemoryScope scope(where.is_device() ? (field.parameter ? Memory::parameter : Memory::other)
                                                : Memory::offload);
      if (where.is_device()) {
        field.set(!all_from_file && from.device() == where.device() ? from : copy_on(where.device()));
        continue;
      }
      Visitor& visitor = visitors[field.key()];
      if (where.name == "cpu") visitor.host = copy_on(cpu);
      else visitor.saved = name_in_file(field);
      const MemoryScope on_device(field.parameter ? Memory::parameter : Memory::other);
      visitor.there = empty(from.shape(), {.dtype = dtype, .device = plan.main});
      visitor.there.storage()->empty(not_loaded);
      field.set(visitor.there);
    }
  }

  std::shared_ptr<void> load(size_t part) {
    LOCKSTEP_CHECK(!NoGrad::grad_enabled(), "[device_map] ",
                   plan.parts[part].name.empty() ? model.kind() + "'s own tensors" : plan.parts[part].name, " lies ",
                   plan.places[part].name == "disk" ? "on disk" : "in host memory",
                   " and is dropped after it ran, so backward could not read it: run it under NoGrad, or map it to a "
                   "device to train it");
    // Parts may share a tensor, so each tensor has a handle of its own: when the last owner drops it, the tensor is
    // unloaded. The result owns the handles of all tensors of this part.
    const auto all = std::make_shared<std::vector<std::shared_ptr<void>>>();
    for (const std::string& name : plan.parts[part].tensors) {
      const NamedField& field = fields.at(name);
      std::shared_ptr<void> held = loaded[field.key()].lock();
      if (!held) {
        const Visitor& visitor = visitors.at(field.key());
        const Tensor& there = visitor.there;
        {
          const MemoryScope scope(there.storage()->category());
          there.storage()->refill();
        }
        held = std::shared_ptr<void>(this, [there](void*) { there.storage()->empty(not_loaded); });
        const MemoryScope scope(Memory::offload);
        there.copy_(visitor.host.defined() ? visitor.host : file->tensor(visitor.saved));
        loaded[field.key()] = held;
        bytes += bytes_of(there);
      }
      all->push_back(std::move(held));
    }
    ++loads;
    return all;
  }

  /// Makes a module and its submodules run on their devices. around: the caller's device. chained: the output goes
  /// straight to the next module, and is not moved back to the caller's device.
  void attach(nn::Module& module, const std::string& name, Device around, bool chained) {
    std::vector<size_t> below;
    std::optional<size_t> own;  // the part of this very module
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      if (!is_below(plan.parts[i].name, name)) continue;
      below.push_back(i);
      if (plan.parts[i].name == name) own = i;
    }
    if (below.empty()) return;  // no part below: the module runs on its input's device
    const std::optional<Device> output = chained ? std::nullopt : std::optional(around);
    const auto run = [&](Device device, std::optional<size_t> read = {}) {  // read: the part to load
      nn::Module::RunOn placement{
          .device = device, .output = name.empty() ? std::optional(device) : output, .hold = {}};
      if (read && !plan.places[*read].is_device()) placement.hold = [this, part = *read] { return load(part); };
      module.run_on(std::move(placement));
      running.push_back(module.calls());
    };
    const bool is_list = module.kind() == "ModuleList",
               is_chain = is_list || module.kind() == "Sequential";  // a list is never called itself
    const bool together =
        !is_list && std::ranges::all_of(below, [&](size_t i) { return plan.places[i] == plan.places[below[0]]; });
    if (together && plan.places[below[0]].is_device()) return run(plan.places[below[0]].device());
    if (own && !plan.parts[*own].own) return run(plan.main, own);
    const Device here = own ? runs_at(*own) : around;
    if (!is_list) run(here, own);
    const auto children = module.children();
    std::string last;
    for (const auto& [child_name, child] : children) {
      for (const size_t i : below)
        if (is_below(plan.parts[i].name, nn::joined(name, child_name))) last = child_name;
    }
    for (const auto& [child_name, child] : children)
      attach(*child, nn::joined(name, child_name), here, is_chain && child_name != last);
  }

  ~Impl() {
    const bool is_gone = std::ranges::none_of(running, &nn::Module::Calls::exist);
    for (const nn::Module::Calls& calls : running) calls.run_here();
    if (is_gone) return;  // the model no longer exists
    for (const auto& [name, field] : fields) {
      const auto visitor = visitors.find(field.key());
      if (visitor == visitors.end() || !visitor->second.host.defined()) continue;
      visitor->second.host.storage()->book_as(Memory::parameter);
      field.set(visitor->second.host);
    }
  }

  nn::Module& model;
  Placement plan;
  std::map<std::string, NamedField> fields;
  std::optional<data::SafeTensors> file;
  bool all_from_file = false;
  std::map<const void*, Visitor> visitors;            // by NamedField::key()
  std::map<const void*, std::weak_ptr<void>> loaded;  // handles that keep a tensor loaded
  std::set<const void*> placed;
  std::vector<nn::Module::Calls> running;
  int64_t loads = 0, bytes = 0;
};

Dispatched::Dispatched(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Dispatched::Dispatched(Dispatched&&) noexcept = default;
Dispatched::~Dispatched() = default;
const Placement& Dispatched::plan() const { return impl_->plan; }
int64_t Dispatched::loads() const { return impl_->loads; }
int64_t Dispatched::bytes_loaded() const { return impl_->bytes; }

std::shared_ptr<void> Dispatched::hold(const std::string& module) {
  for (size_t i = 0; i < impl_->plan.parts.size(); ++i) {
    if (impl_->plan.parts[i].name == module) return impl_->plan.places[i].is_device() ? nullptr : impl_->load(i);
  }
  for (const PlacementUnit& part : impl_->plan.parts)
    if (is_below(part.name, module)) return nullptr;  // its children have the parameters; the module itself has none
  fail(str("[device_map] expected the name of a module with parameters, got '", module, "'; see named_modules()"));
}

Dispatched dispatch(nn::Module& model, const Placement& plan, const DispatchOptions& options) {
  auto impl = std::make_unique<Dispatched::Impl>(model, plan);
  impl->open(options);
  const NoGrad no_grad;
  // Parts that leave the main device are placed first, to make room there for the parts that stay.
  const auto order_of = [&](const Location& place) {
    return !place.is_device() ? 0 : place == Location(plan.main) ? 2 : 1;
  };
  impl->attach(model, "", plan.main, false);
  for (const int order : {0, 1, 2}) {
    for (size_t i = 0; i < plan.parts.size(); ++i)
      if (order_of(plan.places[i]) == order) impl->place(i);
  }
  return Dispatched(std::move(impl));
}

}  // namespace lockstep::device_map
