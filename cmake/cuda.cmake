# What runs on NVIDIA GPUs needs nvcc and the headers of cuBLASLt and NCCL. Sets
# STEPCAST_CUDA_FOUND; with it the language CUDA, CUDAToolkit and NCCL_INCLUDE_DIR. The libraries
# themselves are opened when a run asks for a GPU (execute/cuda/library.h): cuBLASLt alone is half a
# gigabyte, which no forecast should wait for.
set(STEPCAST_CUDA_FOUND OFF)
if(STEPCAST_CUDA STREQUAL "OFF")
  return()
endif()

function(stepcast_no_cuda why)
  if(STEPCAST_CUDA STREQUAL "ON")
    message(FATAL_ERROR "STEPCAST_CUDA=ON, but ${why}")
  endif()
  message(STATUS "Without CUDA: ${why}")
endfunction()

find_program(STEPCAST_NVCC nvcc
  HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
if(NOT STEPCAST_NVCC)
  stepcast_no_cuda("nvcc is not found; put it into the PATH or set CUDA_HOME")
  return()
endif()
find_path(NCCL_INCLUDE_DIR nccl.h
  HINTS ENV NCCL_HOME ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
  HINTS ENV NCCL_HOME ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES lib lib64)
if(NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  stepcast_no_cuda("NCCL is not found; set NCCL_HOME to the folder of its include/ and lib/")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${STEPCAST_NVCC})
endif()
set(CMAKE_CUDA_ARCHITECTURES ${STEPCAST_CUDA_ARCHITECTURES})
enable_language(CUDA)
find_package(CUDAToolkit 12 QUIET)
if(NOT CUDAToolkit_FOUND)
  stepcast_no_cuda("the CUDA toolkit is older than 12, or has no headers")
  return()
endif()
find_path(STEPCAST_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NOT STEPCAST_CUBLASLT_INCLUDE_DIR)
  stepcast_no_cuda("the CUDA toolkit has no cublasLt.h; install its libcublas-dev")
  return()
endif()
# CMake 3.25 does not know nvcc's flag for C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(STEPCAST_CUDA_OPTIONS --expt-relaxed-constexpr -Xcompiler=-ffp-contract=off)
set(STEPCAST_CUDA_FOUND ON)
message(STATUS
  "With CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, NCCL in ${NCCL_INCLUDE_DIR}")
