/* Modules are found in BANYAN_MODULE_PATH, and beside the library. */
#include "support/test.h"

#include <libgen.h>
#include <limits.h>
#include <unistd.h>

#include "core/module.h"
#include "support/folder.h"

/* Try a file with this name that is not a module. */
static void try_in(const char *folder, const char *name)
{
    const module_tables *tables;
    char *file, *path;
    CHECK(asprintf(&file, "libbanyan_%s.so", name) > 0);
    path = folder_path(folder, file);
    CHECK(!module_is_there(name), "%s is there before", path);
    CHECK_FAILS(module_load(name, &tables), BANYAN_ERR_UNSUPPORTED, "it has not been built");
    folder_write(path, "no module");
    CHECK(module_is_there(name), "%s is not found", path);
    CHECK_FAILS(module_load(name, &tables), BANYAN_ERR_UNSUPPORTED, file);
    CHECK(unlink(path) == 0);
    CHECK(!module_is_there(name), "%s is there afterwards", path);
    free(path);
    free(file);
}

static void modules_are_found_where_the_path_says(void **state)
{
    setenv("BANYAN_MODULE_PATH", *state, 1);
    try_in(*state, "elsewhere");
    unsetenv("BANYAN_MODULE_PATH");
}

static void modules_are_found_beside_their_loader(void **state)
{
    (void)state;
    char program[PATH_MAX], name[32];
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(bytes > 0);
    program[bytes] = '\0';
    const char *own = dirname(program);
    snprintf(name, sizeof name, "test%d", (int)getpid()); /* of no other process */
    try_in(own, name);
}

int main(void)
{
    unsetenv("BANYAN_MODULE_PATH");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(modules_are_found_where_the_path_says, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(modules_are_found_beside_their_loader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
