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
else()
  message(STATUS "No MPI: its communicators are neither built nor tested")
endif()
