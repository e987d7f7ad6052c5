#pragma once
// Models that never exist whole: while an Init lives, every parameter is cut into shards right after it was made and initialised, and
// only this rank's shard is kept.
//
//   zero::Init init;                                                   // on every rank, with the same random seed
//   nn::GPT model({.layers = 96, .width = 12288});                     // at most one parameter is whole at any time
//   optim::AdamW opt(model.parameters(), {.lr = 1e-4});
//   zero::Zero zero(model, opt, {.stage = 3, .init = &init});          // takes the shards over
//
// Every rank draws all random numbers of a parameter and keeps its part of them, so the model has the bits of one that was built
// whole. Memory: the model over the number of ranks, and the largest parameter.
#include <map>
#include <string>
#include <utility>

#include "dist/process_group.h"
#include "nn/module.h"

namespace lockstep::zero {

class Init final : public nn::ParameterListener {
 public:
  struct Options {
    DType dtype = f32;  ///< parameters are made in f32, and kept in this
  };
  /// Error when ranks have different random seeds: their shards would be of different models. Collective.
  explicit Init(const Options& options, dist::ProcessGroup* group = nullptr);
  Init() : Init(Options{}) {}
  ~Init() override;

  /// From here on parameters are made whole again. Zero's constructor calls it.
  void end();
  /// The whole parameter, once; Error when it was not made here. Collective.
  Tensor take(const Variable& parameter, const std::string& name);
  /// Bytes of the shards kept here.
  int64_t bytes() const;

  void making() override { cut(); }
  void made(const Variable& parameter) override { whole_ = parameter; }
  void initialises(const Variable& parameter) override;

 private:
  struct Kept { Tensor shard; Variable parameter; };
  void cut();  // the parameter that is whole now

  Options options_;
  dist::ProcessGroup& group_;
  std::map<const void*, Kept> kept_;
  Variable whole_;
  bool listening_ = true;
};

}  // namespace lockstep::zero
