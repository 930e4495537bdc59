// Cli: the command line of `stepcast`, from its arguments to its exit code.
#pragma once

namespace stepcast {

// 0 done, 1 the answer is unwelcome, 2 trouble: then one line on stderr, "stepcast: WHERE: WHAT".
// Data goes to stdout. Throws nothing.
int run_command_line(int argc, char** argv);

}  // namespace stepcast
