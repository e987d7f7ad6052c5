// Models that run by a device map: the bits of one device, memory limits that the ledger enforces, parts that are
// loaded from host memory and disk.
#include <doctest/doctest.h>

#include <filesystem>
#include <span>

#include "data/safetensors.h"
#include "extensions/device_map/dispatch.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tensor/memory.h"
#include "tensor/random.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using device_map::DeviceMap;
using device_map::dispatch;
using device_map::infer;
using testing::TempDir;

namespace {

nn::GPT make_gpt(bool tied = true) {
  manual_seed(1);
  return nn::GPT({.vocab = 29, .context = 16, .layers = 4, .width = 16, .heads = 2, .tied = tied});
}
Tensor tokens() {
  manual_seed(2);
  return randint(0, 29, {2, 16});
}
/// Returns a text with `count` more tokens, each the likeliest. A text longer than the context loses its first tokens.
std::vector<int64_t> continued(nn::GPT& gpt, std::vector<int64_t> text, int64_t count) {
  std::vector<nn::KvCache> caches(gpt.blocks.items.size());
  for (size_t read = 0; count > 0; --count) {
    if (int64_t(text.size()) > gpt.o.context) {
      text.erase(text.begin());
      caches.assign(caches.size(), {});
      read = 0;
    }
    const Tensor scores = gpt.next_scores({std::span<const int64_t>(text).subspan(read)}, {&caches}).tensor();
    read = text.size();
    text.push_back(argmax(scores.to(cpu), 1).to_vector<int64_t>()[0]);
  }
  return text;
}
bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && all(eq(a.to(cpu), b.to(cpu))).item<bool>();
}

int64_t parameters_on(Device device) { return device_memory(device).category[int(Memory::parameter)].current; }
int64_t max_parameters_on(Device device) { return device_memory(device).category[int(Memory::parameter)].peak; }

}  // namespace

TEST_CASE("device map: logits, loss and generated text are bit-identical to one device, wherever parts are") {
  const Devices devices(3);
  const TempDir folder;
  for (const bool tied : {true, false}) {
    Tensor logits;
    std::vector<int64_t> text;
    const std::vector<int64_t> prompt = tokens().narrow(0, 0, 1).narrow(1, 0, 3).to_vector<int64_t>();
    {
      auto gpt = make_gpt(tied);
      gpt.eval();
      const NoGrad scope;
      logits = gpt(tokens()).tensor();
      text = continued(gpt, prompt, 20);
      data::save_safetensors(folder / "gpt.safetensors", gpt.state());
    }
    const DeviceMap maps[] = {
        {{"", "cpu:1"}},
        {{"", "cpu:0"}, {"blocks.1", "cpu:1"}, {"blocks.2", "cpu:2"}, {"norm", "cpu:2"}},
        {{"", "cpu:0"}, {"blocks", "cpu"}},
        {{"", "cpu:2"}, {"blocks.0", "disk"}, {"blocks.2", "cpu"}, {"blocks.3", "cpu:0"}},
        {{"", "cpu"}, {"norm", "cpu:1"}},
        {{"", "disk"}},
    };
    for (const DeviceMap& map : maps) {
      for (const bool from_file : {false, true}) {
        auto gpt = make_gpt(tied);
        gpt.eval();
        if (from_file)
          for (const Variable& p : gpt.parameters()) p.tensor().fill_(7);
        const auto plan = infer(gpt, map);
        INFO(plan.text(), ", from a file: ", from_file, ", tied: ", tied);
        {
          auto dispatched = dispatch(gpt, plan,
                                     {.weights = from_file ? folder / "gpt.safetensors" : "",
                                      .offload_folder = from_file ? "" : folder.str()});
          CHECK(folder.files() == 1);  // the offload file is already unlinked
          const NoGrad scope;
          for (int run = 0; run < 2; ++run) CHECK(same(gpt(tokens()).tensor(), logits));
          const auto own = dispatched.hold();
          const Device here = plan.places[0].is_device() ? plan.places[0].device() : plan.main;
          CHECK(gpt(tokens()).device() == here);
          CHECK(continued(gpt, prompt, 20) == text);
        }
        // Afterwards, parts from host memory are back in the model; parts from disk raise an error that says so.
        if (std::ranges::any_of(plan.places, [](const auto& place) { return place.name == "disk"; }))
          CHECK(contains(message([&] {
                           for (const Variable& p : gpt.parameters()) p.tensor().clone();
                         }),
                         "a device map"));
        else CHECK(all_finite(gpt.blocks[0].norm1.weight.tensor()));
      }
    }
  }
}

TEST_CASE("device map: the ledger of each device stays below its limit, from a file, without ever holding the whole") {
  const Devices devices(2);
  const TempDir folder;
  Tensor logits;
  int64_t full = 0;
  {
    auto gpt = make_gpt();
    const NoGrad scope;
    logits = gpt(tokens()).tensor();
    for (const Variable& p : gpt.parameters()) full += p.numel() * 4;
    data::save_safetensors(folder / "gpt.safetensors", gpt.state());
  }
  struct Row {
    const char* mode;
    int64_t first, next, host;
  };
  for (const Row& row : {Row{"auto", full, full, 0}, Row{"balanced_low_0", full, full / 2, 0},
                         Row{"sequential", full / 2, full * 6 / 10, 0}, Row{"auto", full / 2, full / 4, full / 4},
                         Row{"sequential", full * 4 / 10, 0, 0}, Row{"auto", full * 4 / 10, full / 4, 0}}) {
    INFO(row.mode, " with ", row.first, ", ", row.next, " and ", row.host, " bytes");
    const int64_t before_first = parameters_on(cpu), before_second = parameters_on(second);
    reset_peak_device_memory(cpu);
    std::optional<nn::GPT> gpt;
    {
      const nn::BuildEmpty scope;
      gpt.emplace(nn::GPT::Options{.vocab = 29, .context = 16, .layers = 4, .width = 16, .heads = 2});
    }
    CHECK(parameters_on(cpu) == before_first);
    CHECK(max_parameters_on(cpu) == before_first);
    reset_peak_device_memory(cpu);
    reset_peak_device_memory(second);
    const auto plan =
        infer(*gpt, row.mode, {.max_memory = {{"cpu:0", row.first}, {"cpu:1", row.next}, {"cpu", row.host}}});
    CAPTURE(plan.text());
    auto dispatched = dispatch(*gpt, plan, {.weights = folder / "gpt.safetensors"});
    const auto held = [&](const char* place) { return plan.held.count(place) ? plan.held.at(place) : 0; };
    CHECK(parameters_on(cpu) - before_first == held("cpu:0"));
    CHECK(parameters_on(second) - before_second == held("cpu:1"));
    CHECK(device_memory(cpu).category[int(Memory::offload)].current == 0);
    CHECK(memory_report().category[int(Memory::offload)].current >= held("cpu"));
    const NoGrad scope;
    for (int run = 0; run < 3; ++run) CHECK(same((*gpt)(tokens()).tensor(), logits));
    CHECK(parameters_on(cpu) - before_first == held("cpu:0"));  // every loaded part has been dropped
    CHECK(max_parameters_on(cpu) - before_first == held("cpu:0") + plan.reserved);
    CHECK(max_parameters_on(second) - before_second == held("cpu:1"));
    CHECK(held("cpu:0") + plan.reserved <= row.first);
    CHECK(held("cpu:1") <= row.next);
    CHECK(dispatched.bytes_loaded() == 3 * (full - held("cpu:0") - held("cpu:1")));
    CHECK((dispatched.loads() > 0) == (plan.reserved > 0));
  }
}

TEST_CASE("device map: a limit on a device is kept by every allocation") {
  const Devices devices(2);
  const int64_t held = device_memory(second).total.current;
  set_memory_limit(second, held + 4000);
  CHECK(memory_limit(second) == held + 4000);
  const Tensor filled = zeros({1000}, {.device = second});
  CHECK_ERROR(zeros({2}, {.device = second}), str("[memory] cpu:1 is limited to ", held + 4000, " bytes: ", held + 4000,
                                                  " are held, and 8 more were wanted, 8 too many"));
  zeros({5000});  // other devices have no limit
  {
    const MemoryScope scope(Memory::offload);  // host memory has no limit either
    zeros({5000}, {.device = second});
  }
  set_memory_limit(second, 0);
  zeros({5000}, {.device = second});
  CHECK_ERROR(set_memory_limit(second, -1), "expected bytes >= 0 for cpu:1, got -1");
}

TEST_CASE("device map: training over devices is bit-identical to one; from disk or host memory it is rejected") {
  const Devices devices(3);
  const auto train = [](const std::optional<DeviceMap>& map) {
    auto gpt = make_gpt();
    optim::AdamW optimizer(gpt.parameters(), {.lr = 1e-2});
    std::optional<device_map::Dispatched> dispatched;
    if (map) dispatched.emplace(dispatch(gpt, infer(gpt, *map)));
    manual_seed(3);
    for (int step = 0; step < 3; ++step) {
      const Variable logits = gpt(tokens());
      cross_entropy(logits.view({-1, 29}), tokens().view({-1}).to(logits.device())).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    nn::State state;
    for (const auto& [name, tensor] : gpt.state()) state.emplace_back(name, tensor.to(cpu).clone());
    return state;
  };
  const nn::State plain = train({});
  for (const DeviceMap& map :
       {DeviceMap{{"", "cpu:1"}}, DeviceMap{{"", "cpu:0"}, {"blocks.2", "cpu:1"}, {"blocks.3", "cpu:2"}}}) {
    const nn::State mapped = train(map);
    for (size_t i = 0; i < plain.size(); ++i) {
      CAPTURE(plain[i].first);
      CHECK(same(plain[i].second, mapped[i].second));
    }
  }
  const TempDir folder;
  for (const char* place : {"disk", "cpu"}) {
    auto gpt = make_gpt();
    auto dispatched =
        dispatch(gpt, infer(gpt, DeviceMap{{"", "cpu:0"}, {"blocks.3", place}}), {.offload_folder = folder.str()});
    CHECK_ERROR(
        gpt(tokens()),
        str("blocks.3 lies ", *place == 'd' ? "on disk" : "in host memory",
            " and is dropped after it ran, so backward could not read it: run it under NoGrad, or map it to a device"));
    const NoGrad scope;
    CHECK(gpt(tokens()).defined());
  }
}

TEST_CASE("device map: blocks that are cut, chains, buffers, parts without parameters, and modules that fail") {
  const Devices devices(3);
  struct Cut : nn::Layer<Cut> {
    nn::Sequential chain{nn::Linear({.in = 4, .out = 6}), nn::ReLU(), nn::Linear({.in = 6, .out = 6}),
                         nn::BatchNorm({.channels = 6}), nn::ReLU()};
    nn::Linear a{{.in = 6, .out = 6}}, b{{.in = 6, .out = 6}};
    Variable scale = parameter({6}, 0.5);
    bool fails = false;
    Variable forward(const Variable& x) {
      const Variable h = chain(x);
      if (fails) fail("[Cut] told to fail");
      return mul(add(h, b(relu(a(h)))), scale);
    }
    void fields(nn::Fields& f) override { f("chain", chain)("a", a)("b", b)("scale", scale); }
  };
  manual_seed(4);
  const Tensor x = randn({5, 4});
  Tensor expected;
  nn::State state;
  {
    manual_seed(5);
    Cut net;
    net.eval();
    const NoGrad scope;
    expected = net(x).tensor();
    for (const auto& [name, tensor] : net.state()) state.emplace_back(name, tensor.clone());
  }
  const TempDir folder;
  for (const DeviceMap& map :
       {DeviceMap{{"", "cpu:0"}, {"chain.2", "cpu:1"}, {"b", "cpu:2"}},
        DeviceMap{{"", "cpu:1"}, {"chain.0", "cpu:2"}, {"chain.3", "cpu:0"}}, DeviceMap{{"", "disk"}, {"a", "cpu:2"}},
        DeviceMap{{"scale", "cpu"}, {"chain", "disk"}, {"a", "cpu:1"}, {"b", "cpu:2"}}}) {
    Cut net;
    net.load_state(state);
    net.eval();
    const auto plan = infer(net, map);
    CAPTURE(plan.text());
    auto dispatched = dispatch(net, plan, {.offload_folder = folder.str()});
    const NoGrad scope;
    CHECK(same(net(x).tensor(), expected));
    const int64_t held = parameters_on(plan.main);
    net.fails = true;
    CHECK_ERROR(net(x), "told to fail");
    CHECK(parameters_on(plan.main) == held);  // also dropped after an error
    net.fails = false;
    CHECK(same(net(x).tensor(), expected));
    CHECK_ERROR(dispatch(net, plan, {.offload_folder = folder.str()}),
                plan.reserved > 0 ? "has no values" : "by another device map");
    CHECK_ERROR((void)dispatched.hold("nothing"), "expected the name of a module with parameters, got 'nothing'");
  }
}

TEST_CASE("device map: files that are missing, damaged or of another model") {
  const Devices devices(2);
  const TempDir folder;
  auto gpt = make_gpt();
  const auto plan = infer(gpt, DeviceMap{{"", "cpu:0"}, {"blocks.1", "disk"}});
  const auto error = [&](const device_map::DispatchOptions& options) {
    return message([&] { dispatch(gpt, plan, options); });
  };
  CHECK(contains(error({}),
                 "the plan puts 12 tensors on disk (blocks.1.norm1.weight first): give a file that has them (weights), "
                 "or an offload_folder"));
  CHECK(contains(error({.weights = folder / "none.safetensors"}), "none.safetensors"));
  CHECK(contains(error({.offload_folder = folder / "none"}), "none"));
  nn::State state = gpt.state();
  state.erase(state.begin() + 3);
  state[5].second = zeros({3, 5});
  data::save_safetensors(folder / "other.safetensors", state);
  const std::string text = error({.weights = folder / "other.safetensors"});
  CHECK(contains(text, "does not fit this GPT; nothing was changed"));
  CHECK(contains(text, ": missing"));
  CHECK(contains(text, "got (3, 5)"));
  data::save_safetensors(folder / "whole.safetensors", gpt.state());
  std::filesystem::resize_file(folder / "whole.safetensors",
                               std::filesystem::file_size(folder / "whole.safetensors") - 100);
  CHECK(contains(error({.weights = folder / "whole.safetensors"}), "whole.safetensors"));
  nn::Linear other({.in = 3, .out = 2});
  CHECK_ERROR(dispatch(other, plan, {}), "expected a plan of this Linear, got one with");
  {
    const nn::BuildEmpty scope;
    other = nn::Linear({.in = 3, .out = 2});
  }
  // A parameter that was built without memory gets its initial values directly at its place.
  CHECK((nn::is_built_empty(other.weight) && !nn::is_built_empty((dispatch(other, infer(other), {}), other.weight))));
  CHECK(folder.files() == 2);
  const NoGrad scope;
  CHECK(gpt(tokens()).defined());  // the model still runs after failed calls
}
