// The loops for AVX-512, 16 numbers at once.
#define STEPCAST_LOOPS avx512
#define STEPCAST_LOOPS_NAME "avx512"
#include "execute/cpu/loops_body.h"
