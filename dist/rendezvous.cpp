// Finds a rank's job in a launcher's environment (Lockstep, torchrun, Open MPI, SLURM) or a URL. See dist/control.h.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/classic_text.h"
#include "base/environment.h"
#include "dist/control.h"
#include "dist/net.h"

namespace lockstep::dist {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

int integer(const std::string& name, const std::string& text, int64_t low, int64_t high) {
  const auto value = read_number<int64_t>(text);
  LOCKSTEP_CHECK(value && *value >= low && *value <= high, "[init] expected ", name, " to be an integer from ", low,
                 " to ", high, ", got '", text, "'");
  return int(*value);
}

// The first host of a SLURM node list: "node[03-07,9],other" gives "node03".
std::string first_host(const std::string& list) {
  const size_t comma = list.find(','), open = list.find('[');
  if (open == std::string::npos || (comma != std::string::npos && comma < open)) return list.substr(0, comma);
  const size_t end = list.find_first_of(",-]", open);
  const size_t close = list.find(']', open);
  LOCKSTEP_CHECK(end != std::string::npos && close != std::string::npos,
                 "[init] expected a list of hosts such as node[01-04] in SLURM_JOB_NODELIST, got '", list,
                 "'; set MASTER_ADDR");
  const size_t rest = list.find(',', close);
  return list.substr(0, open) + list.substr(open + 1, end - open - 1) +
         list.substr(close + 1, rest == std::string::npos ? rest : rest - close - 1);
}

// Number of tasks on host `node`, from a list by SLURM: "4(x2),3" means 4 on hosts 0 and 1, and 3 on host 2.
std::optional<int> tasks_of(const std::string& list, int64_t node) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, end - begin);
    const size_t times = item.find("(x");
    node -= times == std::string::npos ? 1 : std::atoi(item.c_str() + times + 2);
    if (node < 0) return std::atoi(item.c_str());
    begin = end + 1;
  }
  return std::nullopt;
}

constexpr int max_ranks = 65536;

// Names of the environment variables in which a launcher passes ranks and sizes.
struct Dialect {
  const char *rank, *world, *local_rank, *local_world;
};
constexpr Dialect ours{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Dialect dialects[] = {
    ours,
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""}};

void read_settings(Rendezvous& place) {
  if (const auto v = environment("LOCKSTEP_TOKEN")) place.token = *v;
  if (const auto v = environment("LOCKSTEP_JOB")) place.job = *v;
  if (const auto v = environment_number("LOCKSTEP_TIMEOUT")) place.timeout = Seconds(*v);
  if (const auto v = environment_number("LOCKSTEP_HEARTBEAT")) place.heartbeat = Seconds(*v);
  if (const auto v = environment("LOCKSTEP_INTERFACE")) place.interface = *v;
  if (const auto v = environment("LOCKSTEP_TRANSPORT")) place.transport = *v;
}

using Given = std::map<std::string, std::string>;

// Stores ranks and sizes in `place`, from the URL's parameters (`given`) or else from the environment. Appends the
// names of needed variables that are missing to `unset`. Returns the variable names of the launcher that it detected.
const Dialect* read_ranks(Rendezvous& place, const Given& given, std::vector<std::string>& unset) {
  const Dialect* speaks = &ours;
  for (const Dialect& dialect : dialects)
    if (variable(dialect.rank) && variable(dialect.world)) {
      speaks = &dialect;
      break;
    }
  // A partial set of our own variables is a mistake, not another launcher's environment.
  if (variable("RANK") || variable("WORLD_SIZE")) speaks = &ours;
  const auto find = [&](const char* key, const char* name) -> std::optional<std::pair<std::string, std::string>> {
    if (const auto found = given.find(key); found != given.end()) return std::pair(std::string(key), found->second);
    if (const auto value = variable(name)) return std::pair(std::string(name), *value);
    return std::nullopt;
  };
  const auto world = find("world_size", speaks->world), rank = find("rank", speaks->rank);
  if (!rank) unset.emplace_back(speaks->rank);
  if (!world) unset.emplace_back(speaks->world);
  if (world) place.world_size = integer(world->first, world->second, 1, max_ranks);
  if (rank) place.rank = integer(rank->first, rank->second, 0, world ? place.world_size - 1 : max_ranks - 1);
  if (!rank || !world) return speaks;
  const auto local_world = find("local_world_size", speaks->local_world),
             local_rank = find("local_rank", speaks->local_rank);
  // Without information about hosts, assume that all ranks are on this host, unless they meet at an address of another
  // host (see finish()).
  place.local_world_size = local_world ? integer(local_world->first, local_world->second, 1, place.world_size) : 0;
  if (!local_world && speaks == &dialects[2]) {
    const auto list = variable("SLURM_STEP_TASKS_PER_NODE") ? variable("SLURM_STEP_TASKS_PER_NODE")
                                                            : variable("SLURM_TASKS_PER_NODE");
    const auto node = variable("SLURM_NODEID");
    if (list && node)
      place.local_world_size =
          std::clamp(tasks_of(*list, integer("SLURM_NODEID", *node, 0, max_ranks)).value_or(0), 0, place.world_size);
  }
  const int highest = (local_world ? place.local_world_size : place.world_size) - 1;
  place.local_rank = local_rank ? integer(local_rank->first, local_rank->second, 0, highest) : -1;
  return speaks;
}

void read_address(Rendezvous& place, const Dialect* speaks, std::vector<std::string>& unset) {
  const auto address = variable("MASTER_ADDR"), port = variable("MASTER_PORT");
  const bool single = unset.empty() && place.world_size == 1;  // true: the only rank of the job, which needs no address
  if (address) place.address = *address;
  if (port) place.port = integer("MASTER_PORT", *port, 1, 65535);
  if (speaks == &ours) {
    if (!address && !single) unset.emplace_back("MASTER_ADDR");
    if (!port && !single) unset.emplace_back("MASTER_PORT");
    return;
  }
  if (address || single) return;
  const bool slurm = std::string(speaks->rank).starts_with("SLURM");
  const auto nodes = slurm ? variable("SLURM_NNODES") : std::nullopt;
  const bool one_host = place.local_world_size == place.world_size || (nodes && *nodes == "1");
  if (one_host) return;  // keep 127.0.0.1
  const auto list =
      slurm ? variable("SLURM_STEP_NODELIST") ? variable("SLURM_STEP_NODELIST") : variable("SLURM_JOB_NODELIST")
            : std::nullopt;
  if (list) place.address = first_host(*list);
  else unset.emplace_back("MASTER_ADDR");
}

void finish(Rendezvous& place) {
  const bool here = place.world_size == 1 || place.address == "localhost" || place.address == "::1" ||
                    place.address.starts_with("127.");
  if (place.local_world_size == 0) place.local_world_size = here ? place.world_size : 1;
  if (place.local_rank < 0) place.local_rank = here ? place.rank % place.local_world_size : 0;
  place.local_world_size = std::max(place.local_world_size, place.local_rank + 1);
}

void check_unset(const std::vector<std::string>& unset, const std::string& url_hint) {
  if (unset.empty()) return;
  std::string names;
  for (const auto& name : unset) names += (names.empty() ? "" : ", ") + name;
  fail(str("[init] expected the environment to say where this rank belongs; unset: ", names,
           ". Start with `lockstep run -n N -- program`, or set ", unset.size() == 1 ? "it" : "them", url_hint));
}

}  // namespace

Rendezvous Rendezvous::from_environment() { return from_url("env://"); }

Rendezvous Rendezvous::from_url(const std::string& url) {
  const size_t colon = url.find("://");
  const std::string scheme = url.substr(0, colon == std::string::npos ? 0 : colon);
  LOCKSTEP_CHECK(
      scheme == "env" || scheme == "tcp" || scheme == "file",
      "[init] expected env://, tcp://HOST:PORT?rank=R&world_size=N or file:///PATH?rank=R&world_size=N, got '", url,
      "'");
  std::string place_text = url.substr(colon + 3), query;
  if (const size_t mark = place_text.find('?'); mark != std::string::npos) {
    query = place_text.substr(mark + 1);
    place_text.resize(mark);
  }
  Given given;
  for (size_t begin = 0; begin < query.size();) {
    const size_t end = std::min(query.find('&', begin), query.size());
    const std::string item = query.substr(begin, end - begin);
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    LOCKSTEP_CHECK(key != "token", "[init] expected no token in a URL, where others can see it: set LOCKSTEP_TOKEN");
    LOCKSTEP_CHECK(equals != std::string::npos &&
                       (key == "rank" || key == "world_size" || key == "local_rank" || key == "local_world_size"),
                   "[init] expected rank, world_size, local_rank or local_world_size after '?' in '", url, "', got '",
                   item, "'");
    LOCKSTEP_CHECK(given.emplace(key, item.substr(equals + 1)).second, "[init] expected ", key, " once in '", url,
                   "', got it twice");
    begin = end + 1;
  }

  Rendezvous place;
  read_settings(place);
  std::vector<std::string> unset;
  const Dialect* speaks = read_ranks(place, given, unset);
  if (scheme == "env") {
    LOCKSTEP_CHECK(place_text.empty(), "[init] expected nothing between env:// and '?', got '", place_text, "'");
    read_address(place, speaks, unset);
    check_unset(unset, "");
  } else {
    check_unset(unset, ", or add ?rank=R&world_size=N to the URL");
  }
  if (scheme == "tcp") {
    const size_t bracket = place_text.find(']');
    const size_t at = place_text.rfind(':');
    const bool brackets = place_text.starts_with("[") && bracket != std::string::npos && at == bracket + 1;
    LOCKSTEP_CHECK(at != std::string::npos && at > 0 && (brackets || place_text.find(':') == at),
                   "[init] expected tcp://HOST:PORT, with brackets around an IPv6 address, got '", url, "'");
    place.address = brackets ? place_text.substr(1, bracket - 1) : place_text.substr(0, at);
    place.port = integer("the port of '" + url + "'", place_text.substr(at + 1), 1, 65535);
  }
  if (scheme == "file") {
    LOCKSTEP_CHECK(place_text.starts_with("/") && place_text.size() > 1,
                   "[init] expected file:/// and an absolute path, got '", url, "'");
    place.file = place_text;
    place.port = 0;
    place.address = "127.0.0.1";
  }
  finish(place);
  return place;
}

}  // namespace lockstep::dist
