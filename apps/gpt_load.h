#pragma once
// `gpt load`: where a model's parameters come to lie, and in which dtype.

namespace CLI {
class App;
}

/// Adds it to the program.
void add_load_command(CLI::App& app);
