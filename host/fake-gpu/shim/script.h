// The script of a fake GPU: what devices there are, and what goes wrong on them.
#pragma once

#include <cstdint>
#include <string>

struct Script {
  int devices = 2;
  uint64_t memory = uint64_t{4} << 30;
  bool integrated = false;
  bool has_flash = false;
  int refuses = -1;
  double delay = 0;
  int64_t oom = 0;
  std::string oom_text;
  int64_t lost = 0;
  std::string nan;
  int64_t nan_after = 0;
  double error = 0;
  double product_error = 0;
  uint64_t leak = 0;
  bool ignores_cap = false;
  double peak = 1;
  bool traces = false;
  int64_t hangs = 0;
  int64_t crashes = 0;
  bool has_early_events = false;
  bool loses_bits = false;
  uint64_t cliff = 0;
  std::string arch = "sm_75";
  double slower = 0;
  bool refuses_borrowed = false;
  uint64_t pinned = UINT64_MAX;
  std::string miopen = "works";
  int64_t miopen_from = 0;
  std::string counts;
};

// The process's script, read once from the environment.
const Script& script();
