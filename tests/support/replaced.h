// A text of which a test changes one place.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace stepcast {

// The first `from`, which must be there, becomes `to`.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace stepcast
