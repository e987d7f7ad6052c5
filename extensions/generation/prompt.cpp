// Continues a prompt by a language model, and the options of commands that generate. See prompt.h.
#include "extensions/generation/prompt.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/printable.h"
#include "extensions/generation/text_stream.h"
#include "train/language.h"
#include "train/option_group.h"
#include "train/options.h"

namespace lockstep::train {

std::string continue_prompt(const LanguageModel& m, const std::string& prompt, bool by_ids, nn::Generation generation,
                            std::ostream* out) {
  const auto tokenizer = by_ids ? nullptr : m.tokenizer();
  std::optional<data::Decoder> decoder;
  std::vector<int64_t> ids;
  if (by_ids) ids = integers("--ids", prompt);
  else {
    decoder.emplace(*tokenizer, false);
    for (const int32_t id : tokenizer->encode(prompt)) {
      ids.push_back(id);
      decoder->push(id);  // otherwise the first new token would be decoded as the start of a text
    }
    decoder->flush();
  }
  LOCKSTEP_CHECK(!ids.empty(), "--prompt: expected at least one token, got none; give a longer text");
  LOCKSTEP_CHECK(!by_ids || generation.stop.empty(), "--stop: expected a text prompt, got --ids; leave one out");
  generation.text = [&](int64_t id) { return std::string(tokenizer->token_bytes(int32_t(id))); };
  if (tokenizer)
    for (const int64_t id : tokenizer->unknown(m.model->o.vocab)) generation.suppress_tokens.push_back(id);
  // The folder's end-of-text tokens can lie beyond the vocabulary, if a small model uses a large model's tokenizer.
  for (const int64_t id : m.ends)
    if (id < m.model->o.vocab) generation.eos_token_id.push_back(id);
  std::string made;
  const bool on_terminal = out == &std::cout && isatty(STDOUT_FILENO) == 1;
  // True once the prompt is printed. That happens with the first new text, because an Error may come before.
  bool begun = false;
  nn::TextStream stream(generation.stop);
  const auto show = [&](const std::string& text) {
    made += text;
    if (out && !std::exchange(begun, true) && !by_ids) *out << prompt;
    if (out) *out << (on_terminal ? printable(text) : text) << std::flush;
  };
  const auto take = [&](size_t, int64_t id) {
    const bool ends = std::ranges::count(generation.eos_token_id, id) > 0;
    if (by_ids) show((made.empty() ? "" : ",") + std::to_string(id));
    else if (!ends) show(stream.push(decoder->push(int32_t(id))));
    return true;
  };
  if (auto* const runner = dynamic_cast<nn::Generates*>(m.runner.get()))
    runner->generate(std::span(&ids, 1), generation, take);
  else nn::generate(*m.model, std::span(&ids, 1), generation, take);
  if (decoder) show(stream.push(decoder->flush()) + stream.flush());
  if (out) *out << "\n";
  return made;
}

nn::Generation sampling_defaults() {
  return {.max_new_tokens = 300,
          .do_sample = true,
          .overflow = nn::Generation::Overflow::slide,
          .temperature = 0.8,
          .top_k = 50};
}

void add_generation_options(CLI::App& app, nn::Generation& g) {
  const OptionGroup add(app);
  const auto check = [](const char* name) -> OptionCheck {
    return [name](const std::string& text) {
      const auto value = read_number<double>(text);
      return value ? nn::wrong_option(name, *value) : "expected a number, got '" + text + "'";
    };
  };
  add("--tokens", g.max_new_tokens, "tokens to add", integer(1, int64_t(nn::max_of_option("max_new_tokens"))));
  add("--temperature", g.temperature, "0: always the likeliest token; higher: more random", check("temperature"));
  add("--top-k", g.top_k, "choose among the k likeliest (0: all)", check("top_k"));
  add("--top-p", g.top_p, "choose among the likeliest that make up this probability", check("top_p"));
  add("--min-p", g.min_p, "choose among those at least this much as likely as the likeliest", check("min_p"));
  add("--repetition-penalty", g.repetition_penalty, "above 1: makes repeated tokens less likely",
      check("repetition_penalty"));
  add("--no-repeat-ngram", g.no_repeat_ngram_size, "never repeat a sequence of this many tokens (0: no limit)",
      check("no_repeat_ngram_size"));
  app.add_flag_callback(
      "--greedy", [&] { g.do_sample = false; }, "the likeliest token each time");
  app.add_option_function<int64_t>(
         "--beams",
         [&](int64_t beams) {
           g.num_beams = beams;
           if (beams == 1) return;
           g.do_sample = false, g.overflow = nn::Generation::Overflow::error;
         },
         "beam search with N beams; stops when the context is full")
      ->check(check("num_beams"));
  app.add_option("--stop", g.stop, "end before this text (can be given several times)")->allow_extra_args(false);
}

}  // namespace lockstep::train
