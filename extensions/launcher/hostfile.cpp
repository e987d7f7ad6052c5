// hostfile.cpp: parses hostfiles, and the options that select hosts and slots. See hostfile.h.
#include "extensions/launcher/hostfile.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/suggest.h"

namespace lockstep::dist {
namespace {

constexpr int max_slots = 4096;

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// Error unless the name is safe as an argument of ssh: the name must not look like an option. It may begin with USER@.
void check_host(const std::string& name, const std::string& where) {
  const bool plain = std::all_of(name.begin(), name.end(),
                                 [](char c) { return is_letter(c) || is_digit(c) || std::strchr("._:-@", c); });
  LOCKSTEP_CHECK(plain && name[0] != '-' && name.find("@-") == name.npos, "[run] ", where,
                 ": expected a host's name of letters, digits, '.', '_', ':' and '-' (not first), got '", name, "'");
}

std::string names_of(const std::vector<Host>& hosts) {
  std::vector<std::string> names;
  for (const Host& host : hosts) names.push_back(host.name);
  return list_names(names, names.size());
}

/// Parses the value of --include or --exclude: the slots of each host that it names.
std::map<std::string, std::vector<int>> parse_filter(const std::vector<Host>& hosts, const std::string& text,
                                                     const char* option) {
  std::map<std::string, std::vector<int>> named;
  for (const std::string& part : split(text, '@')) {
    const size_t colon = part.find(':');
    const std::string name(trim(part.substr(0, colon)));
    LOCKSTEP_CHECK(!name.empty(), "[run] expected ", option, " to be NAME[:SLOT[,SLOT...]][@NAME...], got '", text,
                   "'");
    const auto host = std::find_if(hosts.begin(), hosts.end(), [&](const Host& h) { return h.name == name; });
    LOCKSTEP_CHECK(host != hosts.end(), "[run] ", option, " names host '", name,
                   "', which is not among: ", names_of(hosts), "; name one of these");
    LOCKSTEP_CHECK(!named.contains(name), "[run] ", option, " names host '", name,
                   "' twice; put its slots into one list");
    std::vector<int>& slots = named[name];
    if (colon == std::string::npos) {
      slots = host->slots;
      continue;
    }
    for (const std::string& item : split(part.substr(colon + 1), ',')) {
      const int slot = read_number<int>(trim(item)).value_or(-1);
      LOCKSTEP_CHECK(slot >= 0, "[run] expected ", option, " to be NAME[:SLOT[,SLOT...]][@NAME...], got slot '", item,
                     "' of host '", name, "'");
      LOCKSTEP_CHECK(std::count(host->slots.begin(), host->slots.end(), slot), "[run] ", option, " names slot ", slot,
                     " of host '", name, "', which has slots 0 to ", host->slots.size() - 1, "; name one of these");
      LOCKSTEP_CHECK(!std::count(slots.begin(), slots.end(), slot), "[run] ", option, " names slot ", slot,
                     " of host '", name, "' twice; name it once");
      slots.push_back(slot);
    }
  }
  return named;
}

}  // namespace

std::vector<Host> parse_hostfile(std::string_view text, const std::string& file) {
  std::vector<Host> hosts;
  std::map<std::string, int> line_of;
  int line = 0;
  for (const std::string& full : split(text, '\n')) {
    ++line;
    const std::string_view rest = trim(std::string_view(full).substr(0, full.find('#')));
    if (rest.empty()) continue;
    const size_t blank = std::min(rest.find_first_of(" \t"), rest.size());
    const std::string name(rest.substr(0, blank));
    const std::string_view slots = trim(rest.substr(blank));
    check_host(name, str(file, ":", line));
    const int n = slots.starts_with("slots=") ? read_number<int>(slots.substr(6)).value_or(-1) : -1;
    LOCKSTEP_CHECK(n >= 0, "[run] ", file, ":", line, ": expected 'host slots=N', got '", rest, "'");
    LOCKSTEP_CHECK(n >= 1 && n <= max_slots, "[run] ", file, ":", line, ": expected 1 to ", max_slots,
                   " slots for host '", name, "', got ", n);
    const auto [first, fresh] = line_of.emplace(name, line);
    LOCKSTEP_CHECK(fresh, "[run] ", file, ":", line, ": host '", name, "' occurs already in line ", first->second,
                   "; give it one line with all slots");
    hosts.push_back({name, std::vector<int>(size_t(n))});
    std::iota(hosts.back().slots.begin(), hosts.back().slots.end(), 0);
  }
  LOCKSTEP_CHECK(!hosts.empty(), "[run] ", file, ": expected at least one line 'host slots=N', got none");
  return hosts;
}

std::vector<Host> read_hostfile(const std::string& file) {
  std::ifstream in(file);
  LOCKSTEP_CHECK(in, "[run] cannot read the hostfile '", file, "': ", std::strerror(errno), "; check the path");
  return parse_hostfile(std::string(std::istreambuf_iterator<char>(in), {}), file);
}

std::vector<Host> filter_hosts(const std::vector<Host>& hosts, const std::string& include, const std::string& exclude) {
  LOCKSTEP_CHECK(include.empty() || exclude.empty(), "[run] expected --include or --exclude, got both");
  if (include.empty() && exclude.empty()) return hosts;
  const auto named =
      parse_filter(hosts, include.empty() ? exclude : include, include.empty() ? "--exclude" : "--include");
  std::vector<Host> kept;
  for (Host host : hosts) {
    const auto found = named.find(host.name);
    std::erase_if(host.slots, [&](int slot) {
      const bool match = found != named.end() && std::ranges::count(found->second, slot) > 0;
      return match == include.empty();
    });
    if (!host.slots.empty()) kept.push_back(std::move(host));
  }
  LOCKSTEP_CHECK(!kept.empty(), "[run] --exclude '", exclude, "' leaves no slot on any host (", names_of(hosts),
                 "); exclude fewer");
  return kept;
}

std::vector<Host> limit_hosts(std::vector<Host> hosts, int nodes, int ranks) {
  LOCKSTEP_CHECK(nodes <= int(hosts.size()), "[run] expected --num-nodes of at most ", hosts.size(),
                 " (hosts: ", names_of(hosts), "), got ", nodes);
  if (nodes > 0) hosts.resize(size_t(nodes));
  for (Host& host : hosts) {
    LOCKSTEP_CHECK(ranks <= int(host.slots.size()), "[run] expected --num-gpus of at most ", host.slots.size(),
                   ", the slots of host '", host.name, "', got ", ranks);
    if (ranks > 0) host.slots.resize(size_t(ranks));
  }
  return hosts;
}

}  // namespace lockstep::dist
