// Headers that the examples share. meson.build compiles them once.
#include <lockstep.h>

#include <CLI/CLI.hpp>

#include "precompiled.h"
