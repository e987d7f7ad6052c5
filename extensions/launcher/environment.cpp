// Environment variables of the ranks, and the token, port and thread counts in them. See launch.h.
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "extensions/launcher/launch.h"

namespace lockstep::dist {
namespace {

/// The number of ranks on the first `nodes` nodes.
int ranks_on(const LaunchOptions& o, int nodes) {
  const std::vector<int>& given = o.ranks_of_nodes;
  return given.empty() ? nodes * o.ranks : std::accumulate(given.begin(), given.begin() + nodes, 0);
}

}  // namespace

int first_rank(const LaunchOptions& o) { return ranks_on(o, o.node); }
int world_size(const LaunchOptions& o) { return ranks_on(o, o.nodes); }

int threads_of_rank(int cores, int ranks) { return std::max(1, cores / std::max(1, ranks)); }

Environment rank_environment(const LaunchOptions& o, const Attempt& attempt, int local_rank, const Environment& base,
                             int threads) {
  Environment all = base;
  const auto set = [&](const char* name, const auto& value) { all[name] = str(value); };
  const int rank = first_rank(o) + local_rank, world = world_size(o);
  set("RANK", rank), set("WORLD_SIZE", world), set("LOCAL_RANK", local_rank), set("LOCAL_WORLD_SIZE", o.ranks);
  set("GROUP_RANK", o.node), set("GROUP_WORLD_SIZE", o.nodes), set("ROLE_RANK", rank), set("ROLE_WORLD_SIZE", world),
      set("ROLE_NAME", o.role);
  set("CROSS_RANK", o.node), set("CROSS_SIZE", o.nodes), set("LOCAL_SIZE", o.ranks);  // DeepSpeed's names
  set("MASTER_ADDR", attempt.address), set("MASTER_PORT", attempt.port);
  set("TORCHELASTIC_RESTART_COUNT", attempt.number), set("TORCHELASTIC_MAX_RESTARTS", o.max_restarts),
      set("TORCHELASTIC_RUN_ID", attempt.job);
  set("LOCKSTEP_JOB", attempt.job), set("LOCKSTEP_TOKEN", attempt.token);
  const std::string errors = str(attempt.folder, "/", rank, "/error.json");
  set("LOCKSTEP_ERROR_FILE", errors), set("TORCHELASTIC_ERROR_FILE", errors);
  all.emplace("LOCKSTEP_FLIGHT_DIR", attempt.folder);
  // A single rank that is not bound to cores may use all of them, so OMP_NUM_THREADS stays unset.
  if (o.ranks > 1 || o.binding != Binding::none) all.emplace("OMP_NUM_THREADS", std::to_string(threads));
  if (!o.devices.empty()) set("CUDA_VISIBLE_DEVICES", o.devices);
  return all;
}

std::string read_token(const std::string& file) {
  struct stat info;
  LOCKSTEP_CHECK(stat(file.c_str(), &info) == 0, "[run] cannot read the token file '", file,
                 "': ", std::strerror(errno), "; check the path");
  LOCKSTEP_CHECK((info.st_mode & 077) == 0, "[run] the token file '", file, "' can be read by others; chmod 600 it");
  std::ifstream in(file);
  std::string token, more;
  in >> token;
  LOCKSTEP_CHECK(token.size() >= 16 && token.size() <= 1024 && !(in >> more),
                 "[run] expected one word of 16 to 1024 characters in the token file '", file, "', got ",
                 token.size() < 16     ? "a shorter one"
                 : token.size() > 1024 ? "a longer one"
                                       : "more words",
                 "; `head -c 32 /dev/urandom | xxd -p -c 64` makes one");
  return token;
}

Port::Port(const std::string& address, int wanted) {
  LOCKSTEP_CHECK(wanted >= 0 && wanted <= 65535, "[run] expected --master-port from 0 (any) to 65535, got ", wanted);
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int code = getaddrinfo(address.c_str(), std::to_string(wanted).c_str(), &hints, &list);
  LOCKSTEP_CHECK(code == 0, "[run] cannot find the address of '", address, "': ", gai_strerror(code),
                 "; give --master-addr a name or address of this machine");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(list, &freeaddrinfo);
  SocketAddress place{.length = list->ai_addrlen};
  std::memcpy(&place.storage, list->ai_addr, place.length);
  const auto bound = [&] {
    Fd made(socket(place.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    LOCKSTEP_CHECK(made, "[run] cannot make a socket for ", address, ": ", std::strerror(errno),
                   "; raise the limit of open files (ulimit -n), or give another --master-addr");
    const int on = 1;
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(made.get(), reinterpret_cast<sockaddr*>(&place.storage), place.length) != 0) made.close();
    return made;
  };
  {  // Listening is the real test: with SO_REUSEADDR two sockets may bind to a port, but not while another one listens.
    Fd test = bound();
    if (!test || listen(test.get(), 1) != 0) {
      LOCKSTEP_CHECK(errno != EADDRNOTAVAIL, "[run] ", address,
                     " is not an address of this machine, where rank 0 runs; give --master-addr one that is");
      LOCKSTEP_CHECK(errno != EADDRINUSE, "[run] port ", wanted,
                     " is used; name another one with --master-port, or 0 for any that is free");
      fail(str("[run] cannot use port ", wanted, " of ", address, ": ", std::strerror(errno),
               "; name another one with --master-port, or 0 for any that is free"));
    }
    place = local_address(test.get());
  }
  number_ = place.port();
  socket_ = bound();
}

}  // namespace lockstep::dist
