#include "copy/service/backends.h"

#include <stdio.h>
#include <string.h>

#include "copy/pipeline/backend.h"
#include "core/error.h"
#include "core/module.h"
#include "memory/device.h"

static const banyan_copy_backend *const built_in[] = {
    &copy_backend_direct,
    &copy_backend_pipeline,
};

static const banyan_copy_backend *const built_in_on_devices[] = {
    &copy_backend_direct_device,
    &copy_backend_pipeline_device,
};

/* Modules with a backend of their own name, and the build requirement of each. */
static const struct module_backend {
    const char *name, *needs;
} module_backends[] = {
    {"mpi", "MPI found by CMake (Debian: libopenmpi-dev)"},
};

static const size_t built_in_count = sizeof(built_in) / sizeof(built_in[0]);
static const size_t built_in_on_devices_count =
    sizeof(built_in_on_devices) / sizeof(built_in_on_devices[0]);
static const size_t module_backend_count = sizeof(module_backends) / sizeof(module_backends[0]);

static banyan_status not_found(const char *name)
{
    char here[256] = "", elsewhere[256] = "";
    size_t used = 0, said = 0;
    for (size_t i = 0; i < built_in_count; i++)
        used += (size_t)snprintf(here + used, sizeof here - used, "%s%s", i > 0 ? ", " : "",
                                 built_in[i]->name);
    for (size_t i = 0; i < module_backend_count; i++) {
        const struct module_backend *module = &module_backends[i];
        if (module_is_there(module->name))
            used += (size_t)snprintf(here + used, sizeof here - used, ", %s", module->name);
        else
            said += (size_t)snprintf(elsewhere + said, sizeof elsewhere - said,
                                     "; for %s, build with %s", module->name, module->needs);
    }
    return error_set(BANYAN_ERR_NOT_FOUND, "there is no copy backend \"%s\"; this build has %s%s",
                     name, here, elsewhere);
}

banyan_status banyan_copy_backend_find(const char *name, const banyan_copy_backend **backend)
{
    for (size_t i = 0; i < built_in_count; i++)
        if (strcmp(built_in[i]->name, name) == 0) {
            *backend = built_in[i];
            return BANYAN_OK;
        }
    size_t i = 0;
    while (i < module_backend_count && strcmp(module_backends[i].name, name) != 0)
        i++;
    if (i == module_backend_count)
        return not_found(name);
    if (!module_is_there(name))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "this build has no copy backend %s: there is no libbanyan_%s.so beside "
                         "libbanyan or in BANYAN_MODULE_PATH; build with %s",
                         name, name, module_backends[i].needs);
    const module_tables *tables;
    RETURN_IF_FAILED(module_load(name, &tables));
    if (!tables->copy_backend)
        return error_set(BANYAN_ERR_UNSUPPORTED, "module %s has no copy backend", name);
    RETURN_IF_FAILED(copy_backend_check(tables->copy_backend));
    *backend = tables->copy_backend;
    return BANYAN_OK;
}

static banyan_status not_found_on(const char *name, const char *module,
                                  const banyan_copy_backend *const *brought)
{
    char others[256] = "";
    size_t used = 0;
    for (; brought && *brought && used < sizeof others; brought++)
        used += (size_t)snprintf(others + used, sizeof others - used, ", %s", (*brought)->name);
    return error_set(
        BANYAN_ERR_NOT_FOUND,
        "there is no copy backend \"%s\" for memory of a %s device; there are direct, pipeline%s",
        name, module, others);
}

banyan_status banyan_copy_backend_find_on(const char *name, DLDevice device,
                                          const banyan_copy_backend **backend)
{
    const memory_device_ops *memory;
    const module_tables *tables;
    if (device_is_host(device))
        return banyan_copy_backend_find(name, backend);
    for (size_t i = 0; i < built_in_on_devices_count; i++)
        if (strcmp(name, built_in_on_devices[i]->name) == 0) {
            *backend = built_in_on_devices[i];
            return BANYAN_OK;
        }
    RETURN_IF_FAILED(memory_device_find(device.device_type, &memory));
    RETURN_IF_FAILED(module_load(memory->name, &tables));
    const banyan_copy_backend *const *brought = tables->device_copy_backends;
    while (brought && *brought && strcmp((*brought)->name, name) != 0)
        brought++;
    if (!brought || !*brought)
        return not_found_on(name, memory->name, tables->device_copy_backends);
    *backend = *brought;
    return BANYAN_OK;
}

bool copy_backend_keeps_schedules(const banyan_copy_backend *backend)
{
    return backend->prepare && backend->execute && backend->release;
}

banyan_status copy_backend_check(const banyan_copy_backend *backend)
{
    if (!backend)
        return error_set(BANYAN_ERR_INVALID, "no copy backend was given");
    if (backend->size < sizeof *backend)
        return error_set(BANYAN_ERR_INVALID,
                         "a copy backend's table has %zu bytes; this Banyan's has %zu",
                         backend->size, sizeof *backend);
    if (!backend->name || backend->name[0] == '\0')
        return error_set(BANYAN_ERR_INVALID, "a copy backend has no name");
    if (!backend->open || !backend->close)
        return error_set(BANYAN_ERR_INVALID, "copy backend %s lacks open or close", backend->name);
    bool runs = backend->submit_send && backend->submit_recv && backend->run;
    if (!runs && !copy_backend_keeps_schedules(backend))
        return error_set(BANYAN_ERR_INVALID,
                         "copy backend %s has neither submit_send, submit_recv and run nor "
                         "prepare, execute and release",
                         backend->name);
    return BANYAN_OK;
}
