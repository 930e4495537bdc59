// What the repository ships, for tests of the commands.
#pragma once

#include "tools/validate/validate.h"

namespace stepcast {

// Read once for all tests of a process.
inline const Shipped& shipped() {
  static const Shipped all = read_shipped();
  return all;
}

}  // namespace stepcast
