/* Index files of Hugging Face folders, beside one good shard. */
#include "fuzz.h"

#include <fcntl.h>
#include <sys/stat.h>

void fuzz_write_seeds(void)
{
    fuzz_seed_text("{\"metadata\":{},\"weight_map\":{\"w\":\"a.safetensors\"}}");
    fuzz_seed_text("{\"weight_map\":{\"w\":\"a.safetensors\",\"v\":\"b.safetensors\"}}");
}

static char folder[64];
static char shard_path[128], index_path[128];

static void remove_folder(void)
{
    unlink(shard_path);
    unlink(index_path);
    rmdir(folder);
}

static void make_folder(void)
{
    int64_t shape = 2;
    float memory[2] = {0};
    const char *name = "w";
    DLTensor tensor = {
        .data = memory, .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_F32, .shape = &shape};
    /* In memory where that can be: each input writes a file. */
    const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/banyan-fuzz-XXXXXX", parent);
    FUZZ_REQUIRE(mkdtemp(folder));
    snprintf(shard_path, sizeof shard_path, "%s/a.safetensors", folder);
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", folder);
    FUZZ_REQUIRE(banyan_checkpoint_write(shard_path, &name, &tensor, 1, NULL) == BANYAN_OK);
    atexit(remove_folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (shard_path[0] == '\0')
        make_folder();
    int fd = open(index_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    FUZZ_REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
    banyan_checkpoint *checkpoint;
    if (fuzz_took(banyan_checkpoint_open(folder, &checkpoint))) {
        FUZZ_REQUIRE(banyan_checkpoint_tensor_count(checkpoint) <= 1);
        banyan_checkpoint_close(checkpoint);
    }
    return 0;
}
