// Exit codes: 0 done, 1 the answer is unwelcome, 2 trouble.
#pragma once

namespace stepcast {

inline constexpr int kTrouble = 2;  // the exit code of bad usage, bad input or a device's fault

}  // namespace stepcast
