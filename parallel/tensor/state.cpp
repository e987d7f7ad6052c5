// What is whole again: the norm of gradients, states.
#include <cmath>

#include "optim/clip.h"
#include "parallel/tensor/apply.h"
#include "tensor/ops.h"

namespace lockstep::tensor_parallel {

const TensorParallel::Slice* TensorParallel::find(const Variable& parameter) const {
  for (const Slice& s : slices_)
    if (s.parameter.impl() == parameter.impl()) return &s;
  return nullptr;
}

double TensorParallel::grad_norm() const {
  std::vector<Variable> counted;
  for (const Variable& p : module_->parameters())
    if (find(p) || group_->rank() == 0) counted.push_back(p);
  const double mine = optim::grad_norm(counted);
  const Tensor sum = full({1}, mine * mine, {.dtype = f64, .device = cpu});
  group_->all_reduce(sum, {.tag = "norm of gradients"});
  return std::sqrt(sum.item());
}

double TensorParallel::clip_grad_norm(double max_norm) const {
  return optim::clip_to_norm(module_->parameters(), grad_norm(), max_norm);
}

void TensorParallel::while_whole(optim::Optimizer* optimizer, const std::function<void()>& fn) const {
  const bool has_state = optimizer && !optimizer->state().tensors.empty();
  if (has_state) {
    for (const Slice& s : slices_) {
      for (const auto& [name, tensor] : optimizer->state_of(s.parameter).tensors) {
        LOCKSTEP_CHECK(tensor.shape() == s.parameter.shape(), "[tensor_parallel] expected ", optimizer->name(), "'s ",
                       name, " of ", s.name, " to be cut as it, ", s.parameter.shape(), ", got ", tensor.shape());
      }
    }
  }
  std::vector<Tensor> slices;  // of the parameters that are whole now
  const auto restore = [&] {
    const bool any_state = optimizer && !optimizer->state().tensors.empty();
    for (size_t i = 0; i < slices.size(); ++i) {
      Variable p = slices_[i].parameter;
      const Cut& cut = slices_[i].cut;
      slices[i].copy_(slice_of(p.tensor(), cut, group_->size(), group_->rank()));
      p.set_tensor(slices[i]);
      if (!any_state) continue;
      for (auto& [name, tensor] : optimizer->state_of(p).tensors) {
        if (tensor.shape() == cut.whole) tensor = slice_of(tensor, cut, group_->size(), group_->rank());
      }
    }
  };
  try {
    for (const Slice& s : slices_) {
      Variable p = s.parameter;
      if (has_state)
        for (auto& [name, tensor] : optimizer->state_of(p).tensors) tensor = joined(tensor, s.cut, *group_);
      const Tensor whole = joined(p.tensor(), s.cut, *group_);
      slices.push_back(p.tensor());
      p.set_tensor(whole);
    }
    fn();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

}  // namespace lockstep::tensor_parallel
