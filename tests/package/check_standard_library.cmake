# Included by the project of examples/consumers/fetch_content: its program checks the standard library. EVAL, because
# a deferred call would look up the folder when another file is read.
cmake_language(EVAL CODE "cmake_language(DEFER CALL target_compile_options consumer PRIVATE
  -include [[${CMAKE_CURRENT_LIST_DIR}/standard_library.hpp]])")
