# run(EXPECTED COMMAND...): EXPECTED is `works`, or what the output of the failure must match. Sets
# `output` in the caller.
function(run expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  list(JOIN ARGN " " command)
  if(expected STREQUAL "works" AND NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${command}\n${output}")
  elseif(NOT expected STREQUAL "works" AND (status EQUAL 0 OR NOT output MATCHES "${expected}"))
    message(FATAL_ERROR "should have failed with '${expected}': ${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()
