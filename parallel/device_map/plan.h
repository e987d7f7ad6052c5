#pragma once
// Device maps: which part of a model lives where, for models that do not fit on one device (as Accelerate's
// infer_auto_device_map).
//
//   cpu:0  cpu:1  cuda:0   a device (virtual CPU devices too): the part stays there, and runs there
//   cpu                    host memory: it comes to the main device, the first one, when it runs, and is dropped then
//   disk                   a safetensors file: the same
//
//   const auto plan = device_map::infer(model, "auto", {.max_memory = {{"cpu:0", "1GiB"}, {"cpu", "4GiB"}}});
//   auto dispatched = device_map::dispatch(model, plan, {.offload_folder = "/tmp"});        // dispatch.h
//
// What is placed are parts: a layer without layers below; a module of a class that is not split; what a module reads
// itself, instead of calling it (its own parameters, and those that reads() names). Parts that share a parameter are
// placed together.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nn/module.h"

namespace lockstep::device_map {

/// "cpu:1", "cuda:0", "cpu" or "disk". Error when it is none of them.
struct Location {
  Location(const char* name) : Location(std::string(name)) {}  // NOLINT: implicit on purpose
  Location(std::string name);                                  // NOLINT
  Location(Device device);                                     // NOLINT
  bool is_device() const { return name != "cpu" && name != "disk"; }
  Device device() const;  ///< Error for the other two
  std::string name;
  friend bool operator==(const Location&, const Location&) = default;
  /// GPUs, virtual CPU devices, host memory, disk.
  friend bool operator<(const Location& a, const Location& b);
};

/// Names of modules or parameters; the longest that begins a parameter's name counts. "" is the whole model.
using Map = std::map<std::string, Location>;

/// A number, or "10GiB", "500 MB", "1.5e9".
struct Bytes {
  Bytes(int64_t count) : count(count) {}                 // NOLINT: implicit on purpose
  Bytes(const char* text) : Bytes(std::string(text)) {}  // NOLINT
  Bytes(const std::string& text);                        // NOLINT
  int64_t count;
};

struct Options {
  /// Bytes of weights that a place may hold. Empty: all devices, each with what set_memory_limit() leaves of it, then
  /// host memory. Given: the places it names, and disk after them; {"disk", 0}: none there.
  std::map<std::string, Bytes> max_memory = {};
  /// kind() of modules that stay in one piece.
  std::vector<std::string> no_split_module_classes = {"TransformerBlock"};
};

/// Something that is placed as one.
struct Part {
  std::string name;  ///< the module's; of what a module reads itself: that module's
  nn::Module* module = nullptr;
  bool own = false;                  ///< what the module reads itself
  std::vector<std::string> tensors;  ///< names of its parameters and buffers
  int64_t bytes = 0;                 ///< a tensor that several parts share counts in the first
  int64_t bytes_there = 0;           ///< in each
  size_t group = 0;                  ///< parts of one group share parameters
};

struct Placement {
  std::vector<Part> parts;              ///< in the order of fields()
  std::vector<Location> places;         ///< of each
  std::map<std::string, int64_t> held;  ///< bytes of weights at each place that has any
  Device main = cpu;                    ///< where parts from host memory and disk run
  int64_t reserved = 0;                 ///< bytes it needs for them: the most that is there at once
  /// Bytes that a place must have room for: its weights, and what is kept free there.
  int64_t needed(const Location& place) const;
  /// In few words: a module all of whose parts lie together stands for them. infer(model, map) gives the plan back.
  Map map() const;
  /// A line a part, and what each place holds.
  std::string text() const;
};
/// The plan as a picture (SVG): a column a place, a box a part, as high as its bytes. Error for more than 16 places.
std::string draw_svg(const Placement& plan);

/// mode: auto and balanced (devices hold about the same), balanced_low_0 (the first as little as possible), sequential
/// (each is filled before the next). Devices come first, then host memory, then disk; when something lies there, the
/// main device keeps room for the largest. Error when limits are too small, and by how much.
Placement infer(nn::Module& model, const std::string& mode = "auto", const Options& options = {});
/// A map by hand. Errors: a name that the model has not, parameters that it leaves out, parts that cannot be cut so,
/// limits (of options.max_memory, where given) passed.
Placement infer(nn::Module& model, const Map& map, const Options& options = {});

}  // namespace lockstep::device_map
