#pragma once
// Language models of runs: what a run's folder says of its GPT and tokenizer, and to use one again.
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "nn/models/gpt.h"
#include "train/experts.h"

namespace CLI {
class App;
}

namespace lockstep::train {

/// For TrainerOptions::facts. tokenizer: the folder of one; "": bytes.
data::Json facts_of(const nn::GPT& model, const std::string& tokenizer, const std::string& experts = "");

/// A model for use, with its tokenizer.
struct LanguageModel {
  std::unique_ptr<nn::GPT> model;
  std::string folder;    ///< of its tokenizer; "": bytes
  std::string identity;  ///< of the one that it was trained with; "": not known
  /// Error when the folder has none, or another one; ids need none.
  std::unique_ptr<data::Tokenizer> tokenizer() const;
};
/// From the folder of a run, whose last checkpoint it takes (average: of ema.decay), or from Hugging Face's.
LanguageModel load_language_model(const std::string& path, bool average = false);
/// Mean loss of the model's windows of the text, one after another, `batch` at a time; and how many tokens these are.
struct TextLoss {
  double loss = 0;
  int64_t tokens = 0;
};
TextLoss loss_of_text(nn::GPT& model, const Tensor& tokens, int64_t batch);

/// Continues a prompt, a text or ids as "5,17,3", by `count` tokens, and gives these back, as they are written to
/// `shown` as whole characters come (null: not at all); bytes that are none are U+FFFD. Special tokens that stand in
/// the prompt are text.
std::string continue_prompt(const LanguageModel& model, const std::string& prompt, bool by_ids, int64_t count,
                            const nn::Sampling& sampling, std::ostream* shown);
/// --temperature, --top-k, --top-p and --greedy.
void add_sampling_options(CLI::App& app, nn::Sampling& sampling);
/// "5,17,3". Error that names the option.
std::vector<int64_t> whole_numbers(const std::string& option, const std::string& list);

/// The folder of the tokenizer, "" for bytes: `given`, or else that of `model`; of a run that goes on its own copy,
/// when those have moved.
std::string tokenizer_of(const CommonOptions& run, const std::string& given, const std::string& model);
/// Copies it into the run's folder `out`, with a note where `given` has none.
void keep_tokenizer(const std::string& tokenizer, const std::string& given, const std::string& out);

}  // namespace lockstep::train
