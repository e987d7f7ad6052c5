#pragma once
// Device maps: where each part of a model is placed, for models that do not fit on one device (as Accelerate's
// infer_auto_device_map).
//
//   cpu:0  cpu:1  cuda:0   a device (virtual CPU devices too): the part is stored there, and runs there
//   cpu                    host memory: the part is copied to the main device (the first one) whenever it runs
//   disk                   a safetensors file: the part is read to the main device whenever it runs
//
//   const auto plan = device_map::infer(model, "auto", {.max_memory = {{"cpu:0", "1GiB"}, {"cpu", "4GiB"}}});
//   auto dispatched = device_map::dispatch(model, plan, {.offload_folder = "/tmp"});        // dispatch.h
//
// A part is a layer without children; or a module of a class that must not be split; or the tensors that a module reads
// itself instead of calling a child (its own parameters, and those that reads() names). Parts that share a parameter
// are placed together.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nn/module.h"

namespace lockstep::device_map {

/// A place for a part: a device such as "cpu:1" or "cuda:0", host memory "cpu", or "disk". Error for any other name.
struct Location {
  Location(const char* name) : Location(std::string(name)) {}         // NOLINT: implicit on purpose
  Location(std::string name);                                         // NOLINT
  Location(Device device) : name(str(device)) {}                      // NOLINT
  bool is_device() const { return name != "cpu" && name != "disk"; }  ///< false for host memory and disk
  Device device() const;                                              ///< the device; Error for host memory and disk
  std::string name;
  friend bool operator==(const Location&, const Location&) = default;
  /// Order: GPUs, virtual CPU devices, host memory, disk.
  friend bool operator<(const Location& a, const Location& b);
};

/// Maps names of modules and parameters to places; "" is the whole model. A parameter's place is that of its own name
/// or, if the map does not have it, of the innermost module around it that the map has.
using DeviceMap = std::map<std::string, Location>;

/// A number of bytes: 500000000, "10GiB", "500 MB", "1.5e9". Error for other texts.
struct Bytes {
  Bytes(int64_t count) : count(count) {}                 // NOLINT: implicit on purpose
  Bytes(const char* text) : Bytes(std::string(text)) {}  // NOLINT
  Bytes(const std::string& text);                        // NOLINT
  int64_t count;
};

/// Options of infer().
struct DeviceMapOptions {
  /// Bytes of weights that each place may hold. Empty: all devices, up to the limit of set_memory_limit(), then host
  /// memory. Not empty: the places named here, and then the disk; {"disk", 0} excludes the disk.
  std::map<std::string, Bytes> max_memory = {};
  /// Class names (Module::kind()) of modules that must stay in one piece.
  std::vector<std::string> no_split_module_classes = {"TransformerBlock"};
};

/// A part of a model, the unit of placement.
struct PlacementUnit {
  std::string name;  ///< name of the module
  /// True: only the tensors that the module reads itself; false: also the tensors of its children.
  bool own = false;
  std::vector<std::string> tensors;  ///< names of the part's parameters and buffers
  int64_t bytes = 0;                 ///< bytes of weights; a tensor shared by several parts counts only in the first
  int64_t bytes_there = 0;           ///< bytes of weights; a shared tensor counts in each part
  size_t group = 0;                  ///< parts of one group share parameters
};

/// A plan: the place of each part.
struct Placement {
  std::vector<PlacementUnit> parts;     ///< in the order of fields()
  std::vector<Location> places;         ///< place of each part
  std::map<std::string, int64_t> held;  ///< bytes of weights at each place that has some
  Device main = cpu;                    ///< the device on which parts from host memory and disk run
  /// Bytes kept free on `main` for parts from host memory and disk: the most that is loaded at a time.
  int64_t reserved = 0;
  /// Bytes that a place needs: its weights and, on `main`, the bytes kept free (`reserved`).
  int64_t needed(const Location& place) const;
  /// The plan as a short map: a module whose parts all have the same place has one entry. infer(model, map) restores
  /// the plan.
  DeviceMap map() const;
  /// A table with a line per part, and the bytes at each place.
  std::string text() const;
};
/// The plan as a picture (SVG): a column per place, a box per part. The height of a box is proportional to the bytes of
/// the part. Error for more than 16 places.
std::string draw_svg(const Placement& plan);

/// Makes a plan. mode: auto or balanced (devices hold about equally much), balanced_low_0 (the first device holds as
/// little as possible), sequential (each device is filled before the next). Devices are used first, then host memory,
/// then disk. If parts are placed in host memory or on disk, the main device keeps room for the largest of these parts.
/// Error if the limits are too small, with the missing bytes.
Placement infer(nn::Module& model, const std::string& mode = "auto", const DeviceMapOptions& options = {});
/// Makes a plan from a map made by hand. Errors: a name in the map is not in the model; a parameter has no place; a
/// part would be split; a limit in options.max_memory is exceeded.
Placement infer(nn::Module& model, const DeviceMap& map, const DeviceMapOptions& options = {});

}  // namespace lockstep::device_map
