#pragma once

// All that a program needs to train with Palimpsest: configs, runs, observers, plans, and the
// contracts for models of its own.
//
//   palimpsest::Run run(palimpsest::load_config("run.yaml"));
//   run.prepare();
//   run.train({});
//   run.write_model();

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/io/safetensors.h>
#include <palimpsest/core/models/autograd_block.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/cli/progress.h>
#include <palimpsest/launcher/compose/run.h>
