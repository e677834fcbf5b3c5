/* Files that nobody sees until they are whole: unnamed where the file system can have them so, and
 * else under a hidden name that goes away on failure.
 *
 * Failures are errno, and nothing else of Banyan is needed: the library and its command line are
 * both built with this. */
#ifndef CORE_FILES_NAMELESS_H
#define CORE_FILES_NAMELESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct nameless {
    int fd;
    char *name;    /* hidden; NULL for an unnamed one */
    bool is_named; /* it is no new file, but what nameless_is_taken found */
} nameless;

/* In the file system of `folder`. */
bool nameless_open(const char *folder, nameless *file);

/* For what will have this path: in its folder, or what is there already when that is no file. */
bool nameless_open_for(const char *path, nameless *file);

/* Give it its name, in the file system that it was made in; a file that has the name is replaced in
 * one step, and a link to one, a device or a link to one is not. */
bool nameless_publish(nameless *file, const char *path);

/* Close it, and let it vanish unless it was published. Once after every open. */
void nameless_close(nameless *file);

/* Where a path's last component lies: "a" for "a/b/", "." for "b". To be freed; NULL without
 * memory. */
char *nameless_folder(const char *path);

/* Is there something that is no file: a device, a pipe, a link? It is written to as it is, since a
 * file under its name would take its place. */
bool nameless_is_taken(const char *path);

/* For names that no one else has. */
uint64_t nameless_random(void);

#endif
