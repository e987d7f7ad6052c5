#pragma once
// Quantisation of a model: the weights of its Linears become codes of 8 or 4 bits, which are read in place of them.
//
//   const nn::QuantizeReport report = nn::quantize(model, {.format = QuantFormat::group8});
//
// A quantised weight is not trained; gradients go through it, to adapters (nn/lora.h), say. Norms, biases and tables
// stay as they are. docs/quantisation.md.
#include <map>
#include <string>
#include <vector>

#include "nn/linear.h"

namespace lockstep::nn {

struct QuantizeOptions {
  QuantFormat format = QuantFormat::group8;
  bool dynamic = false;  ///< activations in 8 bits as well; row8 only
  double threshold = 0;  ///< with dynamic: activations this large stay floating (0: none do)
  /// Modules, by the ends of their names, that stay as they are, with all below them. Without "head" the head is
  /// quantised as well: a tied one gets a copy in codes, and the table of tokens stays.
  std::vector<std::string> skip = {"head", "tokens"};
  friend bool operator==(const QuantizeOptions&, const QuantizeOptions&) = default;
};
/// By a name: row8, group8, group4, dynamic, llm_int8 (threshold 6); "group8,head": the head as well.
QuantizeOptions quantize_options(const std::string& name);

struct QuantizeReport {
  int64_t layers = 0, bytes_before = 0, bytes_after = 0;  ///< bytes of all parameters
  std::map<std::string, double> relative_error;           ///< of each weight: |w - codes| / |w|, Euclidean
  std::vector<std::string> notes;                         ///< a tied head's copy
  std::string text() const;
};
/// Before optimizers and tensor parallelism. A model that was built empty is made weight by weight, and stays empty
/// where it is not quantised. Error, and nothing is changed, when there is nothing to quantise.
QuantizeReport quantize(Module& model, const QuantizeOptions& options = {});
/// Whether some weight below is in codes.
bool is_quantized(Module& model);

/// A state that may hold weights in codes ("x.weight.codes", "x.weight.scales"), into a model whose weights may still
/// be floating. metadata: of the file, as quantized_metadata() gave it.
void load_quantized(Module& model, const State& state, const std::map<std::string, std::string>& metadata);
/// What a file must say beside the state: {"quantization": "row8,dynamic,threshold=6"}. Empty: nothing is quantised.
std::map<std::string, std::string> quantized_metadata(Module& model);

}  // namespace lockstep::nn
