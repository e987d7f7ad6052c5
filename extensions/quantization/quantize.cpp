// Quantisation of a model's weights, and loading of quantised states. See quantize.h.
#include "extensions/quantization/quantize.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <sstream>

#include "base/classic_text.h"
#include "base/suggest.h"
#include "nn/cut.h"
#include "nn/init.h"
#include "nn/named_fields.h"

namespace lockstep::nn {
namespace {

constexpr const char *codes_end = ".weight.codes", *scales_end = ".weight.scales", *metadata_key = "quantization";

/// A weight that is quantised or can be.
struct WeightPlace {
  std::string name;  // the module's name
  Variable* weight;
  Attachment* attached;
  bool tied = false;
};

std::vector<WeightPlace> find_weights(Module& model, const std::vector<std::string>& skip = {}) {
  std::vector<WeightPlace> places;
  std::set<const Module*> visited;
  std::set<std::string> skipped;
  const std::function<void(Module&, const std::string&)> visit = [&](Module& module, const std::string& name) {
    for (const std::string& end : skip)
      if (name == end || name.ends_with("." + end)) return void(skipped.insert(end));
    if (!visited.insert(&module).second) return;
    if (auto* const linear = dynamic_cast<Linear*>(&module))
      return places.push_back({name, &linear->weight, &linear->attached});
    if (auto* const head = dynamic_cast<Head*>(&module))
      return places.push_back({name, &head->weight, &head->attached});
    for (auto& [child, below] : module.children()) visit(*below, joined(name, child));
  };
  visit(model, "");
  std::set<const void*> tables;
  std::vector<std::string> known;
  for (auto& [name, below] : model.named_modules()) {
    if (auto* const table = dynamic_cast<Embedding*>(below)) tables.insert(table->weight.impl().get());
    if (!name.empty()) known.push_back(name.substr(name.rfind('.') + 1));
  }
  for (WeightPlace& place : places) place.tied = tables.count(place.weight->impl().get()) > 0;
  for (const std::string& end : skip)
    LOCKSTEP_CHECK(skipped.count(end) || end == "head" || end == "tokens",
                   "[quantize] expected skip to name modules of this ", model.kind(), ", got '", end, "'",
                   suggestion(end, known));
  return places;
}

int64_t parameter_bytes(Module& model) {
  int64_t bytes = 0;
  for (const Variable& p : model.parameters()) bytes += p.numel() * size_of(p.dtype());
  return bytes;
}

double euclidean(const Tensor& x) { return std::sqrt(sum_squares(x, {}, false, f64).item()); }

void put_codes(const WeightPlace& place, Quantized q, const QuantMatmulArgs& matmul_args) {
  place.attached->store = std::make_shared<QuantizedWeight>(q, matmul_args, place.weight->dtype());
  *place.weight = place.attached->store->weight();
}

}  // namespace

QuantizedWeight::QuantizedWeight(const Quantized& weight, const QuantMatmulArgs& matmul_args, DType dtype)
    : codes(weight.codes),
      scales(weight.scales),
      format(weight.format),
      in(weight.in),
      matmul_args(matmul_args),
      dtype(dtype) {}

Quantized QuantizedWeight::here() const {
  Quantized q{.format = format, .codes = codes.tensor(), .scales = scales.tensor(), .out = codes.size(0)};
  const int64_t groups = (in + quant_group - 1) / quant_group, left = format == QuantFormat::row8 ? 0 : scales.size(1);
  q.in = format != QuantFormat::group4 ? codes.size(1) : left == groups ? in : left * quant_group;
  return q;
}

Variable QuantizedWeight::weight() const { return handle_of(here(), matmul_args, dtype); }

void QuantizedWeight::check_cut(const Cut& cut, int ranks, const std::string& where) const {
  LOCKSTEP_CHECK(cut.kind != Cut::Kind::rows || format == QuantFormat::row8 || in % (ranks * quant_group) == 0, where,
                 ": expected a ", name_of(format), " weight whose number of inputs is a multiple of ", ranks,
                 " ranks x ", quant_group, ", got ", in, " inputs; quantise it by row8");
}

const QuantizedWeight* quantized_weight(const Attachment& attached) {
  return dynamic_cast<const QuantizedWeight*>(attached.store.get());
}

QuantizeOptions quantize_options(const std::string& name) {
  if (constexpr std::string_view with_head = ",head"; name.ends_with(with_head)) {
    QuantizeOptions o = quantize_options(name.substr(0, name.size() - with_head.size()));
    std::erase(o.skip, "head");
    return o;
  }
  for (const QuantFormat format : {QuantFormat::row8, QuantFormat::group8, QuantFormat::group4})
    if (name == name_of(format)) return {.format = format};
  if (name == "dynamic") return {.format = QuantFormat::row8, .dynamic = true};
  if (name == "llm_int8") return {.format = QuantFormat::row8, .dynamic = true, .threshold = 6};
  fail(str("expected a quantisation row8, group8, group4, dynamic or llm_int8, got '", name, "'",
           suggestion(name, {"row8", "group8", "group4", "dynamic", "llm_int8"})));
}

std::string QuantizeReport::text() const {
  const auto worst = std::ranges::max_element(relative_error, {}, [](const auto& entry) { return entry.second; });
  std::string out = str(layers, " quantised weights, parameters ",
                        format("%.3g MB -> %.3g MB", double(bytes_before) / 1e6, double(bytes_after) / 1e6));
  if (worst != relative_error.end())
    out += format(", largest error %.3g %% (", worst->second * 100) + worst->first + ")";
  for (const std::string& note : notes) out += "\n" + note;
  return out;
}

QuantizeReport quantize(Module& model, const QuantizeOptions& o) {
  LOCKSTEP_CHECK(!o.dynamic || o.format == QuantFormat::row8, "[quantize] expected format row8 with dynamic, got ",
                 name_of(o.format));
  LOCKSTEP_CHECK(o.threshold >= 0 && (o.threshold == 0 || o.dynamic),
                 "[quantize] expected a threshold >= 0, and 0 unless dynamic is set, got ", o.threshold);
  const std::vector<WeightPlace> places = find_weights(model, o.skip);
  LOCKSTEP_CHECK(!places.empty(), "[quantize] expected a ", model.kind(),
                 " with weights to quantize, found none: all are skipped; shorten `skip`");
  for (const WeightPlace& place : places) {
    const Variable& w = *place.weight;
    LOCKSTEP_CHECK(!place.attached->store, "[quantize] ", place.name,
                   " is quantised already; load the floating weights to choose another format");
    LOCKSTEP_CHECK(!place.attached->place, "[quantize] ", place.name,
                   " is sharded already; quantise before tensor parallelism");
    LOCKSTEP_CHECK(!w.tensor().storage()->is_empty() || is_built_empty(w), "[quantize] ", place.name,
                   ": expected a whole weight; it is sharded by ZeRO or not on this rank, so quantise before that");
    LOCKSTEP_CHECK(w.dim() == 2 && w.numel() > 0, "[quantize] ", place.name, ": expected a weight (out, in), got ",
                   w.shape(), "; name it in skip");
  }
  const NoGrad no_grad;
  const MemoryScope scope(Memory::parameter);
  QuantizeReport report{.bytes_before = parameter_bytes(model)};
  for (const WeightPlace& place : places) {
    const Tensor w = is_built_empty(*place.weight) ? start_of(*place.weight) : place.weight->tensor();
    const Quantized q = quantize(w, o.format);
    const Tensor wide = w.to(f32);
    const double size = euclidean(wide);
    report.relative_error[place.name + ".weight"] = size > 0 ? euclidean(sub(wide, dequantize(q))) / size : 0;
    if (place.tied) report.notes.push_back(place.name + ": a quantised copy; the table that it was tied to is kept");
    put_codes(place, q, {.dynamic = o.dynamic, .threshold = o.threshold});
    ++report.layers;
  }
  report.bytes_after = parameter_bytes(model);
  return report;
}

bool is_quantized(Module& model) { return !quantized_metadata(model).empty(); }

std::map<std::string, std::string> quantized_metadata(Module& model) {
  for (const WeightPlace& place : find_weights(model)) {
    const QuantizedWeight* const q = quantized_weight(*place.attached);
    if (!q) continue;
    std::string text(name_of(q->format));
    if (q->matmul_args.dynamic) text += ",dynamic";
    if (q->matmul_args.threshold > 0) text += str(",threshold=", q->matmul_args.threshold);
    return {{metadata_key, text}};
  }
  return {};
}

void load_quantized(Module& model, const State& state, const std::map<std::string, std::string>& metadata) {
  QuantMatmulArgs matmul_args;
  if (const auto found = metadata.find(metadata_key); found != metadata.end()) {
    std::stringstream words(found->second);
    for (std::string word; std::getline(words, word, ',');) {
      if (word == "dynamic") matmul_args.dynamic = true;
      else if (word.starts_with("threshold=")) {
        const auto threshold = read_number<double>(std::string_view(word).substr(10));
        LOCKSTEP_CHECK(threshold, "[load_quantized] expected a number in ", metadata_key, ", got '", word,
                       "'; save it with quantized_metadata()");
        matmul_args.threshold = *threshold;
      } else quantize_options(word);  // raises unless it is a format
    }
  }
  std::map<std::string, Tensor> given(state.begin(), state.end());
  struct Found {
    WeightPlace place;
    Quantized codes;
    Variable before;
  };
  std::vector<Found> found;
  for (const WeightPlace& place : find_weights(model)) {
    const auto codes = given.find(place.name + codes_end), scales = given.find(place.name + scales_end);
    if (codes == given.end() || scales == given.end() || place.attached->store) continue;
    LOCKSTEP_CHECK(!place.attached->place, "[load_quantized] ", place.name,
                   " is sharded already; load before tensor parallelism");
    const Device device = place.weight->device();
    const Tensor& c = codes->second;
    const QuantFormat format = c.dtype() == u8             ? QuantFormat::group4
                               : scales->second.dim() == 1 ? QuantFormat::row8
                                                           : QuantFormat::group8;
    Quantized q{.format = format, .out = place.weight->size(0), .in = place.weight->size(1)};
    q.codes = c.to(device).clone(), q.scales = scales->second.to(device).clone();
    handle_of(q);  // raises if the shapes do not fit
    found.push_back({place, q, *place.weight});
  }
  const MemoryScope scope(Memory::parameter);
  for (const auto& [place, codes, before] : found) put_codes(place, codes, matmul_args);
  try {
    model.load_state(state);
  } catch (...) {
    for (const auto& [place, codes, before] : found) *place.weight = before, place.attached->store = nullptr;
    throw;
  }
}

}  // namespace lockstep::nn
