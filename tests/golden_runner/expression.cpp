// A small interpreter of expressions such as "gelu_tanh(layer_norm(x) @ w1 + b1) @ w2", for cases that chain
// operations:
//
//   sum     = product (("+" | "-") product)*
//   product = factor (("*" | "/" | "@") factor)*
//   factor  = "-" factor | item ("." name "(" arguments ")" | "[" number "]")*
//   item    = number | name | name "(" arguments ")" | "(" sum ")"
//
// "sum over i of (E) for i in A..B" (B included) may enclose a sum. A name that is not a function is the next input.
#include <cctype>
#include <charconv>

#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

namespace {

struct Value {
  Value(double n) : number(n) {}               // NOLINT: implicit on purpose
  Value(Variable t) : tensor(std::move(t)) {}  // NOLINT
  double number = 0;
  Variable tensor;  // undefined if this is a number
};

class Reader {
 public:
  Reader(const std::string& text, const std::vector<Variable>& inputs, const Case& c)
      : text_(text), inputs_(inputs), case_(c) {}

  Variable whole() {
    skip();
    if (text_.compare(at_, 9, "sum over ") == 0) return loop();
    return variable(complete());
  }

 private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void need(char c) { LOCKSTEP_CHECK(take(c), "expected '", c, "' at place ", at_, " of \"", text_, "\""); }
  std::string name() {
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    LOCKSTEP_CHECK(at_ > begin, "expected a name at place ", begin, " of \"", text_, "\"");
    return text_.substr(begin, at_ - begin);
  }
  double number() {
    skip();
    double value = 0;
    const char* const begin = text_.data() + at_;
    const auto read = std::from_chars(begin, text_.data() + text_.size(), value);
    LOCKSTEP_CHECK(read.ec == std::errc(), "expected a number at place ", at_, " of \"", text_, "\"");
    size_t used = size_t(read.ptr - begin);
    // in "0..4", the first dot is not part of the number
    if (text_[at_ + used - 1] == '.' && text_.compare(at_ + used, 1, ".") == 0) --used;
    at_ += used;
    return value;
  }
  static Variable variable(const Value& v) {
    LOCKSTEP_CHECK(v.tensor.defined(), "expected a tensor, got a number");
    return v.tensor;
  }
  static double scalar(const Value& v) {
    LOCKSTEP_CHECK(!v.tensor.defined(), "expected a number, got a tensor");
    return v.number;
  }

  Value complete() {
    const Value value = sum();
    skip();
    LOCKSTEP_CHECK(at_ == text_.size(), "unexpected text at place ", at_, " of \"", text_, "\"");
    return value;
  }

  Variable loop() {
    at_ += 9;
    loop_name_ = name();
    LOCKSTEP_CHECK(name() == "of", "expected 'of' in \"", text_, "\"");
    skip();
    const size_t body = at_;
    const size_t tail = text_.rfind(" for ");
    LOCKSTEP_CHECK(tail != std::string::npos, "expected 'for' in \"", text_, "\"");
    const std::string range = text_.substr(text_.find(" in ", tail) + 4);
    const int64_t first = std::stoll(range), last = std::stoll(range.substr(range.find("..") + 2));
    const std::string inner = text_.substr(body, tail - body);
    Variable total;
    for (int64_t i = first; i <= last; ++i) {
      Reader reader(inner, inputs_, case_);
      reader.loop_name_ = loop_name_;
      reader.loop_value_ = double(i);
      const Variable term = variable(reader.complete());
      total = total.defined() ? total + term : term;
    }
    return total;
  }

  static Value apply(char op, const Value& a, const Value& b) {
    const bool x = a.tensor.defined(), y = b.tensor.defined();
    const auto both = [op](const auto& l, const auto& r) -> Value {
      if (op == '+') return l + r;
      if (op == '-') return l - r;
      if (op == '*') return l * r;
      return l / r;
    };
    if (op == '@') return matmul(variable(a), variable(b));
    if (x && y) return both(a.tensor, b.tensor);
    if (x) return both(a.tensor, scalar(b));
    if (y) return both(scalar(a), b.tensor);
    return both(scalar(a), scalar(b));
  }

  Value sum() {
    Value value = product();
    for (;;) {
      if (take('+')) value = apply('+', value, product());
      else if (take('-')) value = apply('-', value, product());
      else return value;
    }
  }
  Value product() {
    Value value = factor();
    for (;;) {
      if (take('*')) value = apply('*', value, factor());
      else if (take('/')) value = apply('/', value, factor());
      else if (take('@')) value = apply('@', value, factor());
      else return value;
    }
  }
  Value factor() {
    if (take('-')) return apply('*', -1.0, factor());
    Value value = item();
    for (;;) {
      if (take('.')) {
        const std::string method = name();
        need('(');
        value = call(method, arguments(value));
      } else if (take('[')) {
        value = variable(value).select(0, int64_t(number()));
        need(']');
      } else {
        return value;
      }
    }
  }
  Value item() {
    skip();
    if (take('(')) {
      const Value value = sum();
      need(')');
      return value;
    }
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) return number();
    const std::string word = name();
    if (take('(')) return call(word, arguments());
    if (word == loop_name_) return loop_value_;
    const auto known = names_.emplace(word, names_.size()).first;
    LOCKSTEP_CHECK(known->second < inputs_.size(), "\"", text_, "\" names more inputs than the case has");
    return inputs_[known->second];
  }

  std::vector<Value> arguments() {
    std::vector<Value> list;
    if (take(')')) return list;
    do list.push_back(sum());
    while (take(','));
    need(')');
    return list;
  }
  std::vector<Value> arguments(const Value& first) {
    std::vector<Value> list = arguments();
    list.insert(list.begin(), first);
    return list;
  }

  Value call(const std::string& function, const std::vector<Value>& args) {
    const Variable x = variable(args.at(0));
    const auto dims = [&] {
      Dims d;
      for (size_t i = 1; i < args.size(); ++i) d.push_back(int64_t(scalar(args[i])));
      return d;
    };
#define LOCKSTEP_UNARY(op, functor, types) \
  if (function == #op) return op(x);
#include "tensor/pointwise.def"
    if (function == "sum") return lockstep::sum(x, dims());
    if (function == "mean") return mean(x, dims());
    if (function == "softmax") return softmax(x, args.size() > 1 ? dims()[0] : -1);
    if (function == "log_softmax") return log_softmax(x, args.size() > 1 ? dims()[0] : -1);
    if (function == "layer_norm") return layer_norm(x, {x.size(-1)}, {}, {}, case_.number("layer_norm_eps", 1e-5));
    if (function == "matmul") return matmul(x, variable(args.at(1)));
    if (function == "t") return x.t();
    if (function == "transpose") {
      const Dims d = dims();
      return x.transpose(d[0], d[1]);
    }
    if (function == "reshape" || function == "view") return x.reshape(dims());
    fail("unknown function '" + function + "' in \"" + text_ + "\"");
  }

  std::string text_;
  const std::vector<Variable>& inputs_;
  const Case& case_;
  size_t at_ = 0;
  std::string loop_name_;
  double loop_value_ = 0;
  std::map<std::string, size_t> names_;
};

}  // namespace

Variable evaluate(const std::string& expression, const std::vector<Variable>& inputs, const Case& c) {
  return Reader(expression, inputs, c).whole();
}

}  // namespace golden
