# BANYAN_SANITIZE=address (with undefined behaviour) or thread.
set(BANYAN_SANITIZE "" CACHE STRING "Sanitizer to build with: address, thread or none")
if(BANYAN_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(BANYAN_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(BANYAN_SANITIZE)
  message(FATAL_ERROR "BANYAN_SANITIZE is \"${BANYAN_SANITIZE}\", not address or thread")
endif()

# Coverage for libFuzzer in all objects, and what it finds ends the program. Loops that count their
# iterations cannot be vectorised, whatever they ask for.
option(BANYAN_FUZZ "Build the fuzzers (clang)" OFF)
if(BANYAN_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -Wno-pass-failed)
  add_link_options(-fsanitize=address,undefined)
endif()
