# NVSHMEM's headers and device library, for kernels that put between nodes by themselves. The host
# library is found at run time. Sets BANYAN_NVSHMEM_VERSION where they are found.
set(BANYAN_NVSHMEM_HOME AUTO CACHE STRING
    "Folder with NVSHMEM 3's include and lib; AUTO: where they may be found; OFF: build without")
unset(BANYAN_NVSHMEM_INCLUDE CACHE)
unset(BANYAN_NVSHMEM_DEVICE CACHE)
if(NOT BANYAN_NVSHMEM_HOME)
  return()
endif()
if(NOT BANYAN_HAS_CUDA)
  if(NOT BANYAN_NVSHMEM_HOME STREQUAL "AUTO")
    message(WARNING "BANYAN_NVSHMEM_HOME=${BANYAN_NVSHMEM_HOME} is of no use: Banyan is built "
                    "without libbanyan_cuda.so")
  endif()
  return()
endif()

function(banyan_look_for_nvshmem)
  if(NOT BANYAN_NVSHMEM_HOME STREQUAL "AUTO")
    set(only_here NO_DEFAULT_PATH)
    set(folders ${BANYAN_NVSHMEM_HOME})
  else()
    set(folders $ENV{NVSHMEM_HOME})
    execute_process(COMMAND python3 -c "import nvidia.nvshmem as n; print(list(n.__path__)[0])"
                    OUTPUT_VARIABLE wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND folders ${wheel})
  endif()
  set(cuda ${CUDAToolkit_VERSION_MAJOR})
  find_path(BANYAN_NVSHMEM_INCLUDE nvshmem.h HINTS ${folders}
            PATH_SUFFIXES include nvshmem_${cuda} nvshmem ${only_here})
  find_library(BANYAN_NVSHMEM_DEVICE libnvshmem_device.a HINTS ${folders}
               PATH_SUFFIXES lib lib64 nvshmem/${cuda} ${only_here})
  mark_as_advanced(BANYAN_NVSHMEM_INCLUDE BANYAN_NVSHMEM_DEVICE)
endfunction()

function(banyan_read_nvshmem_version)
  set(file ${BANYAN_NVSHMEM_INCLUDE}/non_abi/nvshmem_version.h)
  if(EXISTS ${file})
    file(STRINGS ${file} lines REGEX "define NVSHMEM_VENDOR_(MAJOR|MINOR|PATCH)_VERSION")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." version)
  endif()
  set(BANYAN_NVSHMEM_VERSION "${version}" PARENT_SCOPE)
endfunction()

# nvcc links code of named GPUs, not PTX.
set(BANYAN_NVSHMEM_CODE "")
foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
  if(architecture MATCHES "^([0-9]+[af]?)(-real)?$")
    list(APPEND BANYAN_NVSHMEM_CODE
         "-gencode=arch=compute_${CMAKE_MATCH_1},code=sm_${CMAKE_MATCH_1}")
  endif()
endforeach()

set(missing "")
banyan_look_for_nvshmem()
if(NOT BANYAN_NVSHMEM_INCLUDE OR NOT BANYAN_NVSHMEM_DEVICE)
  set(missing "nvshmem.h and libnvshmem_device.a are not found")
elseif(NOT BANYAN_NVSHMEM_CODE)
  set(missing "CMAKE_CUDA_ARCHITECTURES (${CMAKE_CUDA_ARCHITECTURES}) names no GPU")
else()
  banyan_read_nvshmem_version()
  if(NOT BANYAN_NVSHMEM_VERSION MATCHES "^3[.]")
    set(missing "${BANYAN_NVSHMEM_INCLUDE} is not NVSHMEM 3's")
  endif()
endif()
if(NOT missing)
  message(STATUS "NVSHMEM ${BANYAN_NVSHMEM_VERSION}'s device library: ${BANYAN_NVSHMEM_DEVICE}")
elseif(BANYAN_NVSHMEM_HOME STREQUAL "AUTO")
  set(BANYAN_NVSHMEM_VERSION "")
  unset(BANYAN_NVSHMEM_DEVICE CACHE)
  message(STATUS "Built without NVSHMEM's device library: ${missing}")
else()
  message(FATAL_ERROR "BANYAN_NVSHMEM_HOME=${BANYAN_NVSHMEM_HOME}: ${missing}")
endif()

# Kernels of `source`, linked with NVSHMEM's, as an array of `target`'s.
function(banyan_embed_nvshmem_kernels target source array)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${array})
  add_library(${array} OBJECT ${source})
  set_target_properties(${array} PROPERTIES CUDA_SEPARABLE_COMPILATION ON)
  target_include_directories(${array} PRIVATE ${PROJECT_SOURCE_DIR}/include
                                              ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(${array} SYSTEM PRIVATE ${BANYAN_NVSHMEM_INCLUDE})
  add_custom_command(
    OUTPUT ${object}.c
    COMMAND ${CMAKE_CUDA_COMPILER} ${BANYAN_NVSHMEM_CODE} -dlink -fatbin -Xfatbin=-compress-all
            $<TARGET_OBJECTS:${array}> ${BANYAN_NVSHMEM_DEVICE} -o ${object}.fatbin
    COMMAND ${CUDAToolkit_BIN_DIR}/bin2c --const --type longlong --name ${array} ${object}.fatbin
            > ${object}.c
    DEPENDS ${array} $<TARGET_OBJECTS:${array}> ${BANYAN_NVSHMEM_DEVICE}
    COMMENT "Linking kernels with NVSHMEM ${BANYAN_NVSHMEM_VERSION}'s device library"
    COMMAND_EXPAND_LISTS VERBATIM)
  target_sources(${target} PRIVATE ${object}.c)
endfunction()
