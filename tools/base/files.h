// Files: the only place that reads and writes them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stepcast {

// The file that is stdout where it is written, and stdin where it is read.
inline constexpr const char* kStdout = "-";

// Throws Error (place: the path) if it cannot be read or exceeds the JSON limit. "-" is stdin.
std::string read_file(const std::string& path);
std::string read_file(const std::string& path, std::size_t bytes_max);

// Whole or not at all: writes a temporary neighbour and renames it. "-" is stdout.
void write_file(const std::string& path, std::string_view content);

// Throws Error where write_file() could not even begin: a folder that is not there or not to be
// written. For those who have long to do before they write.
void check_writable(const std::string& path);

// Where configs/ is: $STEPCAST_CONFIGS, else <directory of the binary>/../share/stepcast/configs,
// else the source tree's. Throws Error if there is none.
std::string config_directory();

// The names (without ".json") in configs/KIND, sorted. KIND: "models", "devices", "clusters", ...
std::vector<std::string> config_names(const std::string& kind);

// The path of a named config, or of a file as it is where `name` contains '/' or ends in ".json".
// Throws Error with the nearest name; `place` is where the name was written.
std::string find_config(const std::string& kind, const std::string& name, std::string_view place);

}  // namespace stepcast
