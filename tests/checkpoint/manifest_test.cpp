// The manifest: round trips and everything that is rejected.
#include <cmath>
#include <functional>
#include <random>

#include "checkpoint/manifest.h"
#include "tests/checkpoint/util.h"

using namespace lockstep;
using namespace lockstep::checkpoints;

namespace {

Manifest example() {
  Manifest m;
  m.id = "0123456789abcdef";
  m.tag = "step-1";
  m.sequence = 7;
  m.world = 2;
  m.plan = "zero3:2x1";
  const std::string hash(64, 'a');
  m.files = {{"rank-00000.safetensors", {100, hash}}, {"rank-00001.safetensors", {90, hash}}};
  m.tensors["w"] = {
      f32,
      {2, 3},
      {{"rank-00000.safetensors", "w[0:4]", 0, 4, 1}, {"rank-00001.safetensors", "w[4:6]", 4, 6, UINT32_MAX}}};
  m.tensors["empty"] = {bf16, {0, 2}, {{"rank-00000.safetensors", "empty", 0, 0, 0}}};
  m.tensors["scalar"] = {f64, {}, {{"rank-00001.safetensors", "scalar", 0, 1, 5}}};
  m.aliases = {{"head", "w"}};
  m.numbers = {{"lr", 0.1}, {"step", int64_t(3)}, {"name", "x"}, {"nan", std::nan("")}};
  m.client_state = data::parse_json(R"({"a": [1, null]})", "test");
  return m;
}

/// The text of the example with one replacement and the right hash.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = to_text(example()).substr(sizeof("{\"blake2b\": \"\",\n") - 1 + 64);
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  text.replace(at, from.size(), to);
  return seal_manifest(text);
}

}  // namespace

TEST_CASE("manifest: there and back") {
  const std::string text = to_text(example());
  const Manifest m = parse_manifest(text, "m");
  CHECK(to_text(m) == text);
  CHECK(m.sequence == 7);
  CHECK(m.tensors.at("w").parts[1].crc == UINT32_MAX);
  CHECK(m.tensors.at("empty").shape == Shape{0, 2});
  CHECK(find_tensor(m, "head") == &m.tensors.at("w"));
  CHECK(find_tensor(m, "none") == nullptr);
  // It is JSON, readable by any parser.
  CHECK(data::parse_json(text, "m").at("blake2b").as_string().size() == 64);
  CHECK(to_text(parse_manifest(to_text(Manifest{.id = "x", .tag = "t"}), "m")) ==
        to_text(Manifest{.id = "x", .tag = "t"}));
}

TEST_CASE("manifest: invalid manifests are rejected") {
  const struct {
    const char* from;
    const char* to;
    const char* expected;
  } rows[] = {
      {"\"lockstep-checkpoint\"", "\"other\"", "m: expected format \"lockstep-checkpoint\", got \"other\""},
      {"\"version\": 1", "\"version\": 2", "expected version 1, got 2: written by another release"},
      {"\"version\": 1", "\"version\": 1, \"more\": 1", "unknown key \"more\""},
      {"\"tag\": \"step-1\"", "\"tag\": \"../up\"", "m: tag: expected letters"},
      {"\"sequence\": 7", "\"sequence\": -1", "m: sequence: expected 0 to"},
      {"\"sequence\": 7", "\"sequence\": 1.5", "m: sequence: expected an integer, got a number"},
      {"\"world\": 2", "\"world\": 0", "m: world: expected 1 to"},
      {"\"plan\": \"zero3:2x1\"", "\"plan\": 3", "m: plan: expected a string, got an integer"},
      {"\"rank-00000.safetensors\": {", "\"../x\": {", "expected plain names, got \"../x\""},
      {"\"rank-00000.safetensors\": {", "\"manifest.json\": {", "expected plain names"},
      {"\"rank-00000.safetensors\": {", "\"rank-7\": {",
       "expected one of the files listed, got \"rank-00000.safetensors\""},
      {"\"bytes\": 100", "\"bytes\": -100", "bytes: expected 8 to"},
      {"\"blake2b\": \"aaaa", "\"blake2b\": \"AAAA", "expected 64 hexadecimal digits"},
      {"\"blake2b\": \"aaaa", "\"blake2b\": \"aaa", "expected 64 hexadecimal digits"},
      {"\"f32\"", "\"f31\"", "m: tensors: w: dtype: expected the name of a dtype, got \"f31\""},
      {"[2, 3]", "[2, -3]", "expected sizes from 0 up, got -3"},
      {"[2, 3]", "[2, 4]", "w: expected parts up to element 8"},
      {"[2, 3]", "[2, 2]", "w: expected part [0, 4) to be called \"w\", got \"w[0:4]\""},
      {"[2, 3]", "[1, 1, 1, 1, 1, 1, 1, 2, 3]", "expected at most 8 dims, got 9"},
      {"[2, 3]", "[4294967296, 4294967296]", "has more elements than 63 bits can count"},
      {"[2, 3]", "[2, \"3\"]", "expected an integer, got a string"},
      {"\"begin\": 4", "\"begin\": 3", "expected parts that follow each other from 0 to 6, got [3, 6) after 4"},
      {"\"begin\": 4", "\"begin\": 5", "got [5, 6) after 4"},
      {"\"w[4:6]\"", "\"w\"", "to be called \"w[4:6]\", got \"w\""},
      {"\"crc32c\": 4294967295", "\"crc32c\": 4294967296", "crc32c: expected 0 to 4294967295"},
      {"\"w\": {\"dtype\"", "\"w[\": {\"dtype\"", "expected names of tensors without '['"},
      {"\"head\": \"w\"", "\"head\": \"v\"", "got \"head\" for \"v\""},
      {"\"head\": \"w\"", "\"scalar\": \"w\"", "got \"scalar\" for \"w\""},
      {"\"lr\": 0.1", "\"lr\": null", "numbers: lr: expected a number, a text, nan, inf or -inf, got null"},
      {"\"lr\": 0.1", "\"lr\": {\"double\": \"NaN\"}", "lr: expected a number, a text, nan, inf or -inf"},
      {"\"lr\": 0.1", "\"lr\": 0.1, \"lr\": 0.2", "key \"lr\" appears twice"},
      {"\"id\": \"0123456789abcdef\", ", "", "expected a key \"id\""},
      {"null]", "nul]", "m:"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.to);
    const std::string text = message([&] { parse_manifest(changed(row.from, row.to), "m"); });
    CAPTURE(text);
    CHECK(text.starts_with("m:"));
    CHECK(contains(text, row.expected));
  }
  const std::string good = to_text(example());
  for (size_t size = 0; size < good.size(); size += 7) CHECK_ERROR(parse_manifest(good.substr(0, size), "m"), "m: ");
  CHECK_ERROR(parse_manifest(good + " ", "m"), "the manifest is damaged");
}

TEST_CASE("manifest: a program's own values are loaded unchanged, also NaN and infinity") {
  std::mt19937_64 random(1);
  const auto below = [&](uint64_t n) { return int64_t(random() % n); };
  const std::function<data::Json(int)> draw = [&](int depth) -> data::Json {
    const double numbers[] = {INFINITY, -INFINITY, NAN, 0.1, -0., 1e300, 5e-324};
    switch (below(depth > 0 ? 7 : 5)) {
      case 0: return {};
      case 1: return below(2) == 0;
      case 2: return int64_t(random());
      case 3: return numbers[below(7)];
      case 4: return "nan";
      case 5: {
        data::Json::Array list;
        for (int64_t i = below(4); i > 0; --i) list.push_back(draw(depth - 1));
        return list;
      }
      default: {
        data::Json::Object members;
        for (int64_t i = below(4); i > 0; --i) members.emplace_back(str("key", i), draw(depth - 1));
        return members;
      }
    }
  };
  // Compared as text, because NaN is not equal to itself.
  const auto text_of_all = [](const data::Json& json) { return finite(json).dump(); };
  for (int i = 0; i < 1000; ++i) {
    Manifest m = example();
    m.client_state = draw(4);
    const Manifest back = parse_manifest(to_text(m), "m");
    CHECK(text_of_all(back.client_state) == text_of_all(m.client_state));
  }
  Manifest m = example();
  m.client_state = data::Json::Object{{"best", INFINITY}, {"all", data::Json::Array{NAN, -INFINITY}}};
  const data::Json back = parse_manifest(to_text(m), "m").client_state;
  CHECK(back.at("best").as_number() == INFINITY);
  CHECK(std::isnan(back.at("all").as_array()[0].as_number()));
  CHECK(back.at("all").as_array()[1].as_number() == -INFINITY);
}
