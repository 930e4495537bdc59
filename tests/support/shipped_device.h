// A device of configs/devices without its profile, for tests that know where the sources are.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "sim/base/json.h"
#include "sim/hardware/hardware.h"

namespace stepcast {

inline Device shipped_device(const std::string& name) {
  const std::string path = std::string(STEPCAST_SOURCE_DIR) + "/configs/devices/" + name + ".json";
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return read_device(parse_json(text.str(), path));
}

}  // namespace stepcast
