# LibTorch's libraries need others of the wheel (NCCL, cuDNN, ...), which lie in folders of their own. The
# linker looks there first when it is told so: the toolkit's folder may have older ones of the same name.
# Sets linkboy_torch_link_options.
get_filename_component(linkboy_site_packages "${TORCH_INSTALL_PREFIX}/.." ABSOLUTE)
file(GLOB linkboy_torch_link_options "${linkboy_site_packages}/nvidia/*/lib")
list(TRANSFORM linkboy_torch_link_options PREPEND "-Wl,-rpath-link,")
