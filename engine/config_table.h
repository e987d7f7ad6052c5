#pragma once
// Internal to engine/config*.cpp: the table of all keys (config_keys.inc) as data. Reading, checking, printing and
// docs/config.md walk it.
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "engine/config.h"

namespace lockstep::engine {

enum class Status {
  works,
  inert,    ///< accepted, and has no effect here
  off,      ///< accepted as long as it asks for nothing: what it switches on is not built
  removed,  ///< as off, and DeepSpeed has it no more
  renamed,  ///< deprecated name of another key
  alias,    ///< another name of a key, as good as it
};

/// A whole number that the library counts in doubles.
struct Count {
  double* number;
};
/// Two numbers that the file writes as a list.
struct Pair {
  double *first, *second;
};
/// Where a value lies in a Config, or in the options of an optimizer or a schedule. Its type is the key's type;
/// optional: null is accepted.
using Slot = std::variant<bool*, int*, int64_t*, double*, std::string*, std::optional<bool>*, std::optional<int64_t>*,
                          std::optional<double>*, std::optional<std::string>*, std::vector<std::string>*,
                          std::vector<int64_t>*, std::optional<std::vector<int64_t>>*, data::Json*, optim::PerGroup*,
                          std::optional<optim::PerGroup>*, optim::Warmup*, zero::Offload*, Count, Pair>;

/// What a value must be, beyond its type.
struct Range {
  double least = -INFINITY, most = INFINITY;
  bool above = false;              ///< least itself is too small
  bool anything = false;           ///< JSON that need not be an object
  bool inf_is_null = false;        ///< "inf" says the same as null, as accelerate writes it
  std::vector<std::string> words;  ///< one of these, in lower case

  bool bounds() const { return least > -INFINITY || most < INFINITY; }
  bool holds(double value) const { return (above ? value > least : value >= least) && value <= most; }
};
inline Range any() { return {}; }
inline Range anything() { return {.anything = true}; }
inline Range least(double value) { return {.least = value}; }
inline Range between(double low, double high) { return {.least = low, .most = high}; }
inline Range or_inf(Range range) { return range.inf_is_null = true, range; }
inline Range positive() { return {.least = 0, .above = true}; }
inline Range words(std::vector<std::string> list) { return {.words = std::move(list)}; }

struct Key {
  std::string path;
  Status status;
  Slot (*slot)(void* config);  ///< of those that work; config: what the table is of
  data::Json fallback;         ///< the default; what an `off` key may say; of renamed and alias the key of today
  Range range;
  std::string theirs;  ///< DeepSpeed's default, where ours is another
  std::string doc;     ///< what it does; or why it does nothing, or what to do instead
  bool automatic;      ///< "auto" leaves the choice to us
  std::string wants;   ///< of those that work: expected()
};

/// Rows of a table: a key that works, whose default `defaults` has, and the others, with their default in JSON.
Key working_key(const char* path, Slot (*slot)(void*), void* defaults, const Range& range, const char* theirs,
                const char* doc, bool automatic = false);
Key other_key(const char* path, Status status, const std::string& fallback, const Range& range, const char* doc);

const std::vector<Key>& config_keys();
const Key* find_key(const std::vector<Key>& keys, std::string_view path);

/// What a file said, beside values: a config of ours has these.
struct Said {
  std::set<std::string>& given;
  std::map<std::string, data::Json>& inert;
  std::vector<std::string>& warnings;
};
/// The members of a file's object into the config that `keys` is the table of.
void read_keys(const data::Json& object, const std::vector<Key>& keys, void* config, const Said& said,
               std::vector<std::string>& problems);

/// A line of a config as text: the key, its value, and where that comes from.
struct Line {
  std::string key, value, mark;
};
std::optional<Line> line_of(const Key& key, const void* config, const std::set<std::string>& given,
                            const std::map<std::string, data::Json>& inert);
std::string aligned(const std::vector<Line>& lines);
/// The table of the keys that work, and lists of the others, as docs/config.md has them.
std::string table_of(const std::vector<Key>& keys);
std::string lists_of(const std::vector<Key>& keys);
/// Where a dotted path leads; objects on the way are made.
data::Json& at_path(data::Json& root, const std::string& path);
/// A config as an object of objects: the values of the keys that work, and what the file said of those that do not.
data::Json json_of(const std::vector<Key>& keys, const void* config, const std::map<std::string, data::Json>& inert);

data::Json json_of(const Slot& slot);
data::Json value_of(const Key& key, const void* config);
/// Takes a value of the file over; false when it is of another type or out of range.
bool assign(const Slot& slot, const data::Json& value, const Range& range);
/// What assign() takes: "an integer >= 1", "true or false", "cpu or nvme".
std::string expected(const Slot& slot, const Range& range);
std::string expected(const data::Json& fallback, const Range& range);
std::string expected(const Key& key);
std::string lower(std::string text);
/// What a value of the file looks like in a message: short, on one line.
std::string shown(const data::Json& value);
/// The value as one of the type of `fallback`, or nullopt. Numbers such as 1e9 are integers; words compare without
/// case.
std::optional<data::Json> coerced(const data::Json& value, const data::Json& fallback, const Range& range);
/// Problems of values that are out of range, which only a program can have set.
void check_ranges(const std::vector<Key>& keys, void* config, std::vector<std::string>& problems);
/// "config.json: 2 problems\n  ...\n  ..." as an Error; nothing when there are none.
void fail_if_any(const std::string& origin, const std::vector<std::string>& problems);

/// Problems of values that are out of range, of params, and of keys that do not go together. Warnings are added to the
/// config, once.
void check_values(Config& config, std::vector<std::string>& problems);

/// The params of an optimizer or a schedule (params.h): one row each.
struct ParamInfo {
  std::string name;
  data::Json value;  ///< effective; the default when not given
  bool given = false;
  std::string doc;  ///< why it has no effect
};
enum class Kind { optimizer, schedule };
/// The type's params with the values of `config`; problems and notes as they are found.
std::vector<ParamInfo> check_params(Kind kind, const NamedConfig& config, std::vector<std::string>& problems,
                                    std::vector<std::string>& warnings);

}  // namespace lockstep::engine
