# Text files as C++: each function of namespace palimpsest returns its files' text, one after the other, as a
# string_view.
#
#   palimpsest_embed(memory/report/page_files.cc out HEADER palimpsest/memory/report/page.h
#     page_html memory/report/page/page.html page_script memory/report/page/a.js memory/report/page/b.js)
#
# Run as a script (cmake -P) it writes the file: OUTPUT, HEADER, and SPEC, a list of names and paths.

function(palimpsest_embed output out)
  cmake_parse_arguments(ARG "" "HEADER" "" ${ARGN})
  set(made ${CMAKE_BINARY_DIR}/generated/palimpsest/${output})
  set(files "")
  foreach(entry IN LISTS ARG_UNPARSED_ARGUMENTS)
    if(entry MATCHES "/")
      list(APPEND files ${CMAKE_SOURCE_DIR}/${entry})
    endif()
  endforeach()
  string(REPLACE ";" "|" spec "${ARG_UNPARSED_ARGUMENTS}")
  add_custom_command(
    OUTPUT ${made}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${made} -DHEADER=${ARG_HEADER} "-DSPEC=${spec}" -DROOT=${CMAKE_SOURCE_DIR}
            -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${files} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    VERBATIM)
  set(${out} ${made} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  set(text "#include <${HEADER}>\n\nnamespace palimpsest {\n")
  set(open FALSE)
  string(REPLACE "|" ";" spec "${SPEC}")
  foreach(entry IN LISTS spec)
    if(entry MATCHES "/")
      file(READ ${ROOT}/${entry} content)
      string(APPEND text "R\"~~~(${content})~~~\"\n")
    else()
      if(open)
        string(APPEND text ";\n}\n")
      endif()
      string(APPEND text "\nstd::string_view ${entry}() {\n  return\n")
      set(open TRUE)
    endif()
  endforeach()
  string(APPEND text ";\n}\n\n} // namespace palimpsest\n")
  file(WRITE ${OUTPUT} "${text}")
endif()
