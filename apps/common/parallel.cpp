#include "apps/common/parallel.h"

#include <fmt/format.h>
#include <link.h>
#include <sodium.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include "apps/common/cli.h"
#include "apps/common/run.h"
#include "apps/common/tracing.h"
#include "data/json.h"
#include "moe/expert_parallel.h"
#include "onebit/optimizer.h"
#include "parallel/buckets.h"
#include "optim/clip.h"
#include "parallel/ddp.h"
#include "parallel/naive_ddp.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "trace/trace.h"
#include "zero/zero.h"

namespace apps {

using namespace lockstep;
using data::Json;

namespace {

/// The linker's hash of this program, so that ranks of different builds do not meet.
std::string build_id() {
  std::string id = "unknown";
  dl_iterate_phdr([](dl_phdr_info* info, size_t, void* to) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& header = info->dlpi_phdr[i];
      if (header.p_type != PT_NOTE) continue;
      const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
      for (const char* end = at + header.p_memsz; at + sizeof(ElfW(Nhdr)) <= end;) {
        ElfW(Nhdr) note;
        std::memcpy(&note, at, sizeof note);
        const char* name = at + sizeof note;
        const auto* bytes = reinterpret_cast<const unsigned char*>(name + (note.n_namesz + 3) / 4 * 4);
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
          std::string& hex = *static_cast<std::string*>(to);
          hex.clear();
          for (size_t k = 0; k < note.n_descsz; ++k) hex += fmt::format("{:02x}", bytes[k]);
        }
        at = reinterpret_cast<const char*>(bytes + (note.n_descsz + 3) / 4 * 4);
      }
    }
    return 1;  // the first object is the program
  }, &id);
  return id;
}

void set_offload(zero::ZeroOptions& z, const std::string& text) {
  if (text == "none") return;
  const bool in_files = text.starts_with("nvme:");
  const std::string folder = in_files ? text.substr(5) : "";
  LOCKSTEP_CHECK(text == "cpu" || !folder.empty(), "--offload: expected none, cpu or nvme:FOLDER, got '", text, "'");
  LOCKSTEP_CHECK(z.stage > 0, "--offload ", text, " needs --zero 1, 2 or 3");
  z.offload_optimizer.device = in_files ? zero::Offload::nvme : zero::Offload::cpu;
  z.offload_optimizer.nvme_path = folder;
  if (z.stage < 3) return;
  z.offload_param.device = z.offload_optimizer.device;
  z.offload_param.nvme_path = folder;
  z.offload_param.max_in_cpu = 0;
}

/// In this process; run_cli() asks when an error has already ended the team.
std::optional<int> rank_of_process;

}  // namespace

uint64_t hash_of(const Tensor& tensor) {
  LOCKSTEP_CHECK(sodium_init() >= 0, "libsodium cannot be used here");
  const Tensor flat = tensor.to(cpu).contiguous();
  unsigned char digest[crypto_generichash_BYTES_MIN];
  crypto_generichash(digest, sizeof digest, static_cast<const unsigned char*>(flat.raw_data()), size_t(flat.numel() * size_of(flat.dtype())), nullptr, 0);
  uint64_t hash;
  std::memcpy(&hash, digest, sizeof hash);
  return hash;
}

void add_parallel_options(CLI::App& app, ParallelOptions& o) {
  const std::string group = "Parallel";
  app.add_option("--parallel", o.strategy, "how ranks train together: ddp; dp: one process, several devices; none (default: ddp when there are ranks)")->check(CLI::IsMember({"auto", "ddp", "dp", "none"}))->group(group);
  app.add_option("--ranks", o.ranks, "ranks as threads of this process (processes: lockstep run -n N -- ...)")->check(whole(1, 64))->group(group);
  app.add_option("--devices", o.devices, "dp: devices of this process (default: all; on the CPU virtual ones, LOCKSTEP_CPU_DEVICES or 1)")->check(whole(1, 64))->group(group);
  app.add_option("--accumulate", o.accumulate, "micro-batches of a step at each rank")->check(whole(1, most_size))->capture_default_str()->group(group);
  app.add_option("--bucket-mib", o.bucket_mib, "ddp: size of the buckets in which gradients are reduced")->check(number(1e-6, 1e6))->capture_default_str()->group(group);
  app.add_flag("--overlap,!--no-overlap", o.overlap, "ddp: reduce while backward still runs (default)")->group(group);
  app.add_option("--zero", o.zero, "ranks keep optimizer state (1), gradients (2) and parameters (3) in parts; 0: nothing. In place of DDP, same bits")->check(whole(0, 3))->group(group);
  app.add_option("--offload", o.offload, "with --zero: optimizer state, and stage 3's parameters, in host memory (cpu) or in a file (nvme:FOLDER). Same bits")->capture_default_str()->group(group);
  app.add_option("--trace", o.trace, "folder for a timeline of every rank, rank-N.json, for https://ui.perfetto.dev and lockstep report; of one rank also a file that ends in .json")->group(group);
  app.add_option("--trace-mib", o.trace_mib, "limit of a rank's timeline")->check(number(1, 1e6))->capture_default_str()->group(group);
  app.add_option("--trace-bits", o.trace_bits, "file for hashes of all parameters after every step (see lockstep verify)")->group(group);
}

std::string identity_of(const CLI::App& subcommand) { return "build=" + build_id() + "\ncommand=" + subcommand.get_name() + "\n" + subcommand.config_to_str(true); }

int Team::local_rank() const {
  if (!group_) return 0;
  return threads_ ? rank() : dist::Rendezvous::from_environment().local_rank;
}

void Team::sum(std::vector<double>& values, const char* tag) const {
  if (!group_) return;
  const Tensor all = Tensor::from(values, Shape{int64_t(values.size())});
  group_->all_reduce(all, {.tag = tag}).wait();
  std::memcpy(values.data(), all.data<double>(), values.size() * sizeof(double));
}

std::vector<double> Team::gather(const std::vector<double>& values, const char* tag) const {
  if (!group_) return values;
  const Tensor mine = Tensor::from(values, Shape{int64_t(values.size())}), all = empty({int64_t(values.size()) * size()}, {.dtype = f64});
  group_->all_gather(all, mine, {.tag = tag}).wait();
  return all.to_vector<double>();
}

void Team::check_same(const std::string& what, const std::vector<const Tensor*>& data) const {
  if (!group_) return;
  LOCKSTEP_CHECK(sodium_init() >= 0, "libsodium cannot be used here");
  std::vector<int64_t> mine;
  for (const Tensor* tensor : data) mine.insert(mine.end(), {tensor->numel(), int64_t(hash_of(*tensor))});
  const int64_t n = int64_t(mine.size());
  const Tensor all = empty({n * size()}, {.dtype = i64});
  group_->all_gather(all, Tensor::from(mine, Shape{n}), {.tag = "data"}).wait();
  for (int64_t i = 0; i < n * size(); ++i) {
    const int64_t *first = all.data<int64_t>() + i % n / 2 * 2, *other = all.data<int64_t>() + i / 2 * 2;
    LOCKSTEP_CHECK(first[0] == other[0] && first[1] == other[1], what, ": ranks 0 and ", i / n, " hold different data, ", first[0], " elements with hash ", fmt::format("{:016x}", uint64_t(first[1])), " and ", other[0],
                   " with ", fmt::format("{:016x}", uint64_t(other[1])), "; give every host the same files");
  }
}

void run_team(const ParallelOptions& o, const std::function<void(Team&)>& train) {
  const auto body = [&](Team& team) {
    Tracing tracing(o, team);
    train(team);
    tracing.finish();
  };
  const bool is_rank = engine::is_launched();
  LOCKSTEP_CHECK(o.devices == 0 || o.strategy == "dp", "--devices ", o.devices, " is for --parallel dp");
  LOCKSTEP_CHECK(o.zero < 0 || ((is_rank || o.ranks > 0) && (o.strategy == "auto" || o.strategy == "ddp")), "--zero ", o.zero,
                 " needs ranks that train together: start it with lockstep run -n N -- ..., or give --ranks N", o.strategy == "auto" ? "" : ", and leave out --parallel " + o.strategy);
  LOCKSTEP_CHECK(o.offload == "none" || o.zero > 0, "--offload ", o.offload, " needs --zero 1, 2 or 3");
  if (o.strategy == "dp") {
    LOCKSTEP_CHECK(o.ranks == 0, "--parallel dp is one process with several devices, got --ranks ", o.ranks, "; use --devices, or --parallel ddp");
    if (o.devices > 0) set_virtual_devices(o.devices);  // how many there are of other types is asked when the model is there
  }
  if (o.ranks > 0) {
    LOCKSTEP_CHECK(!is_rank, "--ranks ", o.ranks, " makes threads of one process, but this process is itself a rank of a job: use --ranks or lockstep run, not both");
    LOCKSTEP_CHECK(o.strategy != "none" || o.ranks == 1, "--parallel none trains on one rank, got --ranks ", o.ranks, "; use --parallel ddp");
    if (o.strategy != "none") {
      dist::spawn(o.ranks, [&](int) {
        Team team(&dist::world(), true);
        body(team);
      });
      return;
    }
  }
  if (!is_rank || o.strategy == "none" || o.strategy == "dp") {
    LOCKSTEP_CHECK(o.strategy != "ddp", "--parallel ddp needs ranks: start it with lockstep run -n N -- ..., or give --ranks N");
    if (is_rank) check_alone("--parallel " + o.strategy);
    Team alone(nullptr);
    body(alone);
    return;
  }
  dist::Rendezvous place = dist::Rendezvous::from_environment();
  if (place.world_size > 1) rank_of_process = place.rank;
  place.identity = o.identity;
  dist::init(place);
  dist::guard([&] {
    Team team(&dist::world());
    body(team);
  });
  dist::shutdown();
}

void check_alone(const std::string& command) {
  if (!engine::is_launched()) return;
  const int size = dist::Rendezvous::from_environment().world_size;
  LOCKSTEP_CHECK(size == 1, command, " runs in one process, got a job of ", size, " ranks, which would each do the same; start it without the launcher");
}

std::string rank_prefix() { return rank_of_process ? "rank " + std::to_string(*rank_of_process) + ": " : ""; }

void write_error_file(const std::string& message) noexcept {
  const char* path = std::getenv("LOCKSTEP_ERROR_FILE");
  if (!path || !*path) return;
  try {
    std::ofstream(path) << message << "\n";
  } catch (...) {}  // NOLINT: the error itself is on stderr
}

struct MicroBatches::Impl {
  optim::Optimizer& optimizer;
  engine::EngineBase* engine = nullptr;
  onebit::Optimizer* onebit = nullptr;  // the optimizer, when it moves gradients itself
  std::unique_ptr<parallel::DistributedDataParallel> ddp;
  std::unique_ptr<zero::Zero> zero;
  std::optional<parallel::GradientAccumulator> sum;  // without DDP, for more than one micro-batch
  std::vector<nn::NamedParameter> parameters;
  std::vector<Variable> trained;
  std::ofstream trace;
};

MicroBatches::MicroBatches(const Team& team, nn::Module& model, optim::Optimizer& optimizer, const ParallelOptions& o, bool skip_overflow)
    : team_(team), model_(model), options_(o), impl_(new Impl{.optimizer = optimizer}) {
  impl_->parameters = model.named_parameters();
  for (const auto& p : impl_->parameters) if (p.variable.requires_grad()) impl_->trained.push_back(p.variable);
  impl_->onebit = dynamic_cast<onebit::Optimizer*>(&optimizer);
  LOCKSTEP_CHECK(!impl_->onebit || o.zero < 0, "--zero ", o.zero, " cuts up what --optimizer ", optimizer.name(), " needs whole: use one of the two");
  if (o.zero >= 0 || o.experts) {
    zero::ZeroOptions z{.stage = std::max(o.zero, 0), .overlap_comm = o.overlap, .reduce_bucket_size = std::max<int64_t>(1, int64_t(o.bucket_mib * (1 << 18))),
                        .nonfinite = skip_overflow ? zero::NonFinite::skip : zero::NonFinite::error};
    set_offload(z, o.offload);
    if (o.experts) z.spread = {moe::expert_names(model), &o.experts->edp()};
    impl_->zero = std::make_unique<zero::Zero>(model, optimizer, z, team.group());
  } else if (impl_->onebit) {
    parallel::broadcast_module(model, *team.group());
    if (o.accumulate > 1) impl_->sum.emplace(impl_->trained);
  } else if (team.group()) impl_->ddp = std::make_unique<parallel::DistributedDataParallel>(model, parallel::DdpOptions{.bucket_mib = o.bucket_mib, .overlap = o.overlap}, team.group());
  else if (o.accumulate > 1) impl_->sum.emplace(impl_->trained);
  open_trace();
}

MicroBatches::MicroBatches(const Team& team, nn::Module& model, engine::EngineBase& engine, const ParallelOptions& o)
    : team_(team), model_(model), options_(o), impl_(new Impl{.optimizer = engine.optimizer(), .engine = &engine}) {
  impl_->onebit = engine.onebit();
  options_.zero = engine.zero_optimization_stage();
  options_.accumulate = engine.gradient_accumulation_steps();
  impl_->parameters = model.named_parameters();
  open_trace();
}

void MicroBatches::open_trace() {
  int64_t elements = 0, bytes = 0;
  for (const auto& p : impl_->parameters) elements += p.variable.numel(), bytes += p.variable.numel() * size_of(p.variable.dtype());
  Json facts(Json::Object{});
  facts["parameters"] = elements;
  facts["parameter_bytes"] = bytes;
  facts["ranks"] = team_.size();
  facts["micro_batches"] = options_.accumulate;
  facts["zero"] = options_.zero;
  facts["offload"] = options_.offload;
  facts["optimizer"] = std::string(impl_->optimizer.name());
  trace::note("parallel", facts.dump());
  if (options_.trace_bits.empty()) return;
  LOCKSTEP_CHECK(sodium_init() >= 0, "--trace-bits: libsodium cannot be used here");
  if (!team_.leads()) return;
  impl_->trace.open(options_.trace_bits, std::ios::trunc);
  LOCKSTEP_CHECK(impl_->trace, options_.trace_bits, ": --trace-bits cannot write this file");
}


MicroBatches::~MicroBatches() = default;

int64_t MicroBatches::number_of(int64_t i) const {
  const int64_t replica = team_.rank() / options_.sharing, replicas = team_.size() / options_.sharing;
  return are_interleaved() ? i * replicas + replica : replica * options_.accumulate + i;
}

MicroBatches::Report MicroBatches::backward(int64_t step, const Loss& loss_of, const Scale& scale) {
  Impl& m = *impl_;
  const int64_t mine = options_.accumulate;
  std::vector<Tensor> kept;
  if (team_.group()) team_.group()->control().set_step(uint64_t(step + 1));  // for messages of others about this rank
  for (int64_t i = 0; i < mine; ++i) {
    std::optional<parallel::DistributedDataParallel::NoSync> no_sync;
    std::optional<zero::Zero::NoSync> zero_no_sync;
    if (m.ddp && i + 1 < mine) no_sync.emplace(*m.ddp);
    if (m.zero && !are_interleaved() && i + 1 < mine) zero_no_sync.emplace(*m.zero);
    const int64_t micro = m.engine ? m.engine->micro_batch() : number_of(i);
    set_random_step(uint64_t(step), uint64_t(micro * options_.sharing + team_.rank() % options_.sharing));  // ranks that share one have other tokens
    std::optional<trace::Scope> forward(std::in_place, "forward", trace::Category::forward, trace::Args{{"micro_batch", micro}}, micro);
    const Variable loss = m.ddp ? m.ddp->call([&] { return loss_of(micro); }) : loss_of(micro);
    forward.reset();
    kept.push_back(loss.tensor());
    if (m.engine) {
      m.engine->backward(loss);
      if (i + 1 < mine) m.engine->step();
      continue;
    }
    (scale ? scale(loss) : loss).backward();
    if (m.sum) m.sum->add();
  }
  if (m.sum) m.sum->finish();
  std::vector<double> losses;  // read when all is under way: the device need not wait for this thread
  for (const Tensor& loss : kept) losses.push_back(loss.item());
  losses.push_back(Interrupt::requested());
  const std::vector<double> all = team_.gather(losses, "losses");
  Report report;
  const int64_t replicas = team_.size() / options_.sharing;
  for (int64_t micro = 0; micro < count(); ++micro) {  // in their order, whoever had them
    const int64_t replica = are_interleaved() ? micro % replicas : micro / mine, i = are_interleaved() ? micro / replicas : micro % mine;
    double loss = 0;
    for (int64_t r = replica * options_.sharing; r < (replica + 1) * options_.sharing; ++r) loss += all[size_t(r * (mine + 1) + i)];
    report.loss += loss / options_.sharing;
  }
  for (int64_t rank = 0; rank < team_.size(); ++rank) report.stop |= all[size_t(rank * (mine + 1) + mine)] != 0;
  report.loss /= double(count());
  return report;
}

double MicroBatches::step(double clip, optim::GradScaler* scaler) {
  Impl& m = *impl_;
  if (m.engine) {
    m.engine->step();
    return m.engine->get_global_grad_norm();
  }
  const double share = 1 / double(options_.accumulate);
  if (m.zero) {
    const zero::StepReport report = m.zero->step({.grad_scale = scaler ? share / scaler->scale_value() : share, .max_norm = clip});
    if (scaler) scaler->update(report.skipped);
    return report.norm;
  }
  if (m.onebit) {
    const onebit::StepReport report = m.onebit->step({.grad_scale = scaler ? share / scaler->scale_value() : share, .max_norm = clip, .skip_nonfinite = scaler != nullptr});
    if (scaler) scaler->update(report.skipped);
    m.optimizer.zero_grad();
    return report.norm;
  }
  // The mean over ranks is DDP's. The rest of the division comes after the sum: the micro-batches' own gradients then do not
  // depend on how many of them a rank has, not even where they are too small for f16.
  for (const Variable& parameter : m.trained) if (share < 1 && parameter.grad().defined()) mul_scalar_(parameter.grad(), share);
  // Gradients have the same bits on all ranks, so each finds the same overflow and the same norm.
  if (scaler) scaler->unscale(m.optimizer);
  const double norm = clip <= 0 ? NAN : clip_ ? clip_(clip) : optim::clip_grad_norm(m.trained, clip);
  if (scaler) {
    scaler->step(m.optimizer);
    scaler->update();
  } else {
    m.optimizer.step();
  }
  m.optimizer.zero_grad();
  return norm;
}

void MicroBatches::while_whole(const std::function<void()>& fn) {
  zero::Zero* const zero = impl_->onebit ? nullptr : impl_->engine ? &impl_->engine->zero() : impl_->zero.get();
  if (!zero && !impl_->onebit) return fn();
  for (auto& b : model_.named_buffers()) team_.group()->broadcast(b.tensor, 0, {.tag = b.name});
  if (impl_->onebit) {
    impl_->onebit->synchronize();
    return fn();
  }
  const auto whole = zero->gathered();
  fn();
}

void MicroBatches::save(const std::function<void()>& fn) {
  if (!impl_->zero) return while_whole(fn);
  optim::OptimizerState state = impl_->zero->whole_state();
  impl_->optimizer.load_state(state);
  while_whole(fn);
  drop_tensors();
}

void MicroBatches::load(const std::function<void()>& fn) {
  if (!impl_->zero) return fn();
  {
    const auto whole = impl_->zero->gathered(0);
    fn();
  }
  impl_->zero->load_whole_state(impl_->optimizer.state());
  drop_tensors();
}

optim::OptimizerState MicroBatches::whole_state() { return impl_->zero ? impl_->zero->whole_state() : optim::OptimizerState(); }

void MicroBatches::load(const nn::State& model, const optim::OptimizerState& optimizer) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : model_.state()) names.insert(name);
  nn::State own;
  for (const auto& [name, tensor] : model) if (names.count(name)) own.emplace_back(name, tensor);
  {
    const auto whole = impl_->zero->gathered(0);
    model_.load_state(own);
  }
  impl_->zero->load_whole_state(optimizer);
}

void MicroBatches::drop_tensors() {
  optim::OptimizerState options;
  for (const auto& [key, value] : impl_->optimizer.state().numbers) if (key.starts_with("group.")) options.numbers[key] = value;
  impl_->optimizer.load_state(options);
}

void MicroBatches::trace(int64_t step, double loss) {
  if (options_.trace_bits.empty()) return;
  std::vector<int64_t> hashes;
  {
    std::optional<zero::Zero::Gathered> whole;
    if (impl_->engine && !impl_->onebit) whole.emplace(impl_->engine->zero(), model_.parameters());
    else if (impl_->zero) whole.emplace(*impl_->zero, model_.parameters());
    for (const auto& p : impl_->parameters) hashes.push_back(int64_t(hash_of(p.variable.tensor())));
  }
  std::vector<std::string> names;
  for (const auto& p : impl_->parameters) names.push_back(p.name);
  const bool together = !impl_->onebit || impl_->onebit->is_synchronized();  // 0/1 Adam's ranks are apart between exchanges
  write_trace_line(impl_->trace, step, loss, names, together ? merge_hashes(team_, names, hashes, step) : hashes);
}

std::vector<int64_t> merge_hashes(const Team& team, const std::vector<std::string>& names, const std::vector<int64_t>& mine, int64_t step) {
  if (!team.group()) return mine;
  const int64_t n = int64_t(mine.size());
  const Tensor all = empty({n * team.size()}, {.dtype = i64});
  team.group()->all_gather(all, Tensor::from(mine, Shape{n}), {.tag = "hashes"}).wait();
  std::vector<int64_t> merged(size_t(n), 0), holder(size_t(n), 0);
  for (int64_t rank = 0; rank < team.size(); ++rank) {
    for (int64_t p = 0; p < n; ++p) {
      const int64_t theirs = all.data<int64_t>()[rank * n + p];
      int64_t& hash = merged[size_t(p)];
      if (hash == 0) holder[size_t(p)] = rank;
      LOCKSTEP_CHECK(theirs == 0 || hash == 0 || theirs == hash, "after step ", step, " ranks ", holder[size_t(p)], " and ", rank, " hold different bits in ", names[size_t(p)]);
      if (theirs != 0) hash = theirs;
    }
  }
  return merged;
}

void write_trace_line(std::ofstream& out, int64_t step, double loss, const std::vector<std::string>& names, const std::vector<int64_t>& hashes) {
  if (!out.is_open()) return;
  uint64_t loss_bits;
  std::memcpy(&loss_bits, &loss, sizeof loss);
  Json line(Json::Object{});
  line["step"] = step;
  line["loss"] = fmt::format("{:016x}", loss_bits);
  Json::Object tensors;
  for (size_t p = 0; p < hashes.size(); ++p) tensors.emplace_back(names[p], fmt::format("{:016x}", uint64_t(hashes[p])));
  line["parameters"] = std::move(tensors);
  out << line.dump() << std::endl;
  LOCKSTEP_CHECK(out, "--trace-bits: writing failed; is the disk full?");
}

}  // namespace apps
