// main: all that it does stands in cli.cc, which is part of the library.
#include "tools/cli.h"

int main(int argc, char** argv) { return stepcast::run_command_line(argc, argv); }
