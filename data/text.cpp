// Datasets and random windows of text for language models. See text.h.
#include "data/text.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "data/draw.h"
#include "data/files.h"
#include "tensor/ops.h"
#include "trace/trace.h"

namespace lockstep::data {
namespace {

/// The windows that begin at `starts`, and the same windows moved on by one token.
Example windows(const Tokens& tokens, std::span<const int64_t> starts, int64_t context) {
  const Shape shape{int64_t(starts.size()), context};
  Example batch{empty(shape, {.dtype = i64, .device = cpu}), empty(shape, {.dtype = i64, .device = cpu})};
  int64_t* input = batch.input.data<int64_t>();
  int64_t* target = batch.target.data<int64_t>();
  for (const int64_t start : starts) {
    input = tokens.copy(start, context, input);
    target = tokens.copy(start + 1, context, target);
  }
  check_mapped_files();
  return batch;
}

}  // namespace

Tensor read_bytes(const std::string& path, int64_t max_bytes) {
  const auto file = MappedFile::open(path, max_bytes);
  LOCKSTEP_CHECK(file->size() > 0, "[read_bytes] expected text, got an empty file: ", path, "; give a file with text");
  return Tensor(Storage::adopt(file->data(), file->size(), cpu, [file] {}), 0, {file->size()}, {1}, u8);
}

TextDataset::TextDataset(Tokens tokens, TextOptions options) : tokens_(std::move(tokens)), options_(options) {
  LOCKSTEP_CHECK(options.context >= 1 && options.stride >= 1, "[TextDataset] expected context and stride >= 1, got ",
                 options.context, " and ", options.stride);
  LOCKSTEP_CHECK(tokens_.size() > options.context, "[TextDataset] expected more tokens than the context of ",
                 options.context, ", got ", tokens_.size(), "; give more text, or a smaller context");
}

Example TextDataset::get(int64_t index) const {
  check_index("TextDataset", index, size());
  const int64_t start = index * options_.stride;
  const Example one = windows(tokens_, {&start, 1}, options_.context);
  return {one.input[0], one.target[0]};
}

std::optional<Example> TextDataset::get_batch(std::span<const int64_t> indices) const {
  std::vector<int64_t> starts;
  for (const int64_t index : indices) {
    check_index("TextDataset", index, size());
    starts.push_back(index * options_.stride);
  }
  return windows(tokens_, starts, options_.context);
}

Example TokenBatches::sample(int64_t step, int64_t micro_batch, int64_t batch, int64_t context) const {
  LOCKSTEP_CHECK(step >= 0 && micro_batch >= 0, "[TokenBatches] expected step and micro_batch >= 0, got ", step,
                 " and ", micro_batch);
  LOCKSTEP_CHECK(batch >= 1 && context >= 1, "[TokenBatches] expected batch and context >= 1, got ", batch, " and ",
                 context);
  LOCKSTEP_CHECK(tokens_.size() > context, "[TokenBatches] expected more tokens than the context of ", context,
                 ", got ", tokens_.size(), "; give more text, or a smaller context");
  const trace::Scope scope("sample", trace::Category::data);
  // The XOR makes these draws differ from those of dropout under the same seed.
  Draws draws({.seed = seed_ ^ 0x746f6b656eull, .stream = seed_of(uint64_t(step), uint64_t(micro_batch))});
  std::vector<int64_t> starts;
  for (int64_t row = 0; row < batch; ++row) starts.push_back(draws.below(tokens_.size() - context));
  return windows(tokens_, starts, context);
}

std::pair<Tokens, Tokens> split_text(const Tokens& tokens, double part, int64_t context, const std::string& name) {
  const int64_t all = tokens.size(), first = int64_t(double(all) * (1 - part)), rest = all - first;
  LOCKSTEP_CHECK(first > context && (rest > context || part == 0), name, " has ", all,
                 " tokens: too few, training and validation each need at least ", context + 1,
                 "; give a longer text or a shorter context");
  return {tokens.part(0, first), tokens.part(first, rest)};
}

std::string read_sources(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<fs::path> places{folder};
  for (fs::path at = fs::current_path(); at.has_relative_path(); at = at.parent_path()) places.push_back(at);
  const auto root = std::find_if(places.begin(), places.end(), [](const fs::path& place) {
    return fs::exists(place / "tensor/tensor.h") && fs::exists(place / "README.md");
  });
  LOCKSTEP_CHECK(root != places.end(),
                 "no --text was given and the repository's own sources were not found; give --text FILE");
  std::vector<fs::path> files;
  for (const char* below : {"docs", "tensor", "autograd", "nn", "optim", "data", "apps", "examples"}) {
    if (!fs::is_directory(*root / below)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(*root / below)) {
      const std::string extension = entry.path().extension().string();
      if (entry.is_regular_file() && (extension == ".h" || extension == ".cpp" || extension == ".md"))
        files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& file : files) text += read_file(file.string(), int64_t(1) << 30) + "\n";
  return text;
}

}  // namespace lockstep::data
