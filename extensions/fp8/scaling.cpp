// Fp8Scaling: puts Linears into fp8, with scales from the maxima of earlier steps. See scaling.h.
#include "extensions/fp8/scaling.h"

#include <cmath>
#include <limits>
#include <set>

#include "nn/linear.h"

namespace lockstep::nn {

Fp8Scaling::Fp8Scaling(Module& model, const Fp8Options& options) : o_(options) {
  LOCKSTEP_CHECK(o_.amax_history_len > 0, "[Fp8Scaling] expected amax_history_len > 0, got ", o_.amax_history_len);
  Device device = default_device();
  std::set<const Linear*> visited;
  for (auto& [name, module] : model.named_modules()) {
    auto* const linear = dynamic_cast<Linear*>(module);
    if (!linear || !visited.insert(linear).second) continue;
    const int64_t out = linear->weight.size(0), in = linear->weight.size(1);
    const bool is_stored = bool(linear->attached.store);
    if (is_stored || out * in == 0 || out % fp8_multiple != 0 || in % fp8_multiple != 0) {
      others_.push_back(
          str(name, is_stored ? " (its weight is quantised)" : str(" (", in, " inputs, ", out, " outputs)")));
      continue;
    }
    LOCKSTEP_CHECK(linear->attached.arithmetic.expired(), "[Fp8Scaling] ", name,
                   " is in fp8 already; make one Fp8Scaling per model");
    if (linears_.empty()) device = linear->weight.device();
    LOCKSTEP_CHECK(linear->weight.device() == device, "[Fp8Scaling] expected a model on one device, got ", name, " on ",
                   linear->weight.device(), " and others on ", device, "; move it with to(device)");
    linears_.emplace_back(name, std::make_shared<Fp8Scales>());
    linear->attached.arithmetic = linears_.back().second;
  }
  const Fp8Format forward = Fp8Format::e4m3, backward = o_.hybrid ? Fp8Format::e5m2 : Fp8Format::e4m3;
  const auto made = [&](double value) { return full({size(), 3}, value, {.device = device}); };
  scale_ = made(1), amax_ = made(0);
  scale_inv_ = full({size(), 3, 4}, 1, {.device = device});  // at multiples of 16 bytes, as cuBLASLt wants them
  history_ = zeros({size(), 3, o_.amax_history_len}, {.device = device});
  largest_ = made(std::ldexp(largest_fp8(forward), int(-o_.margin)));
  largest_.narrow(1, 2, 1).fill_(std::ldexp(largest_fp8(backward), int(-o_.margin)));
  for (int64_t i = 0; i < size(); ++i) {
    for (int64_t role = 0; role < 3; ++role) {
      const auto one = [&](const Tensor& of) { return of[i].narrow(0, role, 1); };
      linears_[size_t(i)].second->of[size_t(role)] = {.format = role == 2 ? backward : forward,
                                                      .scale = one(scale_),
                                                      .scale_inv = scale_inv_[i][role].narrow(0, 0, 1),
                                                      .amax = one(amax_)};
    }
  }
}

void Fp8Scaling::update(const std::function<void(const Tensor& amax)>& maximum) {
  if (linears_.empty()) return;
  if (maximum) maximum(amax_);
  const Tensor finite_amax = where(isfinite(amax_), amax_, zeros_like(amax_));
  if (const int64_t older = o_.amax_history_len - 1; older > 0)
    history_.narrow(2, 1, older).copy_(history_.narrow(2, 0, older).clone());
  history_.narrow(2, 0, 1).copy_(finite_amax.unsqueeze(2));
  const Tensor amax_of_history =
      o_.amax_compute_algo == Fp8Options::Amax::max ? lockstep::amax(history_, {2}) : finite_amax;
  const Tensor zero = zeros_like(amax_of_history),
               finite = full_like(amax_of_history, std::numeric_limits<float>::max());
  scale_.copy_(where(gt(amax_of_history, zero), minimum(div(largest_, amax_of_history), finite), scale_));
  loaded();
  amax_.fill_(0);
}

void Fp8Scaling::loaded() {
  if (!linears_.empty()) scale_inv_.select(2, 0).copy_(div(ones_like(scale_), scale_));
}

std::vector<Fp8Scaling::Piece> Fp8Scaling::state() const {
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < size(); ++i) pieces.push_back({linears_[size_t(i)].first, scale_[i], history_[i]});
  return pieces;
}

std::string Fp8Scaling::text() const {
  std::string text = str("fp8: ", size(), size() == 1 ? " Linear" : " Linears", " (e4m3, gradients ",
                         o_.hybrid ? "e5m2" : "e4m3", ")");
  if (others_.empty()) return text;
  text += str("; ", others_.size(), " in 16 bits: ");
  for (size_t i = 0; i < others_.size() && i < 4; ++i) text += (i ? ", " : "") + others_[i];
  return others_.size() > 4 ? text + ", ..." : text;
}

}  // namespace lockstep::nn
