/* A folder for a test's files, removed after it. */
#ifndef TESTS_SUPPORT_FOLDER_H
#define TESTS_SUPPORT_FOLDER_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* cmocka's setup and teardown: *state is the folder's path. */
static inline int folder_setup(void **state)
{
    const char *parent = getenv("TMPDIR");
    char *path;
    if (asprintf(&path, "%s/banyan-test-XXXXXX", parent ? parent : "/tmp") < 0 || !mkdtemp(path))
        return -1;
    *state = path;
    return 0;
}

static inline int folder_remove_one(const char *path, const struct stat *info, int kind,
                                    struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

static inline int folder_teardown(void **state)
{
    int failed = nftw(*state, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return failed;
}

/* "folder/name"; the caller frees it. */
static inline char *folder_path(const char *folder, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* Write a text file, replacing an existing one. */
static inline void folder_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        abort();
    }
}

/* Entries of a folder, hidden ones too. */
static inline int folder_entries(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    int count = 0;
    while (folder && (entry = readdir(folder)))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (folder)
        closedir(folder);
    return folder ? count : -1;
}

#endif
