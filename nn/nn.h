#pragma once
// Everything in nn/.
#include "nn/activation.h"
#include "nn/attention.h"
#include "nn/container.h"
#include "nn/conv.h"
#include "nn/gpt.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/norm.h"
