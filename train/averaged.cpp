// Swaps the averaged parameters in for an evaluation, and back. See averaged.h.
#include "train/averaged.h"

#include <exception>

#include "zero/partition.h"

namespace lockstep::train {

Averaged::Averaged(zero::Zero& zero) : zero_(zero), exceptions_(std::uncaught_exceptions()) {
  const std::string of_model = "model.", of_average = "optimizer.ema.";
  std::map<std::string, zero::StatePiece> parts;  // by parameter name; parameters come before averages
  std::vector<Tensor> averages;
  for (const zero::StatePiece& piece : zero.state(true, false)) {  // the pieces that loading a checkpoint fills
    if (piece.name.starts_with(of_model)) parts.emplace(piece.name.substr(of_model.size()), piece);
    if (!piece.name.starts_with(of_average)) continue;
    const zero::StatePiece& part = parts.at(piece.name.substr(of_average.size()));
    places_.push_back(part.tensor.narrow(0, piece.range.begin - part.range.begin, piece.range.size()));
    own_.push_back(places_.back().clone());
    averages.push_back(piece.tensor.to(places_.back().device()).to(places_.back().dtype()));
  }
  put(averages);
}

Averaged::~Averaged() noexcept(false) {
  // Restore nothing after an exception: put() is collective, and other ranks may not get here.
  if (std::uncaught_exceptions() == exceptions_) put(own_);
}

void Averaged::put(const std::vector<Tensor>& values) {
  const NoGrad no_grad;
  for (size_t i = 0; i < values.size(); ++i) places_[i].copy_(values[i]);
  zero_.loaded(false);
}

}  // namespace lockstep::train
