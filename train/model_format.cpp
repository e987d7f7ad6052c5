// Finds the format of a folder, reads --init, and exports trained models. See model_format.h.
#include "train/model_format.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "train/cli.h"
#include "train/words.h"

namespace lockstep::train {

using data::Json;

namespace {

/// The last element of a list for which `fits` is true; nullptr if there is none.
template <class T, class Fits> const T* last_of(const std::vector<T>& list, const Fits& fits) {
  const auto found = std::find_if(list.rbegin(), list.rend(), fits);
  return found == list.rend() ? nullptr : &*found;
}

/// The format of a tokenizer's folder. For a folder of no known format the first one, whose errors say what is missing.
const TokenizerFormat& tokenizer_format_of(const std::string& folder) {
  const auto& all = tokenizer_formats();
  LOCKSTEP_CHECK(!all.empty(), "[tokenizer] ", folder,
                 ": this build reads no tokenizers' files; configure it with -Dextensions=all");
  const TokenizerFormat* const found = last_of(all, [&](const TokenizerFormat& f) { return f.is_in(folder); });
  return found ? *found : all.front();
}

const ModelFormat& export_format_of(const Start& start) {
  const ModelFormat* const found =
      last_of(model_formats(), [&](const ModelFormat& f) { return f.exports && f.exports(start); });
  LOCKSTEP_CHECK(
      found,
      "[export] this build cannot write the model as a folder of another library; configure it with -Dextensions=all");
  return *found;
}

}  // namespace

void make_changes(nn::GPT& model, const Json& facts, const std::string& where) {
  for (const ModelChange& change : model_changes()) change.apply(model, facts, where);
}

const ModelFormat* model_format_of(const std::string& folder) {
  return last_of(model_formats(), [&](const ModelFormat& f) { return f.is_model(folder); });
}

std::string model_files_help() {
  std::string help;
  for (const ModelFormat& format : model_formats())
    if (format.sizes) help += ", or " + format.sizes_help;
  return help;
}

nn::GPT::Options model_options(const std::string& text, const nn::GPT::Options& usual) {
  for (const ModelFormat& format : model_formats())
    if (format.sizes)
      if (const auto found = format.sizes(text)) return *found;
  return nn::gpt_options(text, usual, model_files_help());
}

std::string tokenizer_help() {
  std::string help;
  for (const TokenizerFormat& format : tokenizer_formats()) help += (help.empty() ? "" : ", or ") + format.help;
  return help.empty() ? help : help + " (default: bytes)";
}

bool has_tokenizer(const std::string& folder) {
  return !folder.empty() && last_of(tokenizer_formats(), [&](const TokenizerFormat& f) { return f.is_in(folder); });
}

std::unique_ptr<data::Tokenizer> load_tokenizer(const std::string& folder) {
  if (folder.empty()) return std::make_unique<data::ByteTokenizer>();
  return tokenizer_format_of(folder).load(folder);
}

std::string tokenizer_identity(const std::string& folder) {
  return folder.empty() ? "bytes" : tokenizer_format_of(folder).identity(folder);
}

std::vector<int64_t> end_tokens(const std::string& folder) {
  return folder.empty() ? std::vector<int64_t>() : tokenizer_format_of(folder).ends(folder);
}

void copy_tokenizer(const std::string& from, const std::string& to) {
  if (!from.empty()) tokenizer_format_of(from).copy(from, to);
}

Start read_start(const std::string& text, const std::string& option) {
  if (text.find(',') == text.npos || std::filesystem::exists(text)) return {text};
  std::vector<std::string> known;
  for (const ModelChange& change : model_changes())
    known.insert(known.end(), change.start_words.begin(), change.start_words.end());
  const auto [folder, words] = parse_words(text, known, option);
  Start start{folder};
  for (const ModelChange& change : model_changes())
    if (change.start) change.start(words, option + " " + text, option, start.changes);
  return start;
}

std::string start_help() {
  std::string help;
  for (const ModelFormat& format : model_formats())
    if (!format.start_help.empty()) help += (help.empty() ? "" : ", or ") + format.start_help;
  if (help.empty()) return help;
  for (const ModelChange& change : model_changes()) help += change.start_help;
  return help;
}

std::unique_ptr<nn::GPT> from_start(const Start& start) {
  const auto can_start = [](const ModelFormat& f) { return !f.start_help.empty(); };
  const ModelFormat* found =
      last_of(model_formats(), [&](const ModelFormat& f) { return can_start(f) && f.is_model(start.folder); });
  if (!found) found = last_of(model_formats(), can_start);  // its error says what is missing
  LOCKSTEP_CHECK(found, start.folder, ": this build cannot start from a folder; configure it with -Dextensions=all");
  return found->load(start.folder, {.dtype = f32, .changes = start.changes}).model;
}

std::string export_help() {
  std::string help;
  for (const ModelFormat& format : model_formats())
    if (format.save) help += (help.empty() ? "write the trained model as " : ", or ") + format.export_help;
  return help;
}

void prepare_export(const TrainJob& job, const Start& start, const std::string& folder) {
  const ModelFormat& format = export_format_of(start);
  prepare_output("--export", folder);
  if (format.prepare_export) format.prepare_export(job, folder);
}

void export_model(const nn::GPT::Options& sizes, const Start& start, const nn::State& state, const std::string& folder,
                  const std::string& tokenizer) {
  export_format_of(start).save(sizes, start, state, folder, tokenizer);
}

}  // namespace lockstep::train
