// The loops for what every processor has.
#define STEPCAST_LOOPS base
#define STEPCAST_LOOPS_NAME "base"
#include "execute/cpu/loops_body.h"
