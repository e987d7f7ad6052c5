// The ranks that train together: starts or joins them, compares and combines their data. See team.h.
#include "train/team.h"

#include <fmt/format.h>
#include <link.h>

#include <atomic>
#include <cstring>
#include <optional>

#include "base/environment.h"
#include "dist/control.h"
#include "dist/numbers.h"
#include "engine/engine.h"
#include "tensor/ops.h"
#include "train/bits.h"
#include "train/cli.h"
#include "train/tracing.h"

namespace lockstep::train {

namespace {

/// Rank of this process in its job. rank_prefix() needs it after an error has ended the team.
std::optional<int> rank_of_process;

}  // namespace

std::string build_id() {
  std::string id = "unknown";
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
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
        return 1;  // the first object is the program itself
      },
      &id);
  return id;
}

int Team::local_rank() const { return group_ ? group_->control().place().local_rank : 0; }

void Team::sum(std::vector<double>& values, const char* tag) const {
  if (group_) values = dist::all_reduced(values, *group_, {.tag = tag});
}

std::vector<double> Team::gather(const std::vector<double>& values, const char* tag) const {
  return group_ ? dist::all_gathered(values, *group_, {.tag = tag}) : values;
}

void Team::check_same(const std::string& what, const std::vector<const Tensor*>& data) const {
  if (!group_) return;
  std::vector<int64_t> mine;
  for (const Tensor* tensor : data) mine.insert(mine.end(), {tensor->numel(), int64_t(hash_of(*tensor))});
  check_same_hashes(what, mine);
}

void Team::check_same(const std::string& what, int64_t elements, uint64_t hash) const {
  if (group_) check_same_hashes(what, {elements, int64_t(hash)});
}

/// Error unless all ranks have the same list `mine` of (number of elements, hash) pairs.
void Team::check_same_hashes(const std::string& what, const std::vector<int64_t>& mine) const {
  const std::vector<int64_t> all = dist::all_gathered(mine, *group_, {.tag = "data"});
  for (size_t i = 0, n = mine.size(); i < all.size(); ++i) {
    const int64_t *first = &all[i % n / 2 * 2], *other = &all[i / 2 * 2];
    LOCKSTEP_CHECK(first[0] == other[0] && first[1] == other[1], what, ": ranks 0 and ", i / n,
                   " hold different data, ", first[0], " elements with hash ",
                   fmt::format("{:016x}", uint64_t(first[1])), " and ", other[0], " with ",
                   fmt::format("{:016x}", uint64_t(other[1])), "; give every host the same files");
  }
}

void run_team(const ParallelOptions& o, const std::function<void(Team&)>& train) {
  std::atomic<int> stopped_by{0};
  const auto body = [&](Team& team) {
    Tracing tracing(o, team);
    train(team);
    tracing.finish();
    if (team.stopped_by()) stopped_by = team.stopped_by();
  };
  const bool is_rank = engine::is_launched(), single_process = !is_rank || o.strategy == "none" || o.strategy == "dp";
  as_usage([&] {
    LOCKSTEP_CHECK(
        o.offload == "none" || o.offload == "cpu" || (o.offload.starts_with("nvme:") && o.offload.size() > 5),
        "--offload: expected none, cpu or nvme:FOLDER, got '", o.offload, "'");
    LOCKSTEP_CHECK(o.strategy != "dp" || o.ranks == 0,
                   "--parallel dp is one process with several devices, got --ranks ", o.ranks,
                   "; use --parallel dp:N, or --parallel ddp");
    LOCKSTEP_CHECK(o.ranks == 0 || !is_rank, "--ranks ", o.ranks,
                   " makes threads of one process, but this process is itself a rank of a job: use --ranks or lockstep "
                   "run, not both");
    LOCKSTEP_CHECK(o.ranks <= 1 || o.strategy != "none", "--parallel none trains on one rank, got --ranks ", o.ranks,
                   "; use --parallel ddp");
    LOCKSTEP_CHECK(!single_process || o.ranks > 0 || o.strategy != "ddp",
                   "--parallel ddp needs ranks: start it with lockstep run -n N -- ..., or give --ranks N");
    if (is_rank && single_process) check_single_process("--parallel " + o.strategy);
  });
  if (o.strategy == "dp" && o.devices > 0)
    set_virtual_devices(o.devices);  // for other device types the count is checked once the model exists
  if (o.ranks > 0 && o.strategy != "none") {
    dist::spawn(o.ranks, [&](int) {
      Team team(&dist::world(), true);
      body(team);
    });
  } else if (single_process) {
    Team team(nullptr);
    body(team);
  } else {
    dist::Rendezvous place = dist::Rendezvous::from_environment();
    if (place.world_size > 1) rank_of_process = place.rank;
    place.identity = o.identity;
    const bool joined = dist::is_initialized();  // before, by an Accelerator or by the program
    if (!joined) dist::init(place);
    dist::guard([&] {
      Team team(&dist::world());
      body(team);
    });
    if (!joined) dist::shutdown();
  }
  if (stopped_by && !environment_flag("LOCKSTEP_SIGNAL_EXIT_ZERO")) throw Stopped(stopped_by);
}

void check_single_process(const std::string& command) {
  if (!engine::is_launched()) return;
  const int size = dist::Rendezvous::from_environment().world_size;
  LOCKSTEP_CHECK(size == 1, command, " runs in one process, got a job of ", size,
                 " ranks, which would each do the same; start it without the launcher");
}

std::string rank_prefix() { return rank_of_process ? "rank " + std::to_string(*rank_of_process) + ": " : ""; }

Device device_of(const CommonOptions& o, const Team& team) {
  Device device = parse_device(o.device);
  const int count = device_count(device.type);
  if (o.device == "cuda" && count > 0) device.index = int16_t(team.local_rank() % count);
  check_device("--device", device);
  return device;
}

}  // namespace lockstep::train
