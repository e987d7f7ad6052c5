// Places the parts of a model within memory limits, reads device maps, and draws plans. See plan.h.
#include "extensions/device_map/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "base/suggest.h"
#include "extensions/device_map/parts.h"
#include "extensions/figures/quantity.h"
#include "extensions/figures/svg.h"
#include "tensor/memory.h"

namespace lockstep::device_map {

namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

struct Shelf {
  Location place;
  int64_t limit;
};

/// The places that may hold parts, in the order of filling: devices by type and index, host memory, disk.
std::vector<Shelf> shelves_of(nn::Module& model, const DeviceMapOptions& options) {
  std::vector<Shelf> all;
  if (options.max_memory.empty()) {
    for (const Device device : all_devices(default_device().type)) {
      int64_t left = unlimited;
      if (const int64_t limit = memory_limit(device); limit > 0) {
        left = limit - device_memory(device).total.current;
        std::set<const void*> visited;  // the model's tensors on this device free their memory: they will move
        for (const NamedField& field : nn::named_fields(model))
          if (visited.insert(field.key()).second && field.tensor().device() == device &&
              !field.tensor().storage()->is_empty())
            left += bytes_of(field.tensor());
      }
      all.push_back({device, std::max<int64_t>(left, 0)});
    }
    all.push_back({"cpu", unlimited});
    return all;
  }
  for (const auto& [name, bytes] : options.max_memory) all.push_back({name, bytes.count});
  std::ranges::sort(all, std::less(), &Shelf::place);
  LOCKSTEP_CHECK(all[0].place.is_device(),
                 "[device_map] expected at least one device in max_memory (\"cpu:0\", \"cuda:0\"), got ",
                 all[0].place.name, " only; parts need a device to run on");
  for (const Shelf& shelf : all)
    if (shelf.place.is_device()) check_device("device_map", shelf.place.device());
  if (all.back().place.name != "disk") all.push_back({"disk", unlimited});
  return all;
}

/// Places groups of parts in order: each group at the place of the previous group if it fits there, else at the next
/// place that has room.
struct Filler {
  explicit Filler(const std::vector<PlacementUnit>& parts) : parts(parts) {
    for (const PlacementUnit& p : parts) {
      if (std::ranges::find(order, p.group) == order.end()) order.push_back(p.group);
      bytes[p.group] += p.bytes;
      total += p.bytes;
    }
  }
  /// Returns the index of each part's place. If a group of parts fits nowhere, returns nullopt and sets `stuck` to it.
  std::optional<std::vector<size_t>> operator()(const std::vector<int64_t>& limits) {
    std::map<size_t, size_t> place;
    size_t at = 0;
    int64_t used = 0;
    for (const size_t group : order) {
      while (at < limits.size() && bytes[group] > limits[at] - used) ++at, used = 0;
      if (at == limits.size()) {
        stuck = group;
        return std::nullopt;
      }
      used += bytes[group];
      place[group] = at;
    }
    std::vector<size_t> all;
    for (const PlacementUnit& p : parts) all.push_back(place[p.group]);
    return all;
  }
  const std::vector<PlacementUnit>& parts;
  std::vector<size_t> order;
  std::map<size_t, int64_t> bytes;
  int64_t total = 0;
  size_t stuck = 0;
};

/// Returns the smallest bound in [low, high] for which `fits` is true, by bisection; fits(high) must be true.
int64_t least(int64_t low, int64_t high, const std::function<bool(int64_t)>& fits) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (fits(middle)) high = middle;
    else low = middle + 1;
  }
  return high;
}

/// Returns memory limits under which all devices hold about the same number of bytes; with low_0, the first one holds
/// as few as possible, and the others about the same. Returns nullopt if the model does not fit on the devices alone.
std::optional<std::vector<int64_t>> balance(Filler& fill, const std::vector<int64_t>& limits, bool low_0) {
  if (!fill(limits)) return std::nullopt;
  const auto capped = [&](int64_t first, int64_t rest) {
    std::vector<int64_t> all = limits;
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::min(all[i], i == 0 ? first : rest);
    return all;
  };
  const auto fits = [&](int64_t first, int64_t rest) { return fill(capped(first, rest)).has_value(); };
  if (!low_0 || limits.size() == 1) {
    const int64_t bound = least(0, fill.total, [&](int64_t b) { return fits(b, b); });
    return capped(bound, bound);
  }
  const int64_t first = least(0, fill.total, [&](int64_t b) { return fits(b, fill.total); });
  return capped(first, least(0, fill.total, [&](int64_t b) { return fits(first, b); }));
}

Placement finish(std::vector<PlacementUnit> parts, std::vector<Location> places, Device main) {
  Placement plan{.parts = std::move(parts), .places = std::move(places), .main = main};
  for (size_t i = 0; i < plan.parts.size(); ++i) plan.held[plan.places[i].name] += plan.parts[i].bytes;
  plan.reserved = reserve_of(plan.parts, plan.places);
  return plan;
}

}  // namespace

Location::Location(std::string wanted) : name(std::move(wanted)) {
  if (!is_device()) return;
  try {
    *this = parse_device(name);
  } catch (const Error&) {
    fail(str("[device_map] expected a device (cpu:0, cuda:0), cpu (host memory) or disk, got '", name, "'",
             suggestion(name, {"cpu", "disk", "cpu:0", "cuda:0"})));
  }
}
Device Location::device() const {
  LOCKSTEP_CHECK(is_device(), "[device_map] expected a device, got ", name, "; name one such as cpu:0 or cuda:0");
  return parse_device(name);
}

bool operator<(const Location& a, const Location& b) {
  const auto order = [](const Location& place) {
    if (!place.is_device()) return std::pair(place.name == "disk" ? 3 : 2, 0);
    return std::pair(place.device().is_cpu() ? 1 : 0, int(place.device().index));
  };
  return order(a) < order(b);
}

Bytes::Bytes(const std::string& text) {
  const std::optional<double> value = parse_quantity(text, byte_units);
  LOCKSTEP_CHECK(value && *value < 0x1p62,
                 "[device_map] expected bytes such as 1048576, \"10GiB\" or \"500MB\", below 2^62, got '", text, "'");
  count = int64_t(*value);
}

Placement infer(nn::Module& model, const std::string& mode, const DeviceMapOptions& options) {
  const std::vector<std::string> modes = {"auto", "balanced", "balanced_low_0", "sequential"};
  LOCKSTEP_CHECK(std::ranges::find(modes, mode) != modes.end(),
                 "[device_map] expected auto, balanced, balanced_low_0 or sequential, got '", mode, "'",
                 suggestion(mode, modes));
  std::vector<PlacementUnit> parts = find_parts(model, options);
  const std::vector<Shelf> shelves = shelves_of(model, options);
  Filler fill(parts);
  std::vector<int64_t> limits, on_devices;
  for (const Shelf& shelf : shelves) {
    limits.push_back(shelf.limit);
    if (shelf.place.is_device()) on_devices.push_back(shelf.limit);
  }
  const auto places_of = [&](const std::vector<size_t>& at) {
    std::vector<Location> places;
    for (const size_t place : at) places.push_back(shelves[place].place);
    return places;
  };
  std::optional<std::vector<size_t>> at;
  int64_t room = 0;
  if (mode == "sequential") at = fill(on_devices);
  else if (const auto even = balance(fill, on_devices, mode == "balanced_low_0")) at = fill(*even);
  // If the model does not fit on the devices, the main device keeps room free to run any part from host memory or disk.
  // Every round of this loop increases the number of bytes kept free, until they are enough.
  while (!at) {
    LOCKSTEP_CHECK(room <= limits[0], "[device_map] limits are too small: ", shelves[0].place.name, " may hold ",
                   limits[0], " bytes, and the largest part that has to come there to run needs ", room, ", ",
                   room - limits[0], " more; raise max_memory");
    std::vector<int64_t> left = limits;
    left[0] -= room;
    at = fill(left);
    if (!at) {
      int64_t sum = 0;
      for (const int64_t limit : left) sum = limit > unlimited - sum ? unlimited : sum + limit;
      const auto stuck = std::ranges::find(parts, fill.stuck, &PlacementUnit::group);
      fail(str("[device_map] limits are too small: the weights are ", fill.total, " bytes, ", shelves.size(),
               " places hold ", sum, room > 0 ? str(" (", room, " of ", shelves[0].place.name, " are kept free)") : "",
               sum < fill.total ? str(", ", fill.total - sum, " too few") : "", "; ",
               stuck->name.empty() ? model.kind() + "'s own tensors" : stuck->name, " of ", fill.bytes[fill.stuck],
               " bytes fits nowhere. Raise max_memory, or offload the rest to disk"));
    }
    const int64_t needed = reserve_of(parts, places_of(*at));
    if (needed > room) at.reset(), room = needed;
  }
  return finish(std::move(parts), places_of(*at), shelves[0].place.device());
}

Placement infer(nn::Module& model, const DeviceMap& map, const DeviceMapOptions& options) {
  const std::vector<PlacementUnit> parts = find_parts(model, options);
  std::vector<std::string> known;
  for (const auto& [name, module] : model.named_modules())
    if (!name.empty()) known.push_back(name);
  for (const NamedField& field : nn::named_fields(model)) known.push_back(field.name);
  for (const auto& [name, place] : map) {
    LOCKSTEP_CHECK(name.empty() || std::ranges::find(known, name) != known.end(), "[device_map] ", model.kind(),
                   " has no module or parameter '", name, "'", suggestion(name, known),
                   "; name one that named_modules() or named_fields() returns");
    if (place.is_device()) check_device("device_map", place.device());
  }
  const auto place_of = [&](const std::string& tensor) -> const Location* {
    const std::pair<const std::string, Location>* best = nullptr;
    for (const auto& entry : map)
      if (is_below(tensor, entry.first) && (!best || entry.first.size() >= best->first.size())) best = &entry;
    return best ? &best->second : nullptr;
  };
  std::vector<std::string> without;
  for (const PlacementUnit& part : parts)
    for (const std::string& tensor : part.tensors)
      if (!place_of(tensor)) without.push_back(tensor);
  LOCKSTEP_CHECK(without.empty(), "[device_map] expected a place for every parameter, got none for ",
                 list_names(without, 10), "; add their modules to the map, or \"\" for all that is left");

  std::vector<Location> places;
  std::map<size_t, size_t> first;  // first part of each group
  for (size_t i = 0; i < parts.size(); ++i) {
    const PlacementUnit& part = parts[i];
    const Location& place = *place_of(part.tensors[0]);
    for (const std::string& tensor : part.tensors) {
      LOCKSTEP_CHECK(*place_of(tensor) == place, "[device_map] ",
                     part.own ? (part.name.empty() ? model.kind() : part.name) + " reads these itself"
                              : part.name + " must not be split",
                     ": expected one place for ", part.tensors[0], " and ", tensor, ", got ", place.name, " and ",
                     place_of(tensor)->name, "; name the same place for both");
    }
    const auto [tied, is_first] = first.try_emplace(part.group, i);
    LOCKSTEP_CHECK(is_first || places[tied->second] == place, "[device_map] ", parts[tied->second].name, " and ",
                   part.name, " share a parameter: expected one place for both, got ", places[tied->second].name,
                   " and ", place.name, "; name the same place for both");
    places.push_back(place);
  }
  const Location first_place = *std::min_element(places.begin(), places.end());
  Placement plan = finish(parts, std::move(places), first_place.is_device() ? first_place.device() : default_device());
  for (const auto& [name, limit] : options.max_memory) {
    const Location place(name);
    const int64_t needed = plan.needed(place);
    LOCKSTEP_CHECK(needed <= limit.count, "[device_map] limits are too small: the map puts ", needed, " bytes on ",
                   place.name,
                   place == Location(plan.main) && plan.reserved > 0
                       ? str(", ", plan.reserved, " of them to run what is elsewhere")
                       : "",
                   ", max_memory is ", limit.count, ", ", needed - limit.count,
                   " too few; raise max_memory, or map some modules elsewhere");
  }
  return plan;
}

int64_t Placement::needed(const Location& place) const {
  const auto weights = held.find(place.name);
  return (weights == held.end() ? 0 : weights->second) + (place == Location(main) ? reserved : 0);
}

DeviceMap Placement::map() const {
  std::vector<std::pair<std::string, Location>> tensors;
  for (size_t i = 0; i < parts.size(); ++i)
    for (const std::string& name : parts[i].tensors) tensors.emplace_back(name, places[i]);
  DeviceMap result;
  const std::function<void(const std::string&)> collapse = [&](const std::string& prefix) {
    std::set<std::string> places_below, next;
    for (const auto& [name, place] : tensors) {
      if (!is_below(name, prefix)) continue;
      places_below.insert(place.name);
      const size_t from = prefix.empty() ? 0 : prefix.size() + 1;
      if (from < name.size()) next.insert(name.substr(0, name.find('.', from)));
    }
    if (places_below.size() == 1) result.emplace(prefix, *places_below.begin());
    else
      for (const std::string& name : next) collapse(name);
  };
  collapse("");
  return result;
}

std::string Placement::text() const {
  size_t width = 4;
  const auto printed = [&](const PlacementUnit& p) {
    return p.own ? (p.name.empty() ? "(model's own)" : p.name + " (own)") : p.name.empty() ? "(model)" : p.name;
  };
  for (const PlacementUnit& p : parts) width = std::max(width, printed(p).size());
  std::string text;
  const auto line = [&](const std::string& name, const std::string& place, int64_t bytes) {
    text += fmt::format("{:<{}}  {:<8}{:>12}\n", name, width, place, memory_text(bytes));
  };
  for (size_t i = 0; i < parts.size(); ++i) line(printed(parts[i]), places[i].name, parts[i].bytes);
  for (const auto& [place, bytes] : held) line("all", place, bytes);
  if (reserved > 0) line("kept free", Location(main).name, reserved);
  return text;
}

std::string draw_svg(const Placement& plan) {
  std::vector<Location> columns;
  for (const auto& [place, bytes] : plan.held) columns.emplace_back(place);
  if (!plan.held.count(Location(plan.main).name)) columns.emplace_back(plan.main);
  std::sort(columns.begin(), columns.end());
  LOCKSTEP_CHECK(columns.size() <= 16, "[draw] expected 16 places or fewer, got ", columns.size(),
                 "; print the plan with text() instead");
  int64_t greatest = 1;
  for (const Location& place : columns) greatest = std::max(greatest, plan.needed(place));
  constexpr double left = 16, top = 44, column = 170, gap = 18, tall = 300;
  const double page = left + double(columns.size()) * (column + gap), height = top + tall + 34;
  std::string out = svg::begin(page, height);
  const auto text = [&](double x, double y, const std::string& words, double size, const char* color) {
    out += svg::text(x, y, words, size, color, "middle");
  };
  const auto box = [&](double x, double y, double h, const char* fill, const char* more, const std::string& words) {
    out += svg::rect(x, y, column, std::max(h, 0.5),
                     str(" rx=\"2\" fill=\"", fill, "\" stroke=\"#37474f\" stroke-width=\"0.8\"", more));
    if (h >= 11) text(x + column / 2, y + h / 2 + 4, words, 11, "#102027");
  };
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string& place = columns[i].name;
    const double x = left + double(i) * (column + gap);
    const int64_t bytes = plan.held.count(place) ? plan.held.at(place) : 0;
    text(x + column / 2, 20, place == "cpu" ? "cpu: host memory" : place, 13, "#102027");
    text(x + column / 2, 36, str(bytes, " bytes"), 11, "#546e7a");
    double bottom = top + tall;
    for (size_t k = 0; k < plan.parts.size(); ++k) {
      const PlacementUnit& part = plan.parts[k];
      if (plan.places[k].name != place) continue;
      const double h = tall * double(part.bytes) / double(greatest);
      bottom -= h;
      box(x, bottom, h,
          place == "cpu"    ? "#ffe0b2"
          : place == "disk" ? "#cfd8dc"
                            : "#bbdefb",
          "", (part.name.empty() ? "the model" : part.name) + (part.own ? "'s own" : ""));
    }
    if (place == Location(plan.main).name && plan.reserved > 0) {
      const double h = tall * double(plan.reserved) / double(greatest);
      box(x, bottom - h, h, "none", " stroke-dasharray=\"4 3\"", "kept free: " + std::to_string(plan.reserved));
    }
  }
  text(page / 2, height - 12, "parts of host memory and disk come to " + Location(plan.main).name + " while they run",
       11, "#546e7a");
  return out + svg::end;
}

}  // namespace lockstep::device_map
