#pragma once
// Weight quantisation: replaces the weights of a model's Linears by 8-bit or 4-bit codes, which the products read
// directly.
//
//   const nn::QuantizeReport report = nn::quantize(model, {.format = QuantFormat::group8});
//
// A quantised weight is not trained. Gradients pass through it, for example to adapters (extensions/lora/). Norms,
// biases and embedding tables are not quantised. See README.md.
#include <map>
#include <string>
#include <vector>

#include "extensions/quantization/codes.h"
#include "nn/linear.h"

namespace lockstep::nn {

/// A quantised weight: two frozen parameters, codes and scales, in place of the weight.
class QuantizedWeight : public WeightStore {
 public:
  QuantizedWeight(const Quantized& weight, const QuantMatmulArgs& matmul_args, DType dtype);
  /// The quantised weight on this rank; under tensor parallelism a shard.
  Quantized here() const;
  /// A handle of the codes on this rank (codes.h).
  Variable weight() const override;
  /// Lists codes and scales under the names that they have in files.
  void fields(Fields& f) override { f.fixed("weight.codes", codes).fixed("weight.scales", scales); }
  void check_cut(const Cut& cut, int ranks, const std::string& where) const override;

  Variable codes, scales;
  QuantFormat format;
  int64_t in;  ///< columns of the unsharded weight
  QuantMatmulArgs matmul_args;
  DType dtype = f32;  ///< dtype of the weight before quantisation
};
/// The quantised weight of the Linear or Head whose field `attached` is given; null if that weight is not quantised.
const QuantizedWeight* quantized_weight(const Attachment& attached);

/// Options of quantize(): the format, and which weights to quantise.
struct QuantizeOptions {
  QuantFormat format = QuantFormat::group8;
  bool dynamic = false;  ///< true: quantise activations to 8 bits, too; row8 only
  /// With dynamic: activations of at least this magnitude stay floating (LLM.int8(), Dettmers et al., 2022); 0: none.
  double threshold = 0;
  /// Modules that are not quantised, with all below them, given by the ends of their names. If "head" is not in the
  /// list the head is quantised too; a tied head gets a quantised copy, and the embedding table stays floating.
  std::vector<std::string> skip = {"head", "tokens"};
  friend bool operator==(const QuantizeOptions&, const QuantizeOptions&) = default;
};
/// Options by name: row8, group8, group4, dynamic, llm_int8 (threshold 6). With ",head" appended, e.g. "group8,head",
/// the head is quantised too.
QuantizeOptions quantize_options(const std::string& name);

/// Result of quantize().
struct QuantizeReport {
  int64_t layers = 0, bytes_before = 0, bytes_after = 0;  ///< bytes of all parameters
  std::map<std::string, double> relative_error;           ///< per weight: |w - dequantised| / |w|, Euclidean norms
  std::vector<std::string> notes;                         ///< one note for each copy of a tied head
  /// Returns a summary: one line with the numbers, then `notes`, one per line.
  std::string text() const;
};
/// Quantises the model in place; call it before optimizers and tensor parallelism exist. A model that was built empty
/// is processed one weight at a time, and its other parameters stay empty. Error, with nothing changed, if there is
/// nothing to quantise, or if a weight is already quantised, sharded or on another rank.
QuantizeReport quantize(Module& model, const QuantizeOptions& options = {});
/// True if some weight of the model is quantised.
bool is_quantized(Module& model);

/// Loads a state that may hold quantised weights ("x.weight.codes", "x.weight.scales") into a model whose weights may
/// still be floating. metadata: the file's metadata, as quantized_metadata() wrote it.
void load_quantized(Module& model, const State& state, const std::map<std::string, std::string>& metadata);
/// Metadata that a file must contain beside the state, e.g. {"quantization": "row8,dynamic,threshold=6"}. Empty if
/// nothing is quantised.
std::map<std::string, std::string> quantized_metadata(Module& model);

}  // namespace lockstep::nn
