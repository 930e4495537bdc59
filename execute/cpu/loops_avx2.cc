// The loops for AVX2, 8 numbers at once.
#define STEPCAST_LOOPS avx2
#define STEPCAST_LOOPS_NAME "avx2"
#include "execute/cpu/loops_body.h"
