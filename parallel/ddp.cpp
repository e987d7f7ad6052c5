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
    : Buckets(group ? group : &dist::world()), module_(module), options_(std::move(options)), group_(*mean_) {
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
  listen({.name = "ddp", .overlap = options_.overlap, .shows = true}, std::move(all));
  make_buckets(order);
}

/// Divides the parameters into buckets, in the given order. The constructor gives the reverse order of fields(). After
/// the first backward, ordered() gives the order in which rank 0's gradients were ready, so that buckets fill earlier.
void Ddp::make_buckets(const std::vector<size_t>& order) {
  const double mib = 1 << 20;
  const auto cap = int64_t(std::clamp(options_.bucket_mib * mib, 1., 0x1p60));
  cut(order, cap, options_.bucket_mib == DdpOptions().bucket_mib ? int64_t(mib) : cap, true);
  labels_.clear(), tags_.clear();
  const auto all = buckets();
  for (const std::vector<std::string>& names : all) {
    labels_.push_back(str("bucket ", labels_.size(), " of ", all.size(), ", ", names.front(), " to ", names.back()));
    std::string lines;
    for (const std::string& name : names) lines += name + "\n";
    tags_.push_back(str("ddp ", labels_.back(), ", #", std::hex, dist::hash_text(lines) >> 32));
  }
}

std::vector<std::vector<std::string>> Ddp::buckets() const {
  std::vector<std::vector<std::string>> names;
  for (const Reducer::Unit& unit : reducer_->units) {
    names.emplace_back();
    for (const size_t i : unit.members) names.back().push_back(reducer_->parameters[i].name);
  }
  return names;
}

void Ddp::pass(Reducer::Pass moment, size_t) {
  if (answering_) return;
  if (moment == Reducer::Pass::begins) {
    if (join_ && reducer_->is_syncing()) agree(Phase::backward);
    expect_gradients();
  }
  if (moment == Reducer::Pass::backward_ends) check_pass();
}

std::function<void()> Ddp::start(size_t b, const Tensor& flat) {
  sums_[b] = flat;
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
  const auto bucket = std::make_shared<Bucket>(Bucket{int(b), int(tags_.size()), labels_[b], flat, buckets()[b], {}});
  for (size_t i = 0; i < bucket->names.size(); ++i)
    bucket->parameters.push_back(reducer_->units[b].gradients.view(flat, i));
  return [this, flat, active, bucket, rest = options_.hook(*bucket, group_)] {
    if (rest) rest();
    LOCKSTEP_CHECK(bucket->gradients.defined() && bucket->gradients.storage() == flat.storage() &&
                       bucket->gradients.numel() == flat.numel(),
                   "[ddp] expected the communication hook to leave its result in bucket.gradients, of ", flat.numel(),
                   " elements, got another tensor; write into bucket.gradients in place");
    if (active < group_.size()) mul_scalar_(flat, double(group_.size()) / active);
  };
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
