# The same binary as ranks of an MPI launcher, 1 to 5 of them.
if(MPI_FOUND)
  # What lets Open MPI start more ranks than cores, also in a container; others need no such words.
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  set(flags "")
  if(version MATCHES "Open MPI|OpenRTE")
    set(flags --allow-run-as-root --bind-to none --oversubscribe)
  endif()
  foreach(ranks RANGE 1 5)
    add_test(NAME parallel_comm_mpi_${ranks}
      COMMAND ${CMAKE_COMMAND} -E env PALIMPSEST_TEST_MPI_RANKS=${ranks}
        ${MPIEXEC_EXECUTABLE} ${flags} -n ${ranks}
        $<TARGET_FILE:test_parallel_comm> --gtest_brief=1 "--gtest_filter=Mpi*")
    set_tests_properties(parallel_comm_mpi_${ranks} PROPERTIES
      TIMEOUT 120 LABELS libtorch ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
  endforeach()
  # One that must fail: the job ends by itself, long before the rank that sleeps would wake.
  add_test(NAME parallel_comm_mpi_failure
    COMMAND ${CMAKE_COMMAND} -E env PALIMPSEST_TEST_MPI_RANKS=3
      ${MPIEXEC_EXECUTABLE} ${flags} -n 3
      $<TARGET_FILE:test_parallel_comm> --gtest_brief=1 --gtest_also_run_disabled_tests "--gtest_filter=MpiFailure.*")
  set_tests_properties(parallel_comm_mpi_failure PROPERTIES
    TIMEOUT 30 LABELS libtorch ENVIRONMENT ASAN_OPTIONS=detect_leaks=0
    PASS_REGULAR_EXPRESSION
      "rank 1 has not come to it: it lives, at forward block 3 of step 7.*exited with non-zero status|exited with non-zero status.*rank 1 has not come to it: it lives, at forward block 3 of step 7")
else()
  message(STATUS "No MPI: its communicators are neither built nor tested")
endif()
