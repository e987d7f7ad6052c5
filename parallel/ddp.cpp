// DDP over the reducer (reducer.h, which draws a pass): a unit is a bucket, every rank holds its mean.
//
//   4 ranks, one bucket            backward            all_reduce          .grad
//   rank r                         g g g g   (own)     G G G G / 4         views of it
//
// Cost: 2(N-1)/N times the bytes of the gradients a step. The first bucket is small, so that something is on its way
// early.
#include "parallel/ddp.h"

#include <algorithm>
#include <cmath>

#include "dist/fingerprint.h"
#include "nn/build_empty.h"
#include "parallel/agreement.h"
#include "parallel/ddp_impl.h"
#include "parallel/naive_ddp.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

using Impl = DistributedDataParallel::Impl;

Impl::Impl(nn::Module& module, Options o, dist::ProcessGroup& group)
    : module(module), options(std::move(o)), group(group) {
  LOCKSTEP_CHECK(std::isfinite(options.bucket_mib) && options.bucket_mib > 0, "[ddp] expected bucket_mib > 0, got ",
                 options.bucket_mib);
  std::vector<std::string> lines{
      str("options bucket_mib ", options.bucket_mib, ", find_unused_parameters ", options.find_unused_parameters,
          ", static_graph ", options.static_graph, ", broadcast_buffers ", options.broadcast_buffers, ", init_sync ",
          options.init_sync, ", algorithm ", name_of(options.algorithm), ", hook ", bool(options.hook))};
  for (std::string& line : describe_model(module, options.ignore)) lines.push_back(std::move(line));
  check_agreement("ddp", lines, group);
  std::vector<Reducer::Parameter> trained;
  for (const auto& p : module.named_parameters()) {
    if (p.variable.requires_grad() && !(options.ignore && options.ignore(p.name)))
      trained.push_back({.name = p.name, .variable = p.variable});
  }
  LOCKSTEP_CHECK(!trained.empty(), "[ddp] expected a module with parameters that require grad, got none in ",
                 module.kind(), "; a model that is not trained needs no wrapper");
  nn::fill(module);
  if (options.init_sync) broadcast_module(module, group, 0, options.ignore);
  std::vector<size_t> order;
  for (size_t i = trained.size(); i-- > 0;) order.push_back(i);
  reducer.emplace(*this, group, Reducer::Rules{.name = "ddp", .overlap = options.overlap, .shows = true},
                  std::move(trained));
  make_buckets(order);
}

/// In the reverse order of fields() at first; then in the order in which rank 0 saw gradients come, so that the first
/// is full early.
void Impl::make_buckets(const std::vector<size_t>& order) {
  std::vector<Variable> variables;
  for (const size_t i : order) variables.push_back(reducer->parameters[i].variable);
  const double mib = 1 << 20;
  const int64_t cap = int64_t(std::clamp(options.bucket_mib * mib, 1., 0x1p60));
  const auto plan = plan_buckets(variables, cap, options.bucket_mib == DdpOptions().bucket_mib ? int64_t(mib) : cap);
  std::vector<Reducer::Unit> units;
  buckets.clear();
  tags.clear();
  for (const auto& places : plan) {
    std::vector<Variable> members;
    std::vector<size_t> indices;
    Bucket& bucket = buckets.emplace_back(Bucket{.index = int(units.size()), .count = int(plan.size())});
    std::string names;
    for (const size_t place : places) {
      members.push_back(variables[place]);
      indices.push_back(order[place]);
      bucket.names.push_back(reducer->parameters[order[place]].name);
      names += bucket.names.back() + "\n";
    }
    tags.push_back(str("ddp bucket ", bucket.index, " of ", bucket.count, ", ", bucket.names.front(), " to ",
                       bucket.names.back(), ", #", std::hex, dist::hash_text(names) >> 32));
    units.push_back({.gradients = FlatGradients(std::move(members), &group), .members = std::move(indices)});
  }
  means.assign(units.size(), {});
  reducer->cut(std::move(units));
}

void Impl::pass_begins() {
  if (answering) return;
  if (join && reducer->is_syncing()) agree(Phase::backward);
  expect_gradients();
}

std::function<void()> Impl::start(size_t b, const Tensor& flat) {
  means[b] = flat;
  const int active = join && join->divide_by_active ? join->active : group.size();
  if (!options.hook) {
    const bool all = active == group.size();
    const dist::Work work = group.all_reduce(flat, {.op = all ? dist::ReduceOp::mean : dist::ReduceOp::sum,
                                                    .algorithm = options.algorithm,
                                                    .tag = tags[b],
                                                    .async = true});
    return [=]() mutable {
      dist::Work(work).wait();
      if (!all) mul_scalar_(flat, 1. / active);
    };
  }
  Bucket& bucket = buckets[b];
  bucket.gradients = flat;
  for (size_t i = 0; i < bucket.names.size(); ++i)
    bucket.parameters.push_back(reducer->units[b].gradients.view(flat, i));
  return [this, flat, active, &bucket, rest = options.hook(bucket, group)] {
    if (rest) rest();
    LOCKSTEP_CHECK(bucket.gradients.defined() && bucket.gradients.storage() == flat.storage() &&
                       bucket.gradients.numel() == flat.numel(),
                   "[ddp] expected the communication hook to leave its result in bucket.gradients, of ", flat.numel(),
                   " elements, got another tensor");
    if (active < group.size()) mul_scalar_(flat, double(group.size()) / active);
    bucket.gradients = {};
    bucket.parameters.clear();
  };
}

void Impl::finished() {
  const std::vector<bool> used = agree_on_used();
  for (size_t i = 0; i < used.size(); ++i) {
    Reducer::Parameter& p = reducer->parameters[i];
    if (used[i]) p.variable.grad() = reducer->units[p.unit].gradients.view(means[p.unit], p.place);
    else p.variable.clear_grad();
    p.used = p.held = false;
  }
  means.assign(means.size(), {});
}

void Impl::forgotten() {
  for (Bucket& bucket : buckets) {
    bucket.gradients = {};
    bucket.parameters.clear();
  }
}

// --- what users see ---

using Ddp = DistributedDataParallel;

Variable Ddp::call(const std::function<Variable()>& forward) {
  if (!impl_->reducer->in_no_sync() && impl_->group.size() > 1) impl_->sync_buffers();
  Variable output = forward();
  if (impl_->options.find_unused_parameters && !impl_->options.static_graph && output.requires_grad())
    impl_->look_at(output);
  return output;
}
Variable Ddp::operator()(const Variable& x) {
  return call([&] { return impl_->module.call(x); });
}

}  // namespace lockstep::parallel
