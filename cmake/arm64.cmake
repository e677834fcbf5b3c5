# Toolchain for 64-bit Arm on another processor: Debian's cross compiler, the libraries that
# scripts/setup-arm64 unpacks, and tests under qemu-user (make test-arm64).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(BANYAN_ARM64_LIBRARIES ${CMAKE_BINARY_DIR}/libraries CACHE PATH "Debian's packages for arm64, unpacked")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES BANYAN_ARM64_LIBRARIES)
set(CMAKE_FIND_ROOT_PATH ${BANYAN_ARM64_LIBRARIES} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${BANYAN_ARM64_LIBRARIES}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${BANYAN_ARM64_LIBRARIES})

set(BANYAN_CUDA OFF CACHE BOOL "nvcc compiles for the machine it runs on")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
