#pragma once
// Continues a prompt by a language model; the options of commands that generate.
#include <iosfwd>
#include <string>

#include "extensions/generation/generate.h"
#include "train/model_format.h"

namespace CLI {
class App;
}

namespace lockstep::train {

/// Continues a prompt: a text or, with by_ids, token ids such as "5,17,3". Returns the new text (or ids). If `out` is
/// not null, also writes the prompt's text and the new text (or ids) to `out` during generation. Text comes in whole
/// characters, with U+FFFD for invalid UTF-8. Text ends before a stop string. Ids include the end-of-text token, text
/// does not.
std::string continue_prompt(const LanguageModel& model, const std::string& prompt, bool by_ids,
                            nn::Generation generation, std::ostream* out);
/// Returns options that sample 300 tokens at temperature 0.8 from the 50 likeliest, and drop the oldest tokens when the
/// context window is full.
nn::Generation sampling_defaults();
/// Adds --tokens, --temperature, --top-k, --beams, --stop and other options of nn::Generation.
void add_generation_options(CLI::App& app, nn::Generation& generation);

}  // namespace lockstep::train
