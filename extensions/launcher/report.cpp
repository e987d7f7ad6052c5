// The report of a failed attempt: the rank that failed first, the reason, and its last output.
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/output_file.h"
#include "base/printable.h"
#include "extensions/launcher/launch.h"

namespace lockstep::dist {
namespace {

constexpr size_t longest_error = 8192;

std::string outcome_of(const Ended& ended) {
  if (ended.status < 0) return "did not end even when killed";
  const int signal = WIFSIGNALED(ended.status) ? WTERMSIG(ended.status) : 0;
  return signal ? str("was killed by ", signal_name(signal), " (signal ", signal, ")")
                : str("ended with exit code ", WEXITSTATUS(ended.status));
}

/// Each line of the text, marked as output of a rank. heading: stands before the first line, in place of the mark.
std::string indented(const std::string& text, const char* heading = "") {
  std::istringstream in(text);
  std::string all;
  if (std::string line; *heading && std::getline(in, line)) all += str("\n  ", heading, line);
  for (std::string line; std::getline(in, line);) all += "\n  | " + line;
  return all;
}

std::string seconds_text(double seconds) { return format("%.1f s", seconds); }

/// Returns the rank that an error message names as the cause, or -1. The message begins with "[rank 2] ..." or "rank 2
/// (pid ...) ...". The rank that prints the message may put its own name in front: "rank 0: [rank 2] ...".
int blamed(std::string message) {
  if (const size_t colon = message.find(": ");
      message.starts_with("rank ") && message.find_first_not_of("0123456789", 5) == colon)
    message.erase(0, colon + 2);
  const size_t at = message.starts_with("[rank ") ? 6 : message.starts_with("rank ") ? 5 : 0;
  char* end = nullptr;
  const long rank = at ? std::strtol(message.c_str() + at, &end, 10) : -1;
  return at && end != message.c_str() + at && (*end == ']' || *end == ' ') ? int(rank) : -1;
}

}  // namespace

std::string error_of(const LaunchOptions& o, const Attempt& attempt, int member) {
  return o.hosts.empty() ? read_error_file(str(attempt.folder, "/", first_rank(o) + member, "/error.json")) : "";
}

std::string read_error_file(const std::string& file) {
  std::string text;
  try {
    text = read_start(file, longest_error);
  } catch (const Error&) { return ""; }  // there is no file
  const ClassicLocale classic;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object() && json.contains("message")) {  // torch nests it: {"message": {"message": "..."}}
    const auto& message = json["message"].is_object() && json["message"].contains("message")
                              ? json["message"]["message"]
                              : json["message"];
    text = message.is_string() ? message.get<std::string>() : message.dump();
  }
  text.erase(text.find_last_not_of(" \n\r\t") + 1);
  return printable(text);
}

int find_cause(const LaunchOptions& o, const Attempt& attempt, const Outcome& outcome) {
  const int other = blamed(error_of(o, attempt, outcome.first)) - first_rank(o);
  if (other < 0 || other >= int(outcome.members.size())) return outcome.first;
  const Ended& ended = outcome.members[size_t(other)];
  return ended.failed() && !ended.stopped ? other : outcome.first;
}

std::string describe_failure(const LaunchOptions& o, const Attempt& attempt, const std::vector<Launched>& members,
                             const Outcome& outcome) {
  const bool hosts = members[0].remote;
  const int first = find_cause(o, attempt, outcome);
  std::string error = error_of(o, attempt, first);
  if (error.empty()) error = error_of(o, attempt, outcome.first);
  for (int i = 0; error.empty() && i < int(members.size()); ++i) error = error_of(o, attempt, i);
  const Ended& cause = outcome.members[size_t(first)];
  const std::string name = members[size_t(first)].process.name;

  std::string text;
  if (hosts) {
    const std::string heard = cause.status >= 0 && !WIFSIGNALED(cause.status) ? "ssh " + outcome_of(cause)
                              : cause.chatters                                ? "more than 64 KiB of something else"
                                               : "nothing in " + seconds_text(o.times.connect);
    text = cause.unreachable
               ? name + ": no launcher answered: " + heard + "; try: ssh " + o.hosts[size_t(first)].name + " true"
               : name + ": its launcher " + outcome_of(cause) + " after " + seconds_text(cause.after);
    if (cause.code() == 127) text += "; lockstep and the working folder must be at the same place on every host";
    if (cause.unreachable && !cause.last_lines.empty()) text += "\n  its last lines:" + indented(cause.last_lines);
  } else {
    const std::string restart = o.max_restarts > 0 ? str(", restart ", attempt.number, " of ", o.max_restarts) : "";
    text = str(name, " ", outcome_of(cause), " after ", seconds_text(cause.after), " (pid ", cause.pid, " on ",
               host_name(), restart, ")");
    if (!error.empty()) text += indented(error, "error: ");
    // With a single rank, its stderr has just been shown without interruption: do not repeat it.
    if (!cause.last_lines.empty() && members.size() > 1)
      text += "\n  the last lines of its stderr:" + indented(cause.last_lines);
  }
  std::string stopped, others;
  for (size_t i = 0; i < members.size(); ++i) {
    const Ended& ended = outcome.members[i];
    if (int(i) == first || !ended.failed()) continue;
    if (ended.stopped) stopped += (stopped.empty() ? "\n  stopped with it: " : ", ") + members[i].process.name;
    else others += str(others.empty() ? "\n  then " : ", ", members[i].process.name, " ", outcome_of(ended));
  }
  text += others + stopped;
  if (attempt.keep && !attempt.folder.empty()) text += "\n  logs: " + attempt.folder;
  return text;
}

}  // namespace lockstep::dist
