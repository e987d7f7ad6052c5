// Adam, AdamW and Lion with 8-bit moments.
#include "extensions/quantization/eight_bit.h"

#include "extensions/optimizers/fused_rules.h"
#include "optim/rules.h"

namespace lockstep::optim {

namespace {

template <class Options> bool has_codes(const Options& o, const Tensor& p, const ParameterState& state) {
  return (state.full > 0 ? state.full : p.numel()) >= o.min_8bit_size;
}

/// Returns a moment's 8-bit codes and the largest |x| of each block from the state. Creates missing ones as zeros.
BlockCodes coded(ParameterState& state, const std::string& name, const Tensor& p, bool is_signed) {
  Tensor &codes = state.tensors[name + "_codes"], &absmax = state.tensors[name + "_absmax"];
  const MemoryScope scope(Memory::optimizer);
  if (!codes.defined()) codes = zeros(p.shape(), {.dtype = u8, .device = p.device()});
  if (!absmax.defined()) absmax = zeros({code_blocks(p.numel())}, {.dtype = f32, .device = p.device()});
  return {codes, absmax, is_signed};
}

template <class Options>
void adam_8bit_update(const Options& o, bool decoupled, Tensor& p, const Tensor& grad, ParameterState& state,
                      Tensor& low, double grad_scale) {
  if (!has_codes(o, p, state)) return adam_update(o, decoupled, p, grad, state, low, grad_scale, state.step);
  adam_8bit(p, grad, coded(state, "exp_avg", p, true), coded(state, "exp_avg_sq", p, false), low,
            adam_args(o, decoupled, state.step, state.step, grad_scale));
}

void check_size(const char* op, int64_t size) {
  LOCKSTEP_CHECK(size >= 0, "[", op, "] expected min_8bit_size >= 0, got ", size);
}

}  // namespace

void Adam8bitOptions::check(const char* op) const { check_size(op, min_8bit_size); }
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Adam8bit);
void Adam8bit::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  adam_8bit_update(options_[group], false, p, grad, state, low, grad_scale);
}

void AdamW8bitOptions::check(const char* op) const { check_size(op, min_8bit_size); }
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(AdamW8bit);
void AdamW8bit::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low,
                       double grad_scale) {
  adam_8bit_update(options_[group], true, p, grad, state, low, grad_scale);
}

void Lion8bitOptions::check(const char* op) const { check_size(op, min_8bit_size); }
LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Lion8bit);
void Lion8bit::update(int group, Tensor& p, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale) {
  const Lion8bitOptions& o = options_[group];
  if (!has_codes(o, p, state)) return lion_update(o, p, grad, state, low, grad_scale);
  lion_8bit(p, grad, coded(state, "exp_avg", p, true), low, lion_args(o, grad_scale));
}

}  // namespace lockstep::optim
