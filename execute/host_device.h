// Host and device: marks of functions that run on both, and mean the same there. nvcc compiles them
// for the device too; any other compiler sees plain inline functions.
#pragma once

#if defined(__CUDACC__)
#define STEPCAST_HD __host__ __device__ __forceinline__
#else
#define STEPCAST_HD inline
#endif
#if defined(__CUDA_ARCH__)
#define STEPCAST_UNROLL _Pragma("unroll")
#else
#define STEPCAST_UNROLL
#endif
