# Include this file after find_package(Torch). LibTorch's libraries need other libraries of the wheel (NCCL, cuDNN,
# ...), each in a separate folder. These options let the linker search there first, because the toolkit's folder can
# contain older libraries of the same name. Sets linkboy_torch_link_options.
get_filename_component(linkboy_site_packages "${TORCH_INSTALL_PREFIX}/.." ABSOLUTE)
file(GLOB linkboy_torch_link_options "${linkboy_site_packages}/nvidia/*/lib")
list(TRANSFORM linkboy_torch_link_options PREPEND "-Wl,-rpath-link,")
# LibTorch's libraries export copies of functions of libstdc++, built with another compiler. With one of them, a program
# crashes in std::filesystem::remove_all. As the first library of a program, libstdc++ provides its own functions.
list(APPEND linkboy_torch_link_options "-Wl,--push-state,--no-as-needed,-lstdc++,--pop-state")

# Without a toolkit, uses CUDA's headers and runtime library from the wheel, if they are there.
if(TARGET torch_cuda AND DEFINED linkboy_nvcc AND NOT linkboy_nvcc)
  file(GLOB linkboy_cuda_headers
    "${linkboy_site_packages}/nvidia/*/include" "${linkboy_site_packages}/nvidia/*/include/cccl")
  file(GLOB linkboy_cuda_runtime "${linkboy_site_packages}/nvidia/*/lib/libcudart.so.*")
  set_target_properties(torch::cudart PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${linkboy_cuda_headers}"
    INTERFACE_LINK_LIBRARIES "${linkboy_cuda_runtime}")
endif()
