# A CUDA build of LibTorch asks for nvcc even where the program has no device code: where it stands
# when PATH does not have it.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS "/usr/local/cuda/bin/nvcc")
  set(ENV{CUDACXX} "/usr/local/cuda/bin/nvcc")
endif()
