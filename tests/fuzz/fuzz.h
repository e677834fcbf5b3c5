/* Included by every fuzzer. One program for each file: LLVMFuzzerTestOneInput tries an input;
 * fuzz_write_seeds creates valid inputs with the code that writes the format. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <banyan/banyan.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
void fuzz_write_seeds(void);

static const char *fuzz_seed_folder;
static int fuzz_seed_count;

/* Write a seed. */
static inline void fuzz_seed(const void *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/seed-%d", fuzz_seed_folder, fuzz_seed_count++);
    FILE *file = fopen(path, "w");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static inline void fuzz_seed_text(const char *text)
{
    fuzz_seed(text, strlen(text));
}

static inline void fuzz_no_log(banyan_log_level level, const char *message, void *context)
{
    (void)level;
    (void)message;
    (void)context;
}

/* With FUZZ_SEEDS=folder the program writes its seeds there and ends. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    banyan_log_set(fuzz_no_log, NULL);
    fuzz_seed_folder = getenv("FUZZ_SEEDS");
    if (fuzz_seed_folder) {
        fuzz_write_seeds();
        exit(0);
    }
    return 0;
}

/* A condition that must hold for every input. */
#define FUZZ_REQUIRE(condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A failure must have a message, as a user would see it. */
static inline bool fuzz_took(banyan_status status)
{
    FUZZ_REQUIRE(status == BANYAN_OK || banyan_last_error()[0] != '\0');
    return status == BANYAN_OK;
}

/* A file with this content; its path is valid until fuzz_file_close. */
typedef struct fuzz_file {
    int fd;
    char path[64];
} fuzz_file;

static inline fuzz_file fuzz_file_open(const void *data, size_t size)
{
    fuzz_file file = {memfd_create("fuzz", MFD_CLOEXEC), ""};
    FUZZ_REQUIRE(file.fd >= 0 && write(file.fd, data, size) == (ssize_t)size);
    snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
    return file;
}

static inline void fuzz_file_close(const fuzz_file *file)
{
    close(file->fd);
}

/* The input as text: a copy that ends with 0, to be freed. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    FUZZ_REQUIRE(text);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

#endif
