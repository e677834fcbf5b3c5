#include "ucx/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

ucx_library ucx_calls;

static void *library_load(char *reason, size_t reason_bytes)
{
    const char *named = getenv("BANYAN_UCX");
    const char *file = named && named[0] ? named : "libucp.so.0";
    /* UCX reads these when it is loaded. Its own handlers would replace those of the program. */
    setenv("UCX_HANDLE_ERRORS", "none", false);
    setenv("UCX_WARN_UNUSED_ENV_VARS", "n", false);
    /* Memory of GPUs may be older than the library, which then takes it for the host's. */
    setenv("UCX_MEMTYPE_CACHE", "n", false);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(reason, reason_bytes,
                 "%s; install UCX 1.13 or newer (Debian: libucx0), or name "
                 "its libucp.so in BANYAN_UCX",
                 dlerror());
    return library;
}

bool ucx_library_open(char *reason, size_t reason_bytes)
{
    void *library = library_load(reason, reason_bytes);
    if (!library)
        return false;
    const struct {
        const char *name;
        void **place;
    } functions[] = {
#define UCX_ENTRY(name) {#name, (void **)&ucx_calls.name},
        UCX_FUNCTIONS(UCX_ENTRY)
#undef UCX_ENTRY
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        *functions[i].place = dlsym(library, functions[i].name);
        if (!*functions[i].place) {
            snprintf(reason, reason_bytes, "this UCX has no %s: 1.13 or newer is needed",
                     functions[i].name);
            return false;
        }
    }
    return true;
}
