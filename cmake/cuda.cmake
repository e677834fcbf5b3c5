# libbanyan_cuda.so, where nvcc is. Its code is for Hopper, and PTX for what comes later;
# CMAKE_CUDA_ARCHITECTURES says otherwise.
option(BANYAN_CUDA "Build the CUDA module, if nvcc is found" ON)
if(NOT BANYAN_CUDA OR BANYAN_SANITIZE)
  return()
endif()

include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER)
  find_program(BANYAN_NVCC nvcc PATHS /usr/local/cuda/bin ENV CUDA_HOME)
  if(BANYAN_NVCC)
    set(CMAKE_CUDA_COMPILER ${BANYAN_NVCC})
  else()
    check_language(CUDA)
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "No nvcc: Banyan is built without libbanyan_cuda.so")
  return()
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.8 REQUIRED)

set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo")
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.c
     ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*/*.c ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*/*.cu)
add_library(banyan_cuda MODULE ${sources})
set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(banyan_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include
                                               ${PROJECT_SOURCE_DIR}/src
                                               ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(banyan_cuda PRIVATE _GNU_SOURCE)
target_compile_options(banyan_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Werror;-Wshadow;-Wstrict-prototypes;-Wmissing-prototypes>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-fvisibility=hidden;-Werror=all-warnings;--threads=0>)
# The driver is found at run time: no machine needs one to load the module and hear what it lacks.
target_link_libraries(banyan_cuda PRIVATE banyan CUDA::cudart_static)
install(TARGETS banyan_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/banyan)
