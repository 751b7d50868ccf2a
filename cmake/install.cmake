# cmake --install: the program, the static library, the shared one with a C interface, their public
# headers, and a CMake package that finds what the static library needs. See docs/library.md.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Ballast)
install(TARGETS ballast_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET ballast_shared)
  install(TARGETS ballast_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/src/ballast/ballast.h ${PROJECT_SOURCE_DIR}/src/ballast/ballast_c.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ballast)
# No exported targets: what the library was linked with here (OpenBLAS by its path, its own headers
# by theirs) is no use elsewhere. The package names it anew.
install(FILES $<TARGET_FILE:ballast> DESTINATION ${CMAKE_INSTALL_LIBDIR})
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
        DESTINATION ${package_dir})
