# cpack -G DEB: packages ballast, libballast0 and libballast-dev of the three components, each with its
# copyright and changelog, and its symbols beside it. scripts/release.sh calls it.
set(CPACK_PACKAGE_NAME ballast)
set(CPACK_PACKAGE_VENDOR Ballast)
# Who answers for the packages: BALLAST_MAINTAINER="Name <address>" in the environment.
set(CPACK_PACKAGE_CONTACT "Ballast developers <maintainers@ballast.example>")
if(NOT "$ENV{BALLAST_MAINTAINER}" STREQUAL "")
  set(CPACK_PACKAGE_CONTACT "$ENV{BALLAST_MAINTAINER}")
endif()
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES OFF)  # it splits symbols off, for packages NAME-dbgsym
set(CPACK_COMPONENTS_ALL program runtime development)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_THREADS 0)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_debian.cmake)
set(CPACK_BALLAST_SOURCE_DIR ${PROJECT_SOURCE_DIR})
set(CPACK_BALLAST_PYTHON ${Python3_EXECUTABLE})
set(CPACK_BALLAST_LIBDIR ${CMAKE_INSTALL_LIBDIR})
set(CPACK_BALLAST_CUDA ${BALLAST_CUDA})

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME ballast)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libballast0)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
# CPack's own way calls ldconfig from scripts, which Debian's trigger does once for all packages.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/debian/shlibs CONTENT "libballast 0 libballast0 (>= ${PROJECT_VERSION})\n")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/debian/triggers CONTENT "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/shlibs
                                               ${PROJECT_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libballast-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)

# What is loaded when it is used, of the versions that the headers are of.
set(loaded libcurl4)
if(BALLAST_MEDIA)
  foreach(library avformat avcodec avutil swscale)
    set(major)
    foreach(header version_major.h version.h)
      set(file ${BALLAST_FFMPEG_INCLUDE_DIR}/lib${library}/${header})
      if(NOT major AND EXISTS ${file})
        file(STRINGS ${file} line REGEX "define LIB[A-Z]+_VERSION_MAJOR +[0-9]+")
        string(REGEX MATCH "[0-9]+$" major "${line}")
      endif()
    endforeach()
    list(APPEND loaded lib${library}${major})
  endforeach()
endif()
list(JOIN loaded ", " loaded)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "${loaded}, libmicrohttpd12")  # ballast watch alone
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "${loaded}")
if(BALLAST_CUDA)  # nothing links them
  string(REGEX MATCH "^[0-9]+" cuda "${CUDAToolkit_VERSION}")
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "libcudnn9-cuda-${cuda}")
endif()
set(needed "libballast0 (= ${PROJECT_VERSION}), libopenblas-serial-dev")
if(NOT BALLAST_FMT_HEADER_ONLY)
  string(APPEND needed ", libfmt-dev")
endif()
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${needed}")

set(about "Ballast plans the memory of a run before it starts, and keeps to the plan:
training and sampling of Wan2.2 video transformers and T5 text transformers
inside a declared budget of GPU memory, RAM and disk.")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "train and run large transformers in the memory you have
${about}
.
This package holds the command ballast.")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "train and run large transformers in the memory you have - library
${about}
.
This package holds the shared library with its C interface.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "train and run large transformers in the memory you have - headers
${about}
.
This package holds the C and C++ headers, the static library and what CMake
and pkg-config need.")
include(CPack)
