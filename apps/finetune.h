#pragma once
// gpt finetune: Hugging Face's run_clm.py, by its options.
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace apps {

/// Adds the subcommand to a program, and reads its command line as the options are named: "--train-file" is
/// "--train_file", and "--fp16 True" "--fp16=True". Lives as long as the App parses.
class Finetune {
 public:
  Finetune(CLI::App& app, int argc, char** argv);
  int argc() const { return int(pointers_.size()); }
  char** argv() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace apps
