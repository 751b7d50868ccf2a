# Neighbouring sources are compiled together, so many in one translation unit: what they include is
# read once, and a template that all of them use is made once. It halves the time of a build more than
# twice. Who changes single sources often may prefer 8.
# Names in anonymous namespaces then meet those of the neighbours; a source whose names cannot be
# others is left out and compiled by itself.
set(BALLAST_UNITY_BATCH 24 CACHE STRING "compile so many neighbouring sources together; 0: each by itself")

function(ballast_unity target)  # sources...
  if(NOT BALLAST_UNITY_BATCH)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  set(folders)
  foreach(source ${ARGN})
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER ${folder} folder)
    list(APPEND folders ${folder})
    list(APPEND sources_${folder} ${source})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    list(LENGTH sources_${folder} count)
    math(EXPR batches "(${count} + ${BALLAST_UNITY_BATCH} - 1) / ${BALLAST_UNITY_BATCH}")  # of equal size
    set(i 0)
    foreach(source ${sources_${folder}})
      math(EXPR batch "${i} * ${batches} / ${count}")
      math(EXPR i "${i} + 1")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${batch})
    endforeach()
  endforeach()
endfunction()
