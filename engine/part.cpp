// A rank's part of a model under pipeline or tensor parallelism. See part.h.
#include "engine/part.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "autograd/autocast.h"
#include "checkpoint/exchange.h"
#include "checkpoint/layout.h"
#include "dist/numbers.h"
#include "dist/texts.h"
#include "pipeline/layers.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep::engine {

using checkpoints::Piece;

namespace {

/// A module with one dummy parameter. A pipeline stage without trainable parameters trains this module instead, so that
/// its rank takes part in the communication of every step.
struct Nothing : nn::Module {
  Variable none = parameter({1}, 0);
  void fields(nn::Fields& f) override { f("none", none); }
};

/// Wraps each layer and the loss of `module`, so that their calls run under Autocast with dtype `to`.
void cast_all(PipelineModule& module, DType to) {
  const auto precise = [to](const auto& fn) {
    return [to, fn](const auto&... in) {
      const Autocast scope(to);
      return fn(in...);
    };
  };
  for (pipeline::LayerSpec& layer : module.layers) {
    const pipeline::LayerSpec::Forward call = [](nn::Module* m, const pipeline::Values& in) {
      return pipeline::Values{m->call(in.at(0))};
    };
    layer.with(precise(layer.forward ? layer.forward : call));
  }
  module.loss_fn = precise(module.loss_fn);
}

}  // namespace

ModelPart::ModelPart(PipelineModule module, const Config& config, const parallel::Mesh& mesh_,
                     const InitializeArgs& args)
    : mesh(&mesh_) {
  manual_seed(uint64_t(config.seed));  // before layers are built
  if (module.model) {
    auto [layers, loss] = pipeline::layers_of(module.model, module.recompute);
    module.layers = std::move(layers);
    if (!module.loss_fn) module.loss_fn = std::move(loss);
  }
  if (module.autocast) cast_all(module, *module.autocast);
  const PipelineConfig& p = config.pipeline;
  pipeline::EngineOptions options{
      .stages = mesh->plan().pp,
      .micro_batches = int(*config.gradient_accumulation_steps),
      .schedule = pipeline::parse_kind(p.schedule),
      .chunks = int(p.chunks),
      .split = pipeline::SplitBy::parse(module.partition_method.empty() ? p.partition : module.partition_method),
      .bounds = module.bounds,
      .checkpoint_interval = module.activation_checkpoint_interval.value_or(int(p.activation_checkpoint_interval)),
      .custom = module.schedule,
      .mesh = mesh,
      .reduce = false};
  if (config.fp16.enabled || config.bf16.enabled) options.dtype = parameter_dtype(config);
  text = str(p.schedule, ", ", to_string(mesh->plan()));
  engine = std::make_unique<pipeline::PipelineEngine>(std::move(module.layers), options, std::move(module.loss_fn),
                                                      &mesh->world());
  bool trains = false;
  for (const Variable& p : engine->module().parameters()) trains |= p.requires_grad();
  if (args.sharded) {
    for (const auto& shard : args.sharded->shards()) sharded.emplace(shard.name, shard.cut);
    partial.insert(args.sharded->partial().begin(), args.sharded->partial().end());
  }
  has_data = engine->is_first() || engine->is_last();
  if (trains) return;
  nothing = std::make_unique<Nothing>();
  if (options.dtype) nothing->to(*options.dtype);
}

ModelPart::~ModelPart() = default;

nn::Module& ModelPart::model() { return nothing ? *nothing : engine->module(); }

void ModelPart::complete_gradients() {
  bool any = false;
  for (auto& named : model().named_parameters()) {
    Variable& p = named.variable;
    if (nothing) p.grad() = zeros_like(p.tensor());
    if (!p.requires_grad() || !p.grad().defined()) continue;
    if (partial.count(named.name)) mesh->tp().all_reduce(p.grad(), {.tag = named.name}).wait();
    any = true;
  }
  LOCKSTEP_CHECK(any, "[train_batch] no parameter of stage ", engine->stage(),
                 " got a gradient: the loss does not depend on them; compute it from the model's outputs");
}

// --- names of tensors in checkpoints and in optimizer states ---

std::string parameter_of(const std::string& saved) {
  const size_t dot = saved.find('.');
  return saved.substr((saved.starts_with("optimizer.") ? saved.find('.', dot + 1) : dot) + 1);
}

std::string saved_name(const std::string& of_state) {
  if (!of_state.starts_with("state.")) return "optimizer." + of_state;
  const size_t dot = of_state.rfind('.');
  return "optimizer." + of_state.substr(dot + 1) + "." + of_state.substr(6, dot - 6);
}

std::string state_name(const std::string& saved) {
  if (saved.starts_with("optimizer.group.")) return saved.substr(10);
  return "state." + parameter_of(saved) + "." + saved.substr(10, saved.find('.', 10) - 10);
}

// --- tensor-parallel shards as ranges of the whole tensor ---

std::vector<Piece> of_full(const Piece& piece, const Shape& full, int64_t dim, const std::vector<dist::Range>& ranges) {
  int64_t inner = 1, mine = 0;
  for (int d = int(dim) + 1; d < full.rank(); ++d) inner *= full[d];
  for (const dist::Range& r : ranges) mine += r.size();
  std::vector<Piece> all;
  if (mine * inner == 0) return all;
  const Tensor flat = piece.tensor.view({piece.tensor.numel()});
  for (int64_t outer = piece.begin / (mine * inner); outer * mine * inner < piece.end; ++outer) {
    int64_t here = outer * mine * inner;  // offset in the shard
    for (const dist::Range& r : ranges) {
      const int64_t begin = std::max(here, piece.begin), end = std::min(here + r.size() * inner, piece.end);
      if (begin < end) {
        const int64_t at = (outer * full[int(dim)] + r.begin) * inner + begin - here;
        if (!all.empty() && all.back().end == at) {  // continues the previous piece
          all.back().end += end - begin;
          all.back().tensor = flat.narrow(0, end - piece.begin - (all.back().end - all.back().begin),
                                          all.back().end - all.back().begin);
        } else {
          all.push_back({.name = piece.name,
                         .shape = full,
                         .dtype = piece.dtype,
                         .begin = at,
                         .end = at + end - begin,
                         .tensor = flat.narrow(0, begin - piece.begin, end - begin)});
        }
      }
      here += r.size() * inner;
    }
  }
  return all;
}

bool ModelPart::leads(const std::string& piece) const { return !nothing && engine->leads(parameter_of(piece)); }

std::vector<Piece> ModelPart::full_pieces(const Piece& piece) const {
  const auto found = sharded.find(parameter_of(piece.name));
  if (found == sharded.end()) return {piece};
  const tensor_parallel::ShardLayout& cut = found->second;
  return of_full(piece, cut.full, cut.dim, tensor_parallel::ranges(cut, mesh->plan().tp, mesh->at().tp));
}

// --- overflow and gradient norm of a step, on which all ranks of a model agree ---

void ModelPart::agree(zero::StepReport& report) {
  dist::ProcessGroup& model = mesh->model();
  if (model.size() == 1) return;
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  const int64_t part = dist::all_reduced<int64_t>(
      {report.skipped ? int64_t(model.rank()) : none}, model,
      {.op = dist::ReduceOp::min, .tag = "first part with a gradient that is not finite"})[0];
  if (part == none) return;
  const Tensor rank = Tensor::from({int64_t(report.rank)}, {1});
  model.broadcast(rank, int(part), {.tag = "rank of the gradient that is not finite"});
  report.skipped = true;
  report.rank = int(rank.item<int64_t>());
  report.first_nonfinite = dist::broadcast_text(report.first_nonfinite, int(part), model);
}

/// Returns the gradient norm of the whole model from the sums of squares of this rank's gradients. Sums of sharded
/// parameters are first added up over tensor-parallel ranks, then the sums of all parameters over pipeline stages.
/// Without tensor parallelism, the norm is bit-identical to that of a single process.
double ModelPart::norm(const std::vector<std::pair<std::string, double>>& squares_) {
  std::vector<std::pair<std::string, double>> squares =
      nothing ? std::vector<std::pair<std::string, double>>{} : squares_;
  if (mesh->plan().tp > 1 && !squares.empty()) {
    std::vector<double> cut;
    for (const auto& [name, sum] : squares) cut.push_back(sharded.count(name) ? sum : 0);
    cut = dist::all_reduced(cut, mesh->tp(), {.tag = "squares of slices"});
    for (size_t i = 0; i < squares.size(); ++i)
      if (sharded.count(squares[i].first)) squares[i].second = cut[i];
  }
  return engine->norm(squares);
}

std::vector<dist::ProcessGroup*> ModelPart::groups() const {
  std::vector<dist::ProcessGroup*> all{&mesh->tp(), &mesh->pp()};
  for (dist::ProcessGroup* group : engine->groups()) all.push_back(group);
  return all;
}

void ModelPart::prepare_capture() {
  struct Norm {
    int64_t layer, place, stage, at, is_cut, is_wide;
    auto operator<=>(const Norm&) const = default;
  };
  constexpr int64_t none = -1, words = 6;
  dist::ProcessGroup& stages = mesh->pp();
  std::vector<int64_t> mine;
  int64_t at = 0;
  Device device = cpu;
  for (const nn::NamedParameter& p : model().named_parameters()) {
    device = p.variable.device();
    if (!p.variable.requires_grad()) continue;
    const auto place = nothing ? std::nullopt : engine->place_in_norm(p.name);
    mine.insert(mine.end(), {place ? place->first : none, place ? place->second : none, stages.rank(), at++,
                             sharded.count(p.name) > 0, p.variable.dtype() == f64});
  }
  places_ = at;
  if (stages.size() > 1) {
    places_ = dist::all_reduced<int64_t>({at}, stages, {.op = dist::ReduceOp::max, .tag = "count of norms"})[0];
    mine.resize(size_t(places_ * words), none);
    mine = dist::all_gathered(mine, stages, {.tag = "places of norms"});
  }
  std::vector<Norm> norms;
  for (size_t i = 0; i < mine.size(); i += words)
    if (mine[i] != none) norms.push_back({mine[i], mine[i + 1], mine[i + 2], mine[i + 3], mine[i + 4], mine[i + 5]});
  std::sort(norms.begin(), norms.end());
  pieces_.clear();
  for (const Norm& n : norms)
    pieces_.push_back({(2 * n.stage + (n.is_cut ? 0 : 1)) * (places_ + 1) + n.at, 1, n.is_wide});
  const Tensor word = zeros({1}, {.dtype = f32, .device = device});
  for (dist::ProcessGroup* group : {&mesh->tp(), &stages}) group->all_reduce(word, {.tag = "before a graph"});
}

/// Returns the sums of squares of the gradients of all pipeline stages, two rows for each stage. Row 1 holds the sums
/// of this tensor-parallel rank, row 0 their totals over all tensor-parallel ranks. The norm adds up the numbers of
/// sharded parameters from row 0, and those of all other parameters from row 1.
Tensor ModelPart::captured_norm(const Tensor& own, std::vector<NormPiece>& pieces) {
  const int64_t count = own.numel() - 1, row = places_ + 1;
  Tensor all = zeros({1, 2, row}, {.dtype = f64, .device = own.device()});
  const Tensor added = all.select(0, 0).select(0, 0), as_is = all.select(0, 0).select(0, 1);
  as_is.narrow(0, 0, count).copy_(own.narrow(0, 0, count));
  as_is.narrow(0, row - 1, 1).copy_(own.narrow(0, count, 1));
  added.copy_(as_is);
  mesh->tp().all_reduce(added, {.algorithm = dist::Algorithm::direct, .tag = "squares of slices"});
  if (mesh->pp().size() > 1) {
    const Tensor mine = all;
    all = empty({mesh->pp().size(), 2, row}, {.dtype = f64, .device = own.device()});
    mesh->pp().all_gather(all, mine, {.tag = "squares of stages"});
  }
  own.narrow(0, count, 1).copy_(sum(all.select(1, 0).select(1, row - 1)).view({1}));
  pieces = pieces_;
  return all.view({all.numel()});
}

// --- gathering of whole tensors on rank 0 ---

FullTensors gather_pieces(const std::vector<Piece>& mine, const checkpoints::Numbers& numbers,
                          dist::ProcessGroup& group) {
  using checkpoints::Offer;
  const auto bytes_of = [](const Piece& held) { return (held.end - held.begin) * size_of(held.dtype); };
  const auto size = [&](const Offer& offer) {
    int64_t bytes = 0;
    for (const Piece& held : offer.pieces) bytes += bytes_of(held);
    return empty({bytes}, {.dtype = u8});
  };
  const Offer own = checkpoints::offer_of({.pieces = mine, .numbers = numbers});
  const std::vector<std::string> lists = checkpoints::Ranks{&group}.gather(to_text(own), "list of the state");
  std::vector<Offer> offers;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    offers.push_back(checkpoints::parse_offer(lists[rank], str("state of rank ", rank)));
    LOCKSTEP_CHECK(offers.back().error.empty(), "[gather] rank ", rank, ": ", offers.back().error,
                   "; see the output of that rank");
  }
  // The bytes of all pieces, concatenated.
  const Tensor payload = size(own);
  auto* to = static_cast<std::byte*>(payload.raw_data());
  for (size_t i = 0; i < mine.size(); to += bytes_of(own.pieces[i++]))
    std::memcpy(to, mine[i].tensor.to(cpu).contiguous().raw_data(), size_t(bytes_of(own.pieces[i])));
  FullTensors full;
  if (group.rank() != 0) {
    group.send(payload, 0, {.tag = "state"});
    return full;
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    const Offer& offer = offers[size_t(rank)];
    const Tensor theirs = rank == 0 ? payload : size(offer);
    if (rank > 0) group.receive(theirs, rank, {.tag = "state"});
    const auto* at = static_cast<const std::byte*>(theirs.raw_data());
    for (const Piece& held : offer.pieces) {
      const auto [place, is_new] = full.tensors.try_emplace(held.name);
      if (is_new) place->second = zeros(held.shape, {.dtype = held.dtype});
      LOCKSTEP_CHECK(place->second.dtype() == held.dtype && place->second.shape() == held.shape, "[gather] ", held.name,
                     " is ", held.dtype, " ", held.shape, " at one rank and ", place->second.dtype(), " ",
                     place->second.shape(), " at another; build the same model on all ranks");
      auto* const first = static_cast<std::byte*>(place->second.raw_data()) + held.begin * size_of(held.dtype);
      std::memcpy(first, at, size_t(bytes_of(held)));
      at += bytes_of(held);
    }
    for (const auto& [key, value] : offer.numbers) full.numbers[key] = value;
  }
  return full;
}

}  // namespace lockstep::engine
