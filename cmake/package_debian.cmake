# Run by CPack before it packs: what Debian's policy wants in each package, beside what is installed.
set(source ${CPACK_BALLAST_SOURCE_DIR})
foreach(component program runtime development)
  string(TOUPPER ${component} upper)
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component}/usr)
  set(name ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  if(NOT EXISTS ${root})
    message(FATAL_ERROR "the package ${name} has no files in ${root}")
  endif()
  execute_process(
    COMMAND ${CPACK_BALLAST_PYTHON} ${source}/tools/debian_files.py --package ${name} --usr ${root}
            --version ${CPACK_PACKAGE_VERSION} --maintainer ${CPACK_PACKAGE_CONTACT} --cuda ${CPACK_BALLAST_CUDA}
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
