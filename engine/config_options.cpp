// What a config asks for, as options of the library.
#include <cmath>
#include <limits>

#include "engine/config.h"
#include "tensor/check.h"

namespace lockstep::engine {

namespace {

zero::Offload device_of(const std::string& name) {
  return name == "nvme" ? zero::Offload::nvme : name == "cpu" ? zero::Offload::cpu : zero::Offload::none;
}
DType dtype_of(const std::string& name) { return name == "fp32" ? f32 : name == "fp16" ? f16 : bf16; }

}  // namespace

zero::ZeroOptions zero_options(const Config& config) {
  const ZeroConfig& z = config.zero_optimization;
  zero::ZeroOptions o{.stage = int(z.stage),
                      .overlap_comm = z.overlap_comm.value_or(true),
                      .reduce_bucket_size = std::max<int64_t>(1, z.reduce_bucket_size),
                      .reduce_scatter = z.reduce_scatter,
                      .ignore_unused_parameters = z.ignore_unused_parameters};
  // Gradients are summed in what they are sent in, over micro-batches as over ranks.
  if (const auto& name =
          config.communication_data_type ? config.communication_data_type : config.data_types.grad_accum_dtype)
    o.communication_data_type = dtype_of(*name);
  // With a loss scale an overflow is part of the game; in bf16 check_grad_overflow says what it is; in f32 it is an
  // error.
  if (config.fp16.enabled) o.nonfinite = zero::NonFinite::skip;
  else if (config.bf16.enabled)
    o.nonfinite = config.bf16.check_grad_overflow ? zero::NonFinite::skip : zero::NonFinite::propagate;
  o.prefetch_bucket_size = z.stage3_prefetch_bucket_size;
  o.param_persistence_threshold = z.stage3_param_persistence_threshold;
  o.model_persistence_threshold = z.stage3_model_persistence_threshold;
  o.max_live_parameters = z.stage3_max_live_parameters;
  o.max_reuse_distance = z.stage3_max_reuse_distance;
  o.module_size = z.stage3_module_granularity_threshold;
  o.sub_group_size = z.sub_group_size;
  o.offload_optimizer = {.device = device_of(z.offload_optimizer.device),
                         .nvme_path = z.offload_optimizer.nvme_path,
                         .pin_memory = z.offload_optimizer.pin_memory,
                         .buffer_count = int(z.offload_optimizer.buffer_count),
                         .pipeline_read = z.offload_optimizer.pipeline_read,
                         .pipeline_write = z.offload_optimizer.pipeline_write,
                         .fast_init = z.offload_optimizer.fast_init,
                         .ratio = z.offload_optimizer.ratio};
  if (z.stage == 3) {  // ignored below, with a warning
    o.offload_param = {.device = device_of(z.offload_param.device),
                       .nvme_path = z.offload_param.nvme_path,
                       .pin_memory = z.offload_param.pin_memory,
                       .buffer_count = int(z.offload_param.buffer_count),
                       .buffer_size = z.offload_param.buffer_size,
                       .max_in_cpu = z.offload_param.max_in_cpu};
  }
  o.aio = {.block_size = config.aio.block_size,
           .queue_depth = int(config.aio.queue_depth),
           .thread_count = int(config.aio.thread_count),
           .single_submit = config.aio.single_submit,
           .overlap_events = config.aio.overlap_events};
  return o;
}

DType parameter_dtype(const Config& config) { return config.fp16.enabled ? f16 : config.bf16.enabled ? bf16 : f32; }

std::optional<optim::DynamicLossScaler::Options> loss_scaler_options(const Config& config) {
  const Fp16Config& f = config.fp16;
  if (!f.enabled) return std::nullopt;
  if (f.loss_scale > 0) {  // fixed: it never grows, and cannot fall
    return optim::DynamicLossScaler::Options{.init_scale = f.loss_scale,
                                             .scale_window = std::numeric_limits<int64_t>::max(),
                                             .min_scale = f.loss_scale,
                                             .raise_error_at_min_scale = false};
  }
  return optim::DynamicLossScaler::Options{.init_scale = std::exp2(double(f.initial_scale_power)),
                                           .scale_window = f.loss_scale_window,
                                           .min_scale = f.min_loss_scale,
                                           .hysteresis = f.hysteresis,
                                           .consecutive_hysteresis = f.consecutive_hysteresis};
}

}  // namespace lockstep::engine
