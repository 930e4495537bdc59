// The launches of execute/cuda, compiled for the host: each kernel is put on its stream as what the
// emulator carries out, block after block, thread by thread.
#include "execute/cuda/add_up.cu"
#include "execute/cuda/attention_kernels.cu"
#include "execute/cuda/memory_kernels.cu"
#include "tests/support/emulated_block.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace stepcast::cuda {

// What compute capability 8.0 lets a launch ask for, at most.
cudaError_t launch_on_host(const Geometry& geometry,
                           const std::function<void(const Thread&)>& kernel, cudaStream_t stream) {
  constexpr int kThreadsMax = 1024, kSharedMax = 163 * 1024, kBlocksMax = 65535;
  if (const int bad = fake::fault_of("launch")) return static_cast<cudaError_t>(bad);
  if (geometry.threads < 1 || geometry.threads > kThreadsMax || geometry.blocks < 1 ||
      geometry.blocks_y < 1 || geometry.blocks_y > kBlocksMax || geometry.blocks_z < 1 ||
      geometry.blocks_z > kBlocksMax || geometry.shared_bytes > kSharedMax) {
    return cudaErrorInvalidConfiguration;
  }
  fake::load(kernel.target_type());
  return fake::enqueue(stream, [geometry, kernel] {
    return [geometry, kernel] {
      emulate(geometry, kernel);
      return true;
    };
  });
}

}  // namespace stepcast::cuda
