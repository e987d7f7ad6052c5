// What every example program includes, compiled once for all of them (meson.build).
#include <lockstep.h>

#include <CLI/CLI.hpp>

#include "precompiled.h"
