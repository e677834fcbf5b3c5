#include "core/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"

#define MODULE_MAX 16

static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded_module {
    char name[32];
    const module_tables *tables;
} modules[MODULE_MAX];
static int module_count;

/* Get the folder of the library or program that contains this code. */
static void own_folder(char *folder, size_t bytes)
{
    Dl_info info;
    folder[0] = '\0';
    if (dladdr((const void *)&module_load, &info) == 0 || !info.dli_fname)
        return;
    snprintf(folder, bytes, "%s", info.dli_fname);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    else
        snprintf(folder, bytes, ".");
}

/* Find the module's file: the first that exists in the search path; empty when there is none. */
static void module_path(const char *name, char *path, size_t bytes)
{
    char own[PATH_MAX], beside[PATH_MAX + 16];
    own_folder(own, sizeof own);
    snprintf(beside, sizeof beside, "%s/banyan", own);
    const char *folders[] = {getenv("BANYAN_MODULE_PATH"), own, beside};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        if (!folders[i])
            continue;
        snprintf(path, bytes, "%s/libbanyan_%s.so", folders[i], name);
        if (access(path, R_OK) == 0)
            return;
    }
    path[0] = '\0';
}

bool module_is_there(const char *name)
{
    char path[PATH_MAX + 64];
    module_path(name, path, sizeof path);
    return path[0] != '\0';
}

static banyan_status core_module_load(const char *name, const module_tables **tables)
{
    char path[PATH_MAX + 64];
    module_path(name, path, sizeof path);
    if (path[0] == '\0')
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "module %s: there is no libbanyan_%s.so beside libbanyan or in "
                         "BANYAN_MODULE_PATH: it has not been built, or not installed",
                         name, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(BANYAN_ERR_UNSUPPORTED, "module %s: %s", name, dlerror());
    module_entry_fn entry;
    *(void **)&entry = dlsym(library, MODULE_ENTRY);
    char reason[512] = "";
    if (!entry)
        snprintf(reason, sizeof reason, "%s has no " MODULE_ENTRY, path);
    if (!entry || !entry(MODULE_ABI_VERSION, tables, reason, sizeof reason)) {
        dlclose(library);
        return error_set(BANYAN_ERR_UNSUPPORTED, "module %s: %s", name, reason);
    }
    return BANYAN_OK;
}

banyan_status module_load(const char *name, const module_tables **tables)
{
    banyan_status status = BANYAN_OK;
    pthread_mutex_lock(&modules_lock);
    int i = 0;
    while (i < module_count && strcmp(modules[i].name, name) != 0)
        i++;
    if (i < module_count) {
        *tables = modules[i].tables;
    } else if (module_count == MODULE_MAX) {
        status = error_set(BANYAN_ERR_UNSUPPORTED, "module %s: %d modules are loaded already", name,
                           MODULE_MAX);
    } else {
        status = core_module_load(name, tables);
        if (status == BANYAN_OK) {
            snprintf(modules[i].name, sizeof modules[i].name, "%s", name);
            modules[i].tables = *tables;
            module_count++;
        }
    }
    pthread_mutex_unlock(&modules_lock);
    return status;
}

void banyan_module_log(banyan_log_level level, const char *line)
{
    log_line(level, "%s", line);
}
