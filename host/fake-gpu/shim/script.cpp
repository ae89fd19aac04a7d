#include "script.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>

namespace {

Script read(const char* text) {
  Script script;
  using Value = const std::string&;
  const std::map<std::string, std::function<void(Value)>> keys = {
      {"devices", [&](Value value) { script.devices = std::stoi(value); }},
      {"memory", [&](Value value) { script.memory = std::stoull(value); }},
      {"integrated", [&](Value value) { script.integrated = value == "1"; }},
      {"attention", [&](Value value) { script.has_flash = value == "flash"; }},
      {"refuses", [&](Value value) { script.refuses = std::stoi(value); }},
      {"delay", [&](Value value) { script.delay = std::stod(value); }},
      {"oom", [&](Value value) { script.oom = std::stoll(value); }},
      {"oom-text", [&](Value value) { script.oom_text = value; }},
      {"lost", [&](Value value) { script.lost = std::stoll(value); }},
      {"nan", [&](Value value) { script.nan = value; }},
      {"nan-after", [&](Value value) { script.nan_after = std::stoll(value); }},
      {"error", [&](Value value) { script.error = std::stod(value); }},
      {"product-error", [&](Value value) { script.product_error = std::stod(value); }},
      {"leak", [&](Value value) { script.leak = std::stoull(value); }},
      {"cap", [&](Value value) { script.ignores_cap = value == "ignored"; }},
      {"peak", [&](Value value) { script.peak = std::stod(value); }},
      {"hang", [&](Value value) { script.hangs = std::stoll(value); }},
      {"crash", [&](Value value) { script.crashes = std::stoll(value); }},
      {"events", [&](Value value) { script.has_early_events = value == "early"; }},
      {"copies", [&](Value value) { script.loses_bits = value == "broken"; }},
      {"cliff", [&](Value value) { script.cliff = std::stoull(value); }},
      {"arch", [&](Value value) { script.arch = value; }},
      {"slower", [&](Value value) { script.slower = std::stod(value); }},
      {"borrowed", [&](Value value) { script.refuses_borrowed = value == "refused"; }},
      {"pinned", [&](Value value) { script.pinned = std::stoull(value); }},
      {"miopen", [&](Value value) { script.miopen = value; }},
      {"miopen-from", [&](Value value) { script.miopen_from = std::stoll(value); }},
      {"count", [&](Value value) { script.counts = value; }},
      {"trace", [&](Value value) { script.traces = value == "1"; }},
  };
  std::istringstream pairs(text);
  for (std::string pair; std::getline(pairs, pair, ';');) {
    const auto equals = pair.find('=');
    const auto key = keys.find(pair.substr(0, equals));
    if (equals == std::string::npos || key == keys.end()) {
      // A test with a wrong script must not pass by having none.
      std::fprintf(stderr, "fake GPU: \"%s\" is not in its script's table\n", pair.c_str());
      std::abort();
    }
    key->second(pair.substr(equals + 1));
  }
  return script;
}

}  // namespace

const Script& script() {
  static const Script script = [] {
    const char* text = std::getenv("TILEWRIGHT_FAKE_GPU");
    return read(text == nullptr ? "" : text);
  }();
  return script;
}
