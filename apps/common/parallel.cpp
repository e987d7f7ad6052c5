#include "apps/common/parallel.h"

#include <fmt/format.h>
#include <link.h>
#include <sodium.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "apps/common/cli.h"
#include "apps/common/run.h"
#include "data/json.h"
#include "parallel/buckets.h"
#include "parallel/ddp.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace apps {

using namespace lockstep;
using data::Json;

namespace {

/// Whether a launcher (ours, torchrun, mpirun, srun) made this process a rank.
bool is_started_as_rank() {
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}) if (std::getenv(name)) return true;
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");  // an interactive shell is a step of one task
  return tasks && std::strcmp(tasks, "1") != 0;
}

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

uint64_t hash_of(const Tensor& tensor) {
  const Tensor flat = tensor.to(cpu).contiguous();
  unsigned char digest[crypto_generichash_BYTES_MIN];
  crypto_generichash(digest, sizeof digest, static_cast<const unsigned char*>(flat.raw_data()), size_t(flat.numel() * size_of(flat.dtype())), nullptr, 0);
  uint64_t hash;
  std::memcpy(&hash, digest, sizeof hash);
  return hash;
}

/// In this process; run_cli() asks when an error has already ended the team.
std::optional<int> rank_of_process;

}  // namespace

void add_parallel_options(CLI::App& app, ParallelOptions& o) {
  const std::string group = "Parallel";
  app.add_option("--parallel", o.strategy, "how ranks train together: ddp; dp: one process, several devices; none (default: ddp when there are ranks)")->check(CLI::IsMember({"auto", "ddp", "dp", "none"}))->group(group);
  app.add_option("--ranks", o.ranks, "ranks as threads of this process (processes: lockstep run -n N -- ...)")->check(whole(1, 64))->group(group);
  app.add_option("--devices", o.devices, "dp: devices of this process (default: all; on the CPU virtual ones, LOCKSTEP_CPU_DEVICES or 1)")->check(whole(1, 64))->group(group);
  app.add_option("--accumulate", o.accumulate, "micro-batches of a step at each rank")->check(whole(1, most_size))->capture_default_str()->group(group);
  app.add_option("--bucket-mib", o.bucket_mib, "ddp: size of the buckets in which gradients are reduced")->check(number(1e-6, 1e6))->capture_default_str()->group(group);
  app.add_flag("--overlap,!--no-overlap", o.overlap, "ddp: reduce while backward still runs (default)")->group(group);
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

void run_team(const ParallelOptions& o, const std::function<void(Team&)>& body) {
  const bool is_rank = is_started_as_rank();
  LOCKSTEP_CHECK(o.devices == 0 || o.strategy == "dp", "--devices ", o.devices, " is for --parallel dp");
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
  if (!is_started_as_rank()) return;
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
  std::unique_ptr<parallel::DistributedDataParallel> ddp;
  std::optional<parallel::GradientAccumulator> sum;  // without DDP, for more than one micro-batch
  std::vector<nn::NamedParameter> parameters;
  std::vector<Variable> trained;
  std::ofstream trace;
};

MicroBatches::MicroBatches(const Team& team, nn::Module& model, const ParallelOptions& o) : team_(team), model_(model), options_(o), impl_(std::make_unique<Impl>()) {
  impl_->parameters = model.named_parameters();
  for (const auto& p : impl_->parameters) if (p.variable.requires_grad()) impl_->trained.push_back(p.variable);
  if (team.group()) impl_->ddp = std::make_unique<parallel::DistributedDataParallel>(model, parallel::DdpOptions{.bucket_mib = o.bucket_mib, .overlap = o.overlap}, team.group());
  else if (o.accumulate > 1) impl_->sum.emplace(impl_->trained);
  if (o.trace_bits.empty()) return;
  LOCKSTEP_CHECK(sodium_init() >= 0, "--trace-bits: libsodium cannot be used here");
  if (!team.leads()) return;
  impl_->trace.open(o.trace_bits, std::ios::trunc);
  LOCKSTEP_CHECK(impl_->trace, o.trace_bits, ": --trace-bits cannot write this file");
}

MicroBatches::~MicroBatches() = default;

MicroBatches::Report MicroBatches::backward(int64_t step, const Loss& loss_of, const Scale& scale) {
  Impl& m = *impl_;
  const int64_t mine = options_.accumulate, first = team_.rank() * mine;
  std::vector<Tensor> kept;
  if (team_.group()) team_.group()->control().set_step(uint64_t(step + 1));  // for messages of others about this rank
  for (int64_t i = 0; i < mine; ++i) {
    std::optional<parallel::DistributedDataParallel::NoSync> no_sync;
    if (m.ddp && i + 1 < mine) no_sync.emplace(*m.ddp);
    set_random_step(uint64_t(step), uint64_t(first + i));
    const Variable loss = m.ddp ? m.ddp->call([&] { return loss_of(first + i); }) : loss_of(first + i);
    kept.push_back(loss.tensor());
    (scale ? scale(loss) : loss).backward();
    if (m.sum) m.sum->add();
  }
  if (m.sum) m.sum->finish();
  // The mean over ranks is DDP's. The rest of the division comes after the sum: the micro-batches' own gradients then do not
  // depend on how many of them a rank has, not even where they are too small for f16.
  for (const Variable& parameter : m.trained) if (mine > 1 && parameter.grad().defined()) mul_scalar_(parameter.grad(), 1 / double(mine));
  std::vector<double> losses;  // read when all is under way: the device need not wait for this thread
  for (const Tensor& loss : kept) losses.push_back(loss.item());
  losses.push_back(Interrupt::requested());
  const std::vector<double> all = team_.gather(losses, "losses");
  Report report;
  for (size_t i = 0; i < all.size(); ++i) {
    if ((i + 1) % losses.size() == 0) report.stop |= all[i] != 0;
    else report.loss += all[i];
  }
  report.loss /= double(count());
  return report;
}

void MicroBatches::trace(int64_t step, double loss) {
  if (options_.trace_bits.empty()) return;
  std::vector<int64_t> hashes;
  for (const auto& p : impl_->parameters) hashes.push_back(int64_t(hash_of(p.variable.tensor())));
  if (team_.group()) {
    const int64_t n = int64_t(hashes.size());
    const Tensor all = empty({n * team_.size()}, {.dtype = i64});
    team_.group()->all_gather(all, Tensor::from(hashes, Shape{n}), {.tag = "hashes"}).wait();
    for (int64_t rank = 1; rank < team_.size(); ++rank) {
      for (int64_t p = 0; p < n; ++p) {
        LOCKSTEP_CHECK(all.data<int64_t>()[rank * n + p] == all.data<int64_t>()[p], "after step ", step, " ranks 0 and ", rank, " hold different bits in ", impl_->parameters[size_t(p)].name);
      }
    }
  }
  if (!team_.leads()) return;
  uint64_t loss_bits;
  std::memcpy(&loss_bits, &loss, sizeof loss);
  Json line(Json::Object{});
  line["step"] = step;
  line["loss"] = fmt::format("{:016x}", loss_bits);
  Json::Object tensors;
  for (size_t p = 0; p < hashes.size(); ++p) tensors.emplace_back(impl_->parameters[p].name, fmt::format("{:016x}", uint64_t(hashes[p])));
  line["parameters"] = std::move(tensors);
  impl_->trace << line.dump() << std::endl;
  LOCKSTEP_CHECK(impl_->trace, options_.trace_bits, ": writing failed; is the disk full?");
}

}  // namespace apps
