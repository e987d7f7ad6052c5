// DistributedDataParallel: tells the Reducer how to reduce gradients, in buckets (reducer.h draws a backward pass). One
// bucket of four gradients on one of 4 ranks; g is a gradient of this rank, G the mean over the ranks:
//
//   after backward      after all_reduce (mean)         .grad
//   g g g g             G G G G,   G = Σ g / 4          views of the bucket
//
// Cost per step: each of N ranks sends and receives 2(N-1)/N times the bytes of the gradients. The first bucket is
// small, so that communication starts early.
#include "parallel/ddp.h"

#include <algorithm>
#include <cmath>

#include "dist/fingerprint.h"
#include "nn/build_empty.h"
#include "parallel/agreement.h"
#include "parallel/naive_ddp.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

using Ddp = DistributedDataParallel;

Ddp::DistributedDataParallel(nn::Module& module, Options options, dist::ProcessGroup* group)
    : module_(module), options_(std::move(options)), group_(group ? *group : dist::world()) {
  LOCKSTEP_CHECK(std::isfinite(options_.bucket_mib) && options_.bucket_mib > 0,
                 "[ddp] expected a finite bucket_mib > 0, got ", options_.bucket_mib);
  std::vector<std::string> lines{
      str("options bucket_mib ", options_.bucket_mib, ", find_unused_parameters ", options_.find_unused_parameters,
          ", static_graph ", options_.static_graph, ", broadcast_buffers ", options_.broadcast_buffers, ", init_sync ",
          options_.init_sync, ", algorithm ", name_of(options_.algorithm), ", hook ", bool(options_.hook))};
  for (std::string& line : describe_model(module_)) lines.push_back(std::move(line));
  check_agreement("ddp", lines, group_);
  std::vector<Reducer::Parameter> all;
  std::vector<size_t> order;
  for (const auto& p : module_.named_parameters()) {
    if (p.variable.requires_grad()) order.push_back(all.size());
    all.push_back({.name = p.name, .variable = p.variable});
  }
  LOCKSTEP_CHECK(!order.empty(), "[ddp] expected a module with parameters that require grad, got none in ",
                 module_.kind(), "; a model that is not trained needs no wrapper");
  nn::fill(module_);
  if (options_.init_sync) broadcast_module(module_, group_);
  std::reverse(order.begin(), order.end());
  Policy& policy = *this;
  reducer_.emplace(policy, group_, Reducer::Rules{.name = "ddp", .overlap = options_.overlap, .shows = true},
                   std::move(all));
  make_buckets(order);
}

/// Divides the parameters into buckets, in the given order. The constructor gives the reverse order of fields(). After
/// the first backward, ordered() gives the order in which rank 0's gradients were ready, so that buckets fill earlier.
void Ddp::make_buckets(const std::vector<size_t>& order) {
  std::vector<Variable> variables;
  for (const size_t i : order) variables.push_back(reducer_->parameters[i].variable);
  const double mib = 1 << 20;
  const int64_t cap = int64_t(std::clamp(options_.bucket_mib * mib, 1., 0x1p60));
  const auto plan = plan_buckets(variables, cap, options_.bucket_mib == DdpOptions().bucket_mib ? int64_t(mib) : cap);
  std::vector<Reducer::Unit> units;
  buckets_.clear();
  tags_.clear();
  for (const auto& places : plan) {
    std::vector<Variable> members;
    std::vector<size_t> indices;
    Bucket& bucket = buckets_.emplace_back(Bucket{.index = int(units.size()), .count = int(plan.size())});
    std::string names;
    for (const size_t place : places) {
      members.push_back(variables[place]);
      indices.push_back(order[place]);
      bucket.names.push_back(reducer_->parameters[order[place]].name);
      names += bucket.names.back() + "\n";
    }
    bucket.label =
        str("bucket ", bucket.index, " of ", bucket.count, ", ", bucket.names.front(), " to ", bucket.names.back());
    tags_.push_back(str("ddp ", bucket.label, ", #", std::hex, dist::hash_text(names) >> 32));
    units.push_back({.gradients = FlatGradients(std::move(members), &group_), .members = std::move(indices)});
  }
  reducer_->cut(std::move(units));
  // On GPUs, allocating the memory of gradients is a collective, so all ranks do it here.
  for (parallel::Reducer::Unit& unit : reducer_->units)
    if (group_.size() > 1 && unit.gradients.size() > 0 && !unit.gradients.parameter(0).device().is_cpu())
      unit.gradients.own_memory();
}

void Ddp::pass_begins() {
  if (answering_) return;
  if (join_ && reducer_->is_syncing()) agree(Phase::backward);
  expect_gradients();
}

std::function<void()> Ddp::start(size_t b, const Tensor& flat) {
  Bucket& bucket = buckets_[b];
  bucket.gradients = flat;
  const int active = join_ && join_->divide_by_active ? join_->active : group_.size();
  if (!options_.hook) {
    const bool all = active == group_.size();
    const dist::Work work = group_.all_reduce(flat, {.op = all ? dist::ReduceOp::mean : dist::ReduceOp::sum,
                                                     .algorithm = options_.algorithm,
                                                     .tag = tags_[b],
                                                     .async = true});
    return [=]() mutable {
      dist::Work(work).wait();
      if (!all) div_scalar_(flat, active);
    };
  }
  for (size_t i = 0; i < bucket.names.size(); ++i)
    bucket.parameters.push_back(reducer_->units[b].gradients.view(flat, i));
  return [this, flat, active, &bucket, rest = options_.hook(bucket, group_)] {
    if (rest) rest();
    LOCKSTEP_CHECK(bucket.gradients.defined() && bucket.gradients.storage() == flat.storage() &&
                       bucket.gradients.numel() == flat.numel(),
                   "[ddp] expected the communication hook to leave its result in bucket.gradients, of ", flat.numel(),
                   " elements, got another tensor; write into bucket.gradients in place");
    if (active < group_.size()) mul_scalar_(flat, double(group_.size()) / active);
  };
}

void Ddp::finished() {
  const std::vector<bool> used = agree_on_used();
  for (size_t i = 0; i < used.size(); ++i) {
    Reducer::Parameter& p = reducer_->parameters[i];
    if (p.unit == SIZE_MAX) continue;
    if (used[i]) p.variable.grad() = reducer_->units[p.unit].gradients.view(buckets_[p.unit].gradients, p.place);
    else p.variable.clear_grad();
    p.used = p.held = false;
  }
  forgotten();
}

void Ddp::forgotten() {
  for (Bucket& bucket : buckets_) {
    bucket.gradients = {};
    bucket.parameters.clear();
  }
}

// --- forward ---

Variable Ddp::call(const std::function<Variable()>& forward) {
  if (!reducer_->in_no_sync() && group_.size() > 1) sync_buffers();
  Variable output = forward();
  if (options_.find_unused_parameters && !options_.static_graph && output.requires_grad()) look_at(output);
  return output;
}
Variable Ddp::operator()(const Variable& x) {
  return call([&] { return module_.call(x); });
}

}  // namespace lockstep::parallel
