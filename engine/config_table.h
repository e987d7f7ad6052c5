#pragma once
// Internal to engine/config*.cpp: the table of all keys (config_keys.inc) as data, with functions that read, check,
// print and document a config.
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "engine/config.h"

namespace lockstep::engine {

/// The address of an integer setting that is stored as a double.
struct Count {
  double* number;
};
/// Two numbers, written as a list in the file.
struct Pair {
  double *first, *second;
};
/// The address of a setting in a Config, or in the options of an optimizer or a schedule. The pointer's type tells
/// which JSON values the key accepts; only an optional accepts null.
using FieldPointer =
    std::variant<bool*, int*, int64_t*, double*, std::string*, std::optional<bool>*, std::optional<int64_t>*,
                 std::optional<double>*, std::optional<std::string>*, std::vector<std::string>*, std::vector<int64_t>*,
                 std::optional<std::vector<int64_t>>*, data::Json*, optim::PerGroup*, std::optional<optim::PerGroup>*,
                 optim::Warmup*, zero::Offload*, Count, Pair>;

/// Constraints on a value besides its type.
struct ValueRange {
  double least = -INFINITY, greatest = INFINITY;
  bool above = false;              ///< true: the value must be above `least`, not equal
  bool anything = false;           ///< true: any JSON is allowed, not only an object
  bool inf_is_null = false;        ///< true: "inf" means null, as Accelerate writes it
  std::vector<std::string> words;  ///< the allowed words, in lower case

  /// True if the value is limited to an interval.
  bool bounds() const { return least > -INFINITY || greatest < INFINITY; }
  /// True if the value is in the interval.
  bool holds(double value) const { return (above ? value > least : value >= least) && value <= greatest; }
};
inline ValueRange any() { return {}; }                                                           ///< no constraint
inline ValueRange anything() { return {.anything = true}; }                                      ///< any JSON
inline ValueRange least(double value) { return {.least = value}; }                               ///< >= value
inline ValueRange between(double low, double high) { return {.least = low, .greatest = high}; }  ///< low <= x <= high
inline ValueRange or_inf(ValueRange range) { return range.inf_is_null = true, range; }  ///< also "inf" for null
inline ValueRange positive() { return {.least = 0, .above = true}; }                    ///< > 0
/// Allows only the words in `list`.
inline ValueRange words(std::vector<std::string> list) { return {.words = std::move(list)}; }

class KeyReader;

/// A config key: a row of the table in config_keys.inc, or of an extension.
struct Key {
  std::string path;
  /// Null for a key with an effect. Otherwise the function that reads the value. as: the key's name in the file.
  void (*take)(KeyReader& reader, const Key& key, const data::Json& value, const std::string& as);
  FieldPointer (*slot)(void* config);  ///< where a key is stored in `config`, the struct of the table; may be null
  data::Json fallback;                 ///< the default; with `take`, any value that `take` needs
  ValueRange range;
  std::string theirs;  ///< DeepSpeed's default, if ours differs
  std::string doc;     ///< effect of the key, or why it has none, or what to write instead
  bool automatic;      ///< true: the value may be "auto", and the library then chooses it
  std::string wants;   ///< the text of expected(), for keys with an effect
};

/// Makes the row of a key that has an effect. `defaults`: a config that holds the default values.
Key working_key(const char* path, FieldPointer (*slot)(void*), void* defaults, const ValueRange& range,
                const char* theirs, const char* doc, bool automatic = false);

/// All keys of the configuration file: those that config_keys.inc lists, then those of extensions (section.h).
const std::vector<Key>& config_keys();
/// The key with this dotted path ("zero_optimization.stage"); nullptr if it is unknown.
const Key* find_key(const std::vector<Key>& keys, std::string_view path);

/// Facts that read_keys() records besides the values: the keys that the file sets, values without effect, warnings.
struct Said {
  std::set<std::string>& given;
  std::map<std::string, data::Json>& inert;
  std::vector<std::string>& warnings;
};
/// Stores the values of a file in a config.
class KeyReader {
 public:
  KeyReader(const std::vector<Key>& keys, void* config, const Said& said, std::vector<std::string>& problems)
      : keys(keys), said(said), problems(problems), config_(config) {}
  /// Reads all members of the object at `prefix`: "" for the whole file, or a path such as "zero_optimization.".
  void walk(const data::Json& object, const std::string& prefix);
  /// Reads the value of one key. as: the key's name in the file.
  void take(const Key& key, const data::Json& value, const std::string& as);
  /// True if there are keys below this path.
  bool is_section(const std::string& path) const;

  const std::vector<Key>& keys;
  const Said said;
  std::vector<std::string>& problems;

 private:
  void member(const std::string& prefix, const std::string& name, const data::Json& value);
  void* config_;
};
/// Reads the JSON object of a configuration file into `config`. `keys`: all known keys. Appends errors to `problems`.
void read_keys(const data::Json& object, const std::vector<Key>& keys, void* config, const Said& said,
               std::vector<std::string>& problems);

/// A printed line of a config: the key, its value, and where the value comes from.
struct Line {
  std::string key, value, mark;
};
/// Returns the line that shows a key and its value; nullopt for keys that are not printed.
std::optional<Line> line_of(const Key& key, const void* config, const std::set<std::string>& given,
                            const std::map<std::string, data::Json>& inert);
/// The lines as text in aligned columns.
std::string aligned(const std::vector<Line>& lines);
/// Returns a Markdown table of the keys that have an effect, for docs/config.md.
std::string table_of(const std::vector<Key>& keys);
/// Prints a value briefly, as Markdown: 500000000 as `5e8`.
std::string brief(const data::Json& value);
/// The value at a dotted path; creates missing objects on the way.
data::Json& at_path(data::Json& root, const std::string& path);
/// Returns a config as nested JSON objects. `inert`: values that the file gives to keys without effect.
data::Json json_of(const std::vector<Key>& keys, const void* config, const std::map<std::string, data::Json>& inert);

/// Returns the value at the address `slot` as JSON.
data::Json json_of(const FieldPointer& slot);
/// The value of a key in `config` as JSON.
data::Json value_of(const Key& key, const void* config);
/// Stores a value of the file at the address `slot`. Returns false if its type is wrong or it is out of range.
bool assign(const FieldPointer& slot, const data::Json& value, const ValueRange& range);
/// Describes what assign() accepts: "an integer >= 1", "true or false", "cpu or nvme".
std::string expected(const FieldPointer& slot, const ValueRange& range);
std::string expected(const data::Json& fallback, const ValueRange& range);
std::string expected(const Key& key);
/// The text in lower case (ASCII).
std::string lower(std::string text);
/// Returns a value of the file as a short text on one line, for messages.
std::string printed(const data::Json& value);
/// The value converted to the type of `fallback`, or nullopt if that is impossible. Numbers such as 1e9 count as
/// integers; words compare without case.
std::optional<data::Json> coerced(const data::Json& value, const data::Json& fallback, const ValueRange& range);
/// Adds a problem for each value in `config` that is out of range. Needed for values that a program sets: read_keys()
/// has already checked the values in a file.
void check_ranges(const std::vector<Key>& keys, void* config, std::vector<std::string>& problems);
/// If there are problems, throws one Error that lists them: "config.json: 2 problems\n  ...\n  ...".
void fail_if_any(const std::string& origin, const std::vector<std::string>& problems);

/// Checks a whole config: ranges, the params of optimizer and scheduler, and combinations of keys. Adds errors to
/// `problems`, and to config.warnings the warnings that it does not have yet.
void check_values(Config& config, std::vector<std::string>& problems);

/// A parameter of an optimizer or a schedule (params.h).
struct ParamInfo {
  std::string name;
  data::Json value;  ///< the value in effect: the file's, or the default
  bool given = false;
  std::string doc;  ///< if the parameter has no effect: the reason
};
/// The two parts of a config that name a type and its params: "optimizer" and "scheduler".
enum class ParamsKind { optimizer, schedule };
/// Returns all parameters of the optimizer or schedule config.type, with the values that config.params sets. Adds
/// problems and warnings.
std::vector<ParamInfo> check_params(ParamsKind kind, const NamedConfig& config, std::vector<std::string>& problems,
                                    std::vector<std::string>& warnings);

}  // namespace lockstep::engine
