# Runs a fuzz target over its corpus and RUNS mutations. Does not change the corpus.
#   cmake -D BINARY=... -D CORPUS=... -D OPTIONS=... -D RUNS=... [-D NAME=...] -P run.cmake
set(found "${BINARY}${NAME}.found")
file(REMOVE_RECURSE "${found}")
file(MAKE_DIRECTORY "${found}")
unset(ENV{TORCH_SHOW_CPP_STACKTRACES})  # otherwise each exception takes milliseconds
set(ENV{ASAN_OPTIONS} "detect_leaks=0:allocator_may_return_null=0")
set(ENV{UBSAN_OPTIONS} "halt_on_error=1:print_stacktrace=1")
execute_process(
  COMMAND "${BINARY}" ${OPTIONS} -seed=1 -runs=${RUNS} -print_final_stats=1
    "-artifact_prefix=${BINARY}${NAME}." "${found}" "${CORPUS}"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(LENGTH "${output}" length)
if(length GREATER 12000)
  math(EXPR begin "${length} - 12000")
  string(SUBSTRING "${output}" ${begin} -1 output)
endif()
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${BINARY} failed (${status}); the input is at ${BINARY}${NAME}.*-*. Mend the "
    "reader, and keep the input in ${CORPUS}.")
endif()
