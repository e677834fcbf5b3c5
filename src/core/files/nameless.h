/* Files that appear under their name only when complete. They are unnamed (O_TMPFILE) where the
 * file system supports it; elsewhere they have a hidden name that is removed on failure.
 *
 * Errors are in errno. This file depends on nothing else of Banyan: the library and the command
 * line are both built with it. */
#ifndef CORE_FILES_NAMELESS_H
#define CORE_FILES_NAMELESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct nameless {
    int fd;
    char *name;    /* hidden; NULL for an unnamed one */
    bool is_named; /* not a new file: the existing object that nameless_is_taken found */
} nameless;

/* Create a file in the file system of `folder`. */
bool nameless_open(const char *folder, nameless *file);

/* Create a file that will get this path: in the path's folder. An existing path that is not a
 * regular file is opened instead. */
bool nameless_open_for(const char *path, nameless *file);

/* Give the file its name, in the file system where it was created. A rename replaces an existing
 * file in one step. Links to files are replaced too; devices and links to devices are not. */
bool nameless_publish(nameless *file, const char *path);

/* Close the file, and remove it unless it was published. Call once after every open. */
void nameless_close(nameless *file);

/* Return the folder of the path's last component: "a" for "a/b/", "." for "b". You free it; NULL
 * when out of memory. */
char *nameless_folder(const char *path);

/* True if the path exists and is not a regular file: a device, a pipe or a link. Such an object is
 * written in place, because a new file would replace it. */
bool nameless_is_taken(const char *path);

/* Open such an object to write it. A pipe that nobody opens to read within 5 s is an error (ENXIO).
 * Returns the descriptor, or -1. */
int nameless_open_taken(const char *path);

/* Return a random number for unique names. */
uint64_t nameless_random(void);

#endif
