// Plans of device maps: every mode, limits that just suffice or are a byte too small, parts that stay together, manual
// maps.
#include <doctest/doctest.h>

#include <filesystem>

#include "data/files.h"
#include "data/safetensors.h"
#include "extensions/device_map/dispatch.h"
#include "nn/nn.h"
#include "tensor/memory.h"
#include "tensor/random.h"
#include "tests/devices.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using device_map::DeviceMap;
using device_map::infer;
using device_map::Placement;

namespace {

/// Six layers of 4 * 5 * 4 = 80 bytes each (weights and bias): a first layer, two blocks of two, and a head.
struct Block : nn::Layer<Block> {
  nn::Linear a{{.in = 4, .out = 4}}, b{{.in = 4, .out = 4}};
  Variable forward(const Variable& x) { return add(x, b(relu(a(x)))); }
  void fields(nn::Fields& f) override { f("a", a)("b", b); }
};
struct Net : nn::Layer<Net> {
  nn::Linear first{{.in = 4, .out = 4}};
  nn::ModuleList<Block> blocks;
  nn::Linear last{{.in = 4, .out = 4}};
  Net() {
    for (int i = 0; i < 2; ++i) blocks.push_back(Block());
  }
  Variable forward(const Variable& x) {
    Variable h = first(x);
    for (size_t i = 0; i < blocks.size(); ++i) h = blocks[i](h);
    return last(h);
  }
  void fields(nn::Fields& f) override { f("first", first)("blocks", blocks)("last", last); }
};
constexpr int64_t layer = 80;
const std::vector<std::string> unsplit = {"Block"};  // for no_split_module_classes

/// A plan's map as text, "first=cpu:0 blocks.0=cpu:1 ...".
std::string printed(const Placement& plan) {
  std::string text;
  for (const auto& [name, place] : plan.map())
    text += (text.empty() ? "" : " ") + (name.empty() ? "all" : name) + "=" + place.name;
  return text;
}

}  // namespace

TEST_CASE("device map: modes over two and three devices, host memory and disk") {
  const Devices devices(3);
  struct Row {
    const char* mode;
    std::map<std::string, int64_t> layers;  // that fit into each place
    const char* expected;
    int64_t reserved = 0;
    std::vector<std::string> no_split = {};
  };
  const std::map<std::string, int64_t> two = {{"cpu:0", 10}, {"cpu:1", 10}},
                                       three = {{"cpu:0", 10}, {"cpu:1", 10}, {"cpu:2", 10}};
  const char *const halves = "blocks.0=cpu:0 blocks.1=cpu:1 first=cpu:0 last=cpu:1",
                    *const two_first = "blocks.0.a=cpu:0 blocks.0.b=cpu:1 blocks.1=cpu:1 first=cpu:0 last=cpu:1";
  const Row rows[] = {
      {"auto", two, halves},
      {"balanced", two, halves},
      {"auto", three, "blocks.0.a=cpu:0 blocks.0.b=cpu:1 blocks.1.a=cpu:1 blocks.1.b=cpu:2 first=cpu:0 last=cpu:2"},
      {"auto", three, halves, 0, unsplit},
      {"sequential", two, "all=cpu:0"},
      {"sequential", {{"cpu:0", 2}, {"cpu:1", 10}}, two_first},
      {"balanced_low_0", two, "all=cpu:1"},
      {"balanced_low_0", three, "blocks.0=cpu:1 blocks.1=cpu:2 first=cpu:1 last=cpu:2"},
      {"balanced_low_0", {{"cpu:0", 10}, {"cpu:1", 4}}, two_first},
      {"auto", {{"cpu:0", 6}}, "all=cpu:0"},
      // Not everything fits: the first device reserves room for the largest part that is loaded.
      {"auto",
       {{"cpu:0", 2}, {"cpu:1", 1}, {"cpu", 2}},
       "blocks.0.a=cpu:1 blocks.0.b=cpu blocks.1.a=cpu blocks.1.b=disk first=cpu:0 last=disk",
       layer},
      {"sequential",
       {{"cpu:0", 3}, {"cpu", 3}},
       "blocks.0=cpu blocks.1=disk first=cpu:0 last=disk",
       2 * layer,
       unsplit},
      {"auto", {{"cpu:0", 1}}, "all=disk", layer},
      {"auto", {{"cpu:1", 2}, {"cpu", 20}}, "blocks=cpu first=cpu:1 last=cpu", layer},
  };
  Net net;
  for (const Row& row : rows) {
    INFO(row.mode, ": ", row.expected);
    std::map<std::string, device_map::Bytes> memory;
    for (const auto& [place, layers] : row.layers) memory.emplace(place, layers * layer);
    const Placement plan = infer(net, row.mode, {.max_memory = memory, .no_split_module_classes = row.no_split});
    CHECK(printed(plan) == row.expected);
    CHECK(plan.reserved == row.reserved);
    int64_t sum = 0;
    for (const auto& [place, bytes] : plan.held) {
      sum += bytes;
      if (memory.count(place))
        CHECK(bytes + (device_map::Location(plan.main).name == place ? plan.reserved : 0) <= memory.at(place).count);
    }
    CHECK(sum == 6 * layer);
    // a manual map gives the same
    CHECK(printed(infer(net, plan.map(), {.no_split_module_classes = row.no_split})) == row.expected);
  }
}

TEST_CASE("device map: any limits give a plan that keeps them, or say how many bytes are missing") {
  const Devices devices(3);
  Net net;
  int fits = 0, fails = 0;
  for (int a = 0; a <= 7; ++a) {
    for (int b = 0; b <= 7; ++b) {
      for (int host = 0; host <= 7; host += 7) {
        for (const char* mode : {"auto", "balanced_low_0", "sequential"}) {
          const device_map::DeviceMapOptions options{
              .max_memory = {{"cpu:0", a * layer}, {"cpu:1", b * layer + 7}, {"cpu", host * layer}, {"disk", 0}}};
          INFO(mode, " with room for ", a, ", ", b, " and ", host, " layers");
          // Layers in host memory run on the first device, cpu:0, which needs room for at least one of them.
          const bool possible = a + b >= 6 || (host > 0 && a >= 1);
          const std::string text = message([&] {
            const Placement plan = infer(net, mode, options);
            for (const auto& [place, bytes] : plan.held)
              CHECK(bytes + (place == "cpu:0" ? plan.reserved : 0) <= options.max_memory.at(place).count);
          });
          CHECK((text == "(no error)") == possible);
          if (!possible) CHECK(contains(text, "[device_map] limits are too small"));
          (possible ? fits : fails) += 1;
        }
      }
    }
  }
  CHECK((fits > 50 && fails > 50));
  CHECK_ERROR(infer(net, "auto", {.max_memory = {{"cpu:0", layer * 2}, {"cpu:1", layer * 3}, {"disk", 0}}}),
              "the weights are 480 bytes, 3 places hold 400, 80 too few; last of 80 bytes fits nowhere");
  CHECK_ERROR(infer(net, "auto", {.max_memory = {{"cpu:0", layer * 2 - 1}}, .no_split_module_classes = unsplit}),
              "cpu:0 may hold 159 bytes, and the largest part that has to come there to run needs 160, 1 more");
}

TEST_CASE(
    "device map: without max_memory, a device may hold what set_memory_limit() leaves, and the model's own bytes") {
  const Devices devices(2);
  Net net;  // on cpu:0
  const int64_t held = device_memory(cpu).total.current;
  set_memory_limit(cpu, held + layer);
  set_memory_limit(second, layer * 3);
  CHECK(printed(infer(net, "sequential")) == "all=cpu:0");
  set_memory_limit(cpu, held - 3 * layer);
  CHECK(printed(infer(net, "sequential")) == "blocks.0=cpu:0 blocks.1=cpu:1 first=cpu:0 last=cpu:1");
  set_memory_limit(cpu, 0);
  CHECK(printed(infer(net)) == "blocks.0=cpu:0 blocks.1=cpu:1 first=cpu:0 last=cpu:1");
  set_memory_limit(second, 0);
}

TEST_CASE("device map: shared parameters stay together, and so do a module and its own parameters") {
  const Devices devices(2);
  struct Tied : nn::Layer<Tied> {
    nn::Linear a{{.in = 4, .out = 4}}, b{{.in = 4, .out = 4}}, c{{.in = 4, .out = 4}};
    Tied() { c.weight = a.weight; }
    Variable forward(const Variable& x) { return c(b(a(x))); }
    void fields(nn::Fields& f) override { f("a", a)("b", b)("c", c); }
  } tied;
  const Placement plan = infer(tied, "balanced", {.max_memory = {{"cpu:0", 1000}, {"cpu:1", 1000}}});
  CHECK(printed(plan) == "a=cpu:0 b=cpu:1 c=cpu:0");
  CHECK(plan.held.at("cpu:0") == 80 + 16);  // the shared weight counts once
  {                                         // a file contains a shared parameter once, under one of its names
    manual_seed(1);
    const Tensor x = randn({2, 4}), expected = (NoGrad(), tied(x).tensor());
    nn::State state = tied.state();
    state[0].first = "c.weight";
    const testing::TempDir folder;
    const std::string file = folder / "tied.safetensors";
    data::save_safetensors(file, state);
    for (const auto& p : tied.parameters()) p.tensor().fill_(0);
    const NoGrad scope;
    for (const char* place : {"cpu:1", "disk"}) {
      const auto dispatched =
          device_map::dispatch(tied, infer(tied, DeviceMap{{"", place}, {"b", "cpu:0"}}), {.weights = file});
      CHECK(all(eq(tied(x).tensor().to(cpu), expected)).item<bool>());
      // the shared weight is loaded twice, because b runs between a and c
      CHECK(dispatched.bytes_loaded() == (*place == 'd' ? 96 + 64 : 0));
    }
  }
  CHECK_ERROR(infer(tied, DeviceMap{{"", "cpu:0"}, {"c", "cpu:1"}}),
              "a and c share a parameter: expected one place for both, got cpu:0 and cpu:1");

  nn::GPT gpt({.vocab = 11, .context = 8, .layers = 3, .width = 8, .heads = 2});
  const Placement mapped = infer(gpt, "auto", {.max_memory = {{"cpu:0", "1MiB"}, {"cpu:1", "1 MiB"}}});
  CHECK(printed(mapped) ==
        "blocks.0=cpu:0 blocks.1=cpu:1 blocks.2=cpu:1 head=cpu:0 norm=cpu:1 positions=cpu:0 tokens=cpu:0");
  CHECK(contains(
      message([&] {
        infer(gpt, DeviceMap{{"", "cpu:0"}, {"positions", "cpu:1"}});
      }),
      "GPT reads these itself: expected one place for tokens.weight and positions.weight, got cpu:0 and cpu:1"));
  CHECK_ERROR(infer(gpt, DeviceMap{{"", "cpu:0"}, {"blocks.1.mlp", "cpu:1"}}),
              "blocks.1 must not be split: expected one place for");
  const std::string text = mapped.text();
  for (const char* line : {"(model's own)", "blocks.2", "cpu:1", "all"}) CHECK(contains(text, line));
}

TEST_CASE("device map: maps by hand, and Errors for wrong ones") {
  const Devices devices(2);
  Net net;
  CHECK(printed(infer(net, DeviceMap{{"", "disk"}, {"blocks", "cpu"}, {"blocks.1", "cpu:1"}})) ==
        "blocks.0=cpu blocks.1=cpu:1 first=disk last=disk");
  CHECK(infer(net, DeviceMap{{"", "disk"}, {"blocks.1", "cpu:1"}}).main == second);
  CHECK(infer(net, DeviceMap{{"", "disk"}}).main == cpu);
  CHECK(infer(net, DeviceMap{{"", Device{}}}).places[0].name == "cpu:0");

  const std::pair<DeviceMap, const char*> rows[] = {
      {{{"", "cpu:0"}, {"block.1", "cpu:1"}}, "Net has no module or parameter 'block.1'; did you mean blocks.1?"},
      {{{"first", "cpu:0"}, {"blocks.0", "cpu:1"}, {"last.weight", "cpu"}},
       "expected a place for every parameter, got none for blocks.1.a.weight, blocks.1.a.bias, blocks.1.b.weight, "
       "blocks.1.b.bias, last.bias"},
      {{}, "expected a place for every parameter"},
      {{{"", "cpu:0"}, {"first.weight", "cpu:1"}},
       "first must not be split: expected one place for first.weight and first.bias, got cpu:1 and cpu:0"},
      {{{"", "cpu:2"}}, "expected one of the devices cpu:0, cpu:1, got cpu:2"},
  };
  for (const auto& [map, text] : rows) CHECK_ERROR(infer(net, map), text);
  const device_map::DeviceMapOptions tight{.max_memory = {{"cpu:0", 479}}};  // the model has 480 bytes
  CHECK_ERROR(infer(net, DeviceMap{{"", "cpu:0"}}, tight),
              "the map puts 480 bytes on cpu:0, max_memory is 479, 1 too few");
  CHECK_ERROR(infer(net, DeviceMap{{"", "cpu:0"}, {"last", "disk"}}, tight),
              "the map puts 480 bytes on cpu:0, 80 of them to run what is elsewhere, max_memory is 479, 1 too few");
  CHECK_ERROR(device_map::Location("dsk"),
              "expected a device (cpu:0, cuda:0), cpu (host memory) or disk, got 'dsk'; did you mean disk?");
  CHECK_ERROR(infer(net, "balance"),
              "expected auto, balanced, balanced_low_0 or sequential, got 'balance'; did you mean balanced?");
  CHECK_ERROR(infer(net, "auto", {.max_memory = {{"cpu", 100}}}), "expected at least one device in max_memory");
  CHECK_ERROR(infer(net, "auto", {.max_memory = {{"cpu:5", 100}}}), "got cpu:5");
  nn::ReLU empty;
  CHECK_ERROR(infer(empty), "expected a model with parameters, got ReLU without any");
}

TEST_CASE("device map: pictures, and the one in README.md") {
  const Devices devices(3);
  Net net;
  for (const DeviceMap& map :
       {DeviceMap{{"", "cpu:1"}}, DeviceMap{{"", "disk"}},
        DeviceMap{{"first", "cpu"}, {"blocks", "cpu:0"}, {"blocks.1", "cpu:2"}, {"last", "disk"}}}) {
    const Placement plan = infer(net, map);
    const std::string svg = draw_svg(plan);
    CHECK((svg.starts_with("<svg") && svg.ends_with("</svg>\n")));
    for (const auto& [place, bytes] : plan.held) CHECK(contains(svg, str(bytes, " bytes")));
    CHECK(contains(svg, "kept free: 80") == (plan.reserved > 0));
    size_t boxes = 0;
    for (size_t at = svg.find("<rect x="); at != svg.npos; at = svg.find("<rect x=", at + 1)) ++boxes;
    CHECK(boxes == 6 + size_t(plan.reserved > 0));
  }
  nn::GPT gpt({.vocab = 65, .context = 32, .layers = 6, .width = 24, .heads = 2});
  const Placement plan = infer(gpt, "auto", {.max_memory = {{"cpu:0", "64KiB"}, {"cpu:1", "40KiB"}, {"cpu", "30KiB"}}});
  const std::filesystem::path extension = std::filesystem::path(golden_folder()).parent_path().parent_path();
  CHECK_MESSAGE(data::read_file((extension / "images/device_map.svg").string(), 1 << 20) == draw_svg(plan),
                "images/device_map.svg is out of date; draw it again: LOCKSTEP_CPU_DEVICES=2 examples/device_map auto "
                "cpu:0=64KiB cpu:1=40KiB cpu=30KiB --svg FILE");
}

TEST_CASE("device map: bytes as people write them") {
  using Row = std::pair<const char*, int64_t>;
  for (const auto& [text, bytes] :
       {Row("0", 0), Row("17", 17), Row("10GiB", int64_t(10) << 30), Row("500 MB", 500'000'000), Row("1.5KiB", 1536),
        Row("1e9", 1'000'000'000), Row("2TB", 2'000'000'000'000)})
    CHECK(device_map::Bytes(text).count == bytes);
  for (const char* bad : {"", "GiB", "10 GB free", "-1", "1e30", "nan", "inf"})
    CHECK_ERROR(device_map::Bytes{bad}, "expected bytes such as");
}
