# cmake --install: the program with its manual pages and completions; the shared library with a C
# interface; public headers, the static library, and a CMake package that finds what it needs. See
# docs/library.md. The three components are what package.cmake makes packages of.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Ballast)
install(TARGETS ballast_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)

# Made by the program itself when it is built: target package_files.
find_package(Python3 COMPONENTS Interpreter)
set(package_files ${PROJECT_BINARY_DIR}/package_files)
set(stamp ${package_files}/stamp)
if(Python3_FOUND)
  file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/man/*.md)
  add_custom_command(OUTPUT ${stamp}
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${package_files}
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/make_man_pages.py
            --program $<TARGET_FILE:ballast_cli> --docs ${PROJECT_SOURCE_DIR}/docs --output ${package_files}/man
    COMMAND ${CMAKE_COMMAND} -E make_directory ${package_files}/completions
    COMMAND $<TARGET_FILE:ballast_cli> completion bash > ${package_files}/completions/ballast
    COMMAND $<TARGET_FILE:ballast_cli> completion zsh > ${package_files}/completions/_ballast
    COMMAND $<TARGET_FILE:ballast_cli> completion fish > ${package_files}/completions/ballast.fish
    COMMAND ${CMAKE_COMMAND} -E touch ${stamp}
    DEPENDS ballast_cli ${PROJECT_SOURCE_DIR}/tools/make_man_pages.py ${pages}
            ${PROJECT_SOURCE_DIR}/docs/exit-codes.md ${PROJECT_SOURCE_DIR}/docs/environment-variables.md
    VERBATIM)
  add_custom_target(package_files DEPENDS ${stamp})
endif()
install(DIRECTORY ${package_files}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program OPTIONAL)
install(FILES ${package_files}/completions/ballast COMPONENT program OPTIONAL
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${package_files}/completions/_ballast COMPONENT program OPTIONAL
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${package_files}/completions/ballast.fish COMPONENT program OPTIONAL
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(DIRECTORY ${package_files}/doc/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program OPTIONAL)

if(TARGET ballast_shared)
  install(TARGETS ballast_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
          NAMELINK_COMPONENT development)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/ballast.pc.in ${PROJECT_BINARY_DIR}/ballast.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/ballast.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
endif()

install(FILES ${PROJECT_SOURCE_DIR}/src/ballast/ballast.h ${PROJECT_SOURCE_DIR}/src/ballast/ballast_c.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ballast COMPONENT development)
# No exported targets: what the library was linked with here (OpenBLAS by its path, its own headers
# by theirs) is no use elsewhere. The package names it anew.
install(FILES $<TARGET_FILE:ballast> DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/BallastConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/BallastConfig.cmake
                              INSTALL_DESTINATION ${package_dir}
                              PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
# 0.x: a minor version may change the package; v1 of the header does not.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/BallastConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/BallastConfig.cmake
              ${PROJECT_BINARY_DIR}/BallastConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/blas.cmake
        DESTINATION ${package_dir} COMPONENT development)

include(cmake/package.cmake)
