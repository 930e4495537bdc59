// `stepcast search`: every plan that fits a model, a batch and a cluster, best first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/search/report.h"

namespace stepcast {

struct SearchArguments {
  std::string config;
  std::vector<std::string> sets;    // --set path=value; of a key that is searched, it is fixed
  std::string devices;              // --devices 64..1024; empty: the file's cluster
  std::vector<std::string> vary;    // --vary KEY=value,value
  std::vector<std::string> fix;     // --fix KEY
  std::string json;                 // --json FILE|-
  std::optional<std::int64_t> top;  // --top; without: 10, or 3 on each of several clusters
  std::optional<double> price;      // --price-per-device-hour
  std::size_t threads = 0;          // 0: one a core
};

// Throws Error.
SearchReport search(const SearchArguments& arguments);

// Exit code: 0; 1 if no plan fits, or none meets the step time that the file expects.
int search_command(const SearchArguments& arguments);

}  // namespace stepcast
