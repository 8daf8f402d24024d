# To be included after find_package(Torch). LibTorch's libraries need others of the wheel (NCCL, cuDNN, ...),
# which lie in folders of their own. The linker looks there first when it is told so: the toolkit's folder
# may have older ones of the same name. Sets linkboy_torch_link_options.
get_filename_component(linkboy_site_packages "${TORCH_INSTALL_PREFIX}/.." ABSOLUTE)
file(GLOB linkboy_torch_link_options "${linkboy_site_packages}/nvidia/*/lib")
list(TRANSFORM linkboy_torch_link_options PREPEND "-Wl,-rpath-link,")

# Without a toolkit CUDA's headers and its runtime library are those of the wheel, if they are there.
if(TARGET torch_cuda AND DEFINED linkboy_nvcc AND NOT linkboy_nvcc)
  file(GLOB linkboy_cuda_headers
    "${linkboy_site_packages}/nvidia/*/include" "${linkboy_site_packages}/nvidia/*/include/cccl")
  file(GLOB linkboy_cuda_runtime "${linkboy_site_packages}/nvidia/*/lib/libcudart.so.*")
  set_target_properties(torch::cudart PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${linkboy_cuda_headers}"
    INTERFACE_LINK_LIBRARIES "${linkboy_cuda_runtime}")
endif()
