// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the GPU tests. kernels_ptx.h holds what `nvcc -ptx -arch=compute_75 kernels.cu` makes of them, so that
// building the tests needs no Toolkit.

// The word that belongs at `index` of a pattern.
static __device__ unsigned int Word(unsigned long long index, unsigned int seed) {
  unsigned int x = (unsigned int)index * 2654435761u ^ (unsigned int)(index >> 32) ^ seed;
  x ^= x >> 15;
  return x * 2246822519u;
}

extern "C" __global__ void Fill(unsigned int* words, unsigned long long count, unsigned int seed) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    words[i] = Word(i, seed);
  }
}

// Adds the number of words that are not the pattern's to *wrong.
extern "C" __global__ void Check(const unsigned int* words, unsigned long long count, unsigned int seed,
                                 unsigned long long* wrong) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long bad = 0;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    if (words[i] != Word(i, seed)) ++bad;
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

// Adds the number of words that are not zero to *wrong.
extern "C" __global__ void CheckZero(const unsigned int* words, unsigned long long count, unsigned long long* wrong) {
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long bad = 0;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    if (words[i] != 0) ++bad;
  }
  if (bad != 0) atomicAdd(wrong, bad);
}

// Writes `value` over and over for `nanoseconds`.
extern "C" __global__ void Scribble(unsigned int* words, unsigned long long count, unsigned int value,
                                    unsigned long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  do {
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
      ((volatile unsigned int*)words)[i] = value;
    }
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}
